#include "bench/amx_probe.h"

#include <cstdint>

#include "dispatch/amx.h"
#include "kernels/amx_config.h"

#if FLASHLANE_HAS_AMX

#include <algorithm>
#include <memory>

#include "hwy/aligned_allocator.h"

namespace flashlane::bench {
namespace {

// Largest tile of palette 1: 16 rows of 64 bytes.
constexpr int64_t kRows = 16;
constexpr int64_t kRowBytes = 64;
constexpr int64_t kTileBytes = kRows * kRowBytes;
// One product: 16 x 16 sums of 32 pairs.
constexpr double kProductFlops = 2.0 * 16 * 16 * 32;
// Left and right tiles: 8 KiB each, which leaves half of a 32 KiB L1 free.
constexpr int64_t kTilesPerSide = 8;

// Inline assembly throughout: g++ 12.2 drops stores to the operand of _tile_loadconfig, and its
// _tile_loadd does not say that it reads memory.
#define FLASHLANE_AMX __attribute__((target("amx-tile,amx-bf16"), noinline))

FLASHLANE_AMX void Configure() {
  const kernels::AmxConfig config = kernels::AmxConfig::WholeTiles();
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  // Operands are tiles 4 to 7, sums 0 to 3: all start as zeros.
  asm volatile(
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
      "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7" ::
          : "memory");
}

FLASHLANE_AMX void Release() { asm volatile("tilerelease" ::: "memory"); }

FLASHLANE_AMX void Load(const uint8_t* left, const uint8_t* right) {
  asm volatile(
      "tileloadd (%[left],%[stride],1), %%tmm4\n\t"
      "tileloadd (%[right],%[stride],1), %%tmm6\n\t"
      "tileloadd %c[tile](%[left],%[stride],1), %%tmm5\n\t"
      "tileloadd %c[tile](%[right],%[stride],1), %%tmm7" ::[left] "r"(left),
      [right] "r"(right), [stride] "r"(kRowBytes), [tile] "i"(kTileBytes)
      : "memory");
}

// The four products of two left tiles (4, 5) and two right tiles (6, 7): each has its own sum, so
// that a product's latency (52 cycles) hides behind the other three (16 cycles each).
#define FLASHLANE_FOUR_PRODUCTS          \
  "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t" \
  "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t" \
  "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t" \
  "tdpbf16ps %%tmm7, %%tmm5, %%tmm3"

FLASHLANE_AMX void MultiplyRegisters(int64_t rounds) {
  for (int64_t r = 0; r < rounds; ++r) asm volatile(FLASHLANE_FOUR_PRODUCTS ::: "memory");
}

// The four loads stand before the four products: where the unit runs at its slow speed, loads
// between products cost 7 %.
FLASHLANE_AMX void MultiplyFromL1(const uint8_t* left, const uint8_t* right, int64_t rounds) {
  for (int64_t r = 0; r < rounds; ++r) {
    const int64_t at = r % (kTilesPerSide / 2) * 2 * kTileBytes;
    asm volatile(
        "tileloadd (%[left],%[stride],1), %%tmm4\n\t"
        "tileloadd %c[tile](%[left],%[stride],1), %%tmm5\n\t"
        "tileloadd (%[right],%[stride],1), %%tmm6\n\t"
        "tileloadd %c[tile](%[right],%[stride],1), %%tmm7\n\t" FLASHLANE_FOUR_PRODUCTS ::[left] "r"(
            left + at),
        [right] "r"(right + at), [stride] "r"(kRowBytes), [tile] "i"(kTileBytes)
        : "memory");
  }
}

#undef FLASHLANE_FOUR_PRODUCTS
#undef FLASHLANE_AMX

}  // namespace

Probe AmxRegistersProbe() {
  if (WhyNoAmx() != nullptr) return {};
  std::shared_ptr<uint8_t[]> tiles = hwy::AllocateAligned<uint8_t>(4 * kTileBytes);
  std::fill(tiles.get(), tiles.get() + 4 * kTileBytes, uint8_t{0x3E});  // bf16 0x3E3E = 0.19
  return {[tiles](int64_t rounds) {
            Configure();
            Load(tiles.get(), tiles.get() + 2 * kTileBytes);
            MultiplyRegisters(rounds);
            Release();
          },
          4 * kProductFlops};
}

Probe AmxL1Probe() {
  if (WhyNoAmx() != nullptr) return {};
  constexpr int64_t kSide = kTilesPerSide * kTileBytes;
  std::shared_ptr<uint8_t[]> tiles = hwy::AllocateAligned<uint8_t>(2 * kSide);
  std::fill(tiles.get(), tiles.get() + 2 * kSide, uint8_t{0x3E});
  return {[tiles](int64_t rounds) {
            Configure();
            MultiplyFromL1(tiles.get(), tiles.get() + kSide, rounds);
            Release();
          },
          4 * kProductFlops};
}

}  // namespace flashlane::bench

#else

namespace flashlane::bench {
Probe AmxRegistersProbe() { return {}; }
Probe AmxL1Probe() { return {}; }
}  // namespace flashlane::bench

#endif
