#include "tests/support/amx_tiles.h"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace flashlane::testing {
namespace {

using Op = AmxInstruction::Op;

// Palette 1, the only one there is.
constexpr int kTiles = 8;
constexpr int kMaxRows = 16;
constexpr int kRowBytes = 64;
constexpr int kLanes = kRowBytes / 4;

struct alignas(64) Tile {
  uint8_t bytes[kMaxRows][kRowBytes];
};

// A tile's shape; 0 x 0 is a tile that may not be used.
struct Shape {
  int rows = 0;
  int colsb = 0;  // bytes per row
};

// What a thread has. Bytes of a tile outside its shape are always zero.
struct TileState {
  bool configured;
  Shape shapes[kTiles];
  Tile tiles[kTiles];
};

// initial-exec: other models may allocate at a thread's first use, which a signal handler must not.
constinit thread_local TileState state __attribute__((tls_model("initial-exec"))) = {};

constinit AmxEmulatorCounts counts;

void Count(std::atomic<int64_t>& counter, int64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

using Fault = AmxFault;
Fault GeneralProtection(const char* message) { return {message, SIGSEGV}; }
Fault Undefined(const char* message) { return {message, SIGILL}; }

// The 64 bytes of ldtilecfg.
struct TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t colsb[kTiles];
  uint8_t reserved_colsb[16];
  uint8_t rows[kTiles];
  uint8_t reserved_rows[8];
};
static_assert(sizeof(TileConfig) == 64);

template <size_t kSize>
bool AllZero(const uint8_t (&bytes)[kSize]) {
  uint8_t any = 0;
  for (const uint8_t byte : bytes) any |= byte;
  return any == 0;
}

Fault CheckConfig(const TileConfig& config) {
  if (config.palette > 1) return GeneralProtection("ldtilecfg: no such palette");
  if (config.palette == 0) return {};
  if (!AllZero(config.reserved) || !AllZero(config.reserved_colsb) ||
      !AllZero(config.reserved_rows)) {
    return GeneralProtection("ldtilecfg: reserved bytes are not zero");
  }
  for (int t = 0; t < kTiles; ++t) {
    if (config.rows[t] > kMaxRows) return GeneralProtection("ldtilecfg: more than 16 rows");
    if (config.colsb[t] > kRowBytes) {
      return GeneralProtection("ldtilecfg: more than 64 bytes per row");
    }
    if ((config.rows[t] == 0) != (config.colsb[t] == 0)) {
      return GeneralProtection("ldtilecfg: only one of rows and bytes per row is zero");
    }
  }
  // Legal, but only a load or store that was interrupted is continued so, which never happens here.
  if (config.start_row != 0) return GeneralProtection("ldtilecfg: start_row is not emulated");
  return {};
}

void SetConfigured(bool configured) {
  Count(configured ? counts.configures : counts.releases);
  Count(counts.live_configurations, static_cast<int>(configured) - state.configured);
  state.configured = configured;
  std::memset(state.tiles, 0, sizeof(state.tiles));
}

void Release() {
  for (Shape& shape : state.shapes) shape = {};
  SetConfigured(false);
}

Fault LoadConfig(uint64_t address) {
  TileConfig config;
  std::memcpy(&config, PointerTo(address), sizeof(config));
  const Fault fault = CheckConfig(config);
  if (fault.message) return fault;
  if (config.palette == 0) {
    Release();
    return {};
  }
  for (int t = 0; t < kTiles; ++t) state.shapes[t] = {config.rows[t], config.colsb[t]};
  SetConfigured(true);
  return {};
}

void StoreConfig(uint64_t address) {
  TileConfig config = {};
  config.palette = state.configured;
  for (int t = 0; t < kTiles; ++t) {
    config.colsb[t] = static_cast<uint16_t>(state.shapes[t].colsb);
    config.rows[t] = static_cast<uint8_t>(state.shapes[t].rows);
  }
  std::memcpy(PointerTo(address), &config, sizeof(config));
}

Fault CheckTile(int tile) {
  if (!state.configured) return Undefined("tiles are not configured, or released already");
  if (tile >= kTiles) return Undefined("no such tile register");
  if (state.shapes[tile].rows == 0) return Undefined("this tile is not configured");
  return {};
}

Fault CheckDwords(int tile) {
  const Fault fault = CheckTile(tile);
  if (fault.message) return fault;
  if (state.shapes[tile].colsb % 4 != 0) return Undefined("bytes per row are no multiple of 4");
  return {};
}

Fault Zero(int tile) {
  const Fault fault = CheckTile(tile);
  if (fault.message) return fault;
  std::memset(&state.tiles[tile], 0, sizeof(Tile));
  return {};
}

Fault Load(const AmxInstruction& instruction) {
  const Fault fault = CheckDwords(instruction.reg);
  if (fault.message) return fault;
  const Shape shape = state.shapes[instruction.reg];
  Tile& tile = state.tiles[instruction.reg];
  uint64_t row = instruction.address;
  for (int r = 0; r < shape.rows; ++r, row += instruction.stride) {
    std::memcpy(tile.bytes[r], PointerTo(row), static_cast<size_t>(shape.colsb));
  }
  Count(counts.loads);
  return {};
}

Fault Store(const AmxInstruction& instruction) {
  const Fault fault = CheckDwords(instruction.reg);
  if (fault.message) return fault;
  const Shape shape = state.shapes[instruction.reg];
  const Tile& tile = state.tiles[instruction.reg];
  uint64_t row = instruction.address;
  for (int r = 0; r < shape.rows; ++r, row += instruction.stride) {
    std::memcpy(PointerTo(row), tile.bytes[r], static_cast<size_t>(shape.colsb));
  }
  Count(counts.stores);
  return {};
}

// The two bf16 of each of a row's dwords, as f32.
struct alignas(64) Pairs {
  float even[kLanes];
  float odd[kLanes];
};

// No sanitizer: these touch nothing but tiles, and would be twenty times slower.
#define FLASHLANE_TILE_ARITHMETIC \
  __attribute__((target("avx2,fma"), no_sanitize("address", "thread", "undefined")))

FLASHLANE_TILE_ARITHMETIC void Expand(const uint8_t* row, Pairs* pairs) {
  for (int half = 0; half < kLanes; half += 8) {
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(row + 4 * half));
    const __m256i odd_bits = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
    _mm256_store_ps(pairs->even + half, _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)));
    _mm256_store_ps(pairs->odd + half, _mm256_castsi256_ps(_mm256_and_si256(both, odd_bits)));
  }
}

// c += a * b, `shape` being that of c and `depth` the rows of b. The even and the odd products are
// summed apart and from zero, each with one rounding, and meet before they meet c.
FLASHLANE_TILE_ARITHMETIC __attribute__((noinline)) void MultiplyAdd(const Tile& a, const Tile& b,
                                                                     Shape shape, int depth,
                                                                     Tile* c) {
  Pairs b_pairs[kMaxRows];
  for (int k = 0; k < depth; ++k) Expand(b.bytes[k], &b_pairs[k]);
  for (int m = 0; m < shape.rows; ++m) {
    Pairs a_pairs;
    Expand(a.bytes[m], &a_pairs);
    __m256 even[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 odd[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int k = 0; k < depth; ++k) {
      const __m256 a_even = _mm256_set1_ps(a_pairs.even[k]);
      const __m256 a_odd = _mm256_set1_ps(a_pairs.odd[k]);
      for (int half = 0; half < 2; ++half) {
        const float* b_even = b_pairs[k].even + 8 * half;
        const float* b_odd = b_pairs[k].odd + 8 * half;
        even[half] = _mm256_fmadd_ps(a_even, _mm256_load_ps(b_even), even[half]);
        odd[half] = _mm256_fmadd_ps(a_odd, _mm256_load_ps(b_odd), odd[half]);
      }
    }
    alignas(32) float sum[kLanes];
    for (int half = 0; half < 2; ++half) {
      const float* row = reinterpret_cast<const float*>(c->bytes[m]) + 8 * half;
      const __m256 products = _mm256_add_ps(even[half], odd[half]);
      _mm256_store_ps(sum + 8 * half, _mm256_add_ps(_mm256_load_ps(row), products));
    }
    // Only the shape: an infinite a times the zeros beside b is NaN.
    std::memcpy(c->bytes[m], sum, static_cast<size_t>(shape.colsb));
  }
}

Fault Product(const AmxInstruction& instruction) {
  const int c = instruction.reg, a = instruction.rm, b = instruction.vvvv;
  if (a == b || a == c || b == c) return Undefined("tdpbf16ps: the same tile twice");
  for (const int tile : {c, a, b}) {
    const Fault fault = CheckDwords(tile);
    if (fault.message) return fault;
  }
  const Shape* shapes = state.shapes;
  if (shapes[c].rows != shapes[a].rows) return Undefined("tdpbf16ps: rows of c and a differ");
  if (shapes[c].colsb != shapes[b].colsb) return Undefined("tdpbf16ps: columns of c and b differ");
  if (shapes[a].colsb / 4 != shapes[b].rows) {
    return Undefined("tdpbf16ps: columns of a are not the rows of b");
  }
  // Traps masked, round to nearest, denormals are zero on the way in and out, whatever the
  // caller's.
  constexpr unsigned kMasked = 0x1F80, kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned control = _mm_getcsr();
  _mm_setcsr(kMasked | kFlushToZero | kDenormalsAreZero);
  MultiplyAdd(state.tiles[a], state.tiles[b], shapes[c], shapes[b].rows, &state.tiles[c]);
  _mm_setcsr(control);
  Count(counts.products);
  return {};
}

}  // namespace

AmxFault ExecuteAmxInstruction(const AmxInstruction& instruction) {
  switch (instruction.op) {
    case Op::kLoadConfig:
      return LoadConfig(instruction.address);
    case Op::kStoreConfig:
      StoreConfig(instruction.address);
      return {};
    case Op::kRelease:
      Release();
      return {};
    case Op::kZero:
      return Zero(instruction.reg);
    case Op::kLoad:
      return Load(instruction);
    case Op::kStore:
      return Store(instruction);
    case Op::kProduct:
      return Product(instruction);
  }
  return {};
}

const AmxEmulatorCounts& GetAmxEmulatorCounts() { return counts; }

}  // namespace flashlane::testing

#endif
