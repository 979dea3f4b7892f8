#include "bench/peaks.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peaks.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/tile_dot-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/tile_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fk = kernels::HWY_NAMESPACE;

// Independent sums. 2 multiply-adds per cycle of latency 4 need 8 (Zen 4, Intel); 4 per cycle
// (Neoverse V) need 16. All of them and the operands fit the registers.
inline constexpr size_t kSums = fk::kNumRegisters >= 32 ? 24 : HWY_NATIVE_FMA ? 12 : 14;

template <class D, class V = hn::Vec<D>>
HWY_INLINE auto TotalOf(D d, const V (&sums)[kSums]) {
  V total = sums[0];
  for (size_t i = 1; i < kSums; ++i) total = hn::Add(total, sums[i]);
  return hn::ReduceSum(d, total);
}

// One round: one multiply-add per sum. The operands are unknown to the compiler and the sums start
// unlike, so that nothing can be folded. All numbers stay normal.
template <typename C>
HWY_NOINLINE C MultiplyAdds(int64_t rounds) {
  const fk::Tag<C> d;
  C one = 1;
  hwy::PreventElision(one);
  const auto a = hn::Set(d, one);
  const auto b = hn::Set(d, one * static_cast<C>(0.5));
  hn::Vec<decltype(d)> sums[kSums];
  for (size_t i = 0; i < kSums; ++i) sums[i] = hn::Set(d, one * static_cast<C>(i));
  for (int64_t r = 0; r < rounds; ++r) {
    HWY_UNROLL(24)
    for (size_t i = 0; i < kSums; ++i) sums[i] = hn::MulAdd(a, b, sums[i]);
  }
  return TotalOf(d, sums);
}

// The same where the target has no fused instruction: as many multiplications as additions, each in
// chains of its own, since a product of constants would be taken out of the loop, and one chain of
// both would be too long for 16 registers.
template <typename C>
HWY_NOINLINE C MultipliesAndAdds(int64_t rounds) {
  const fk::Tag<C> d;
  C one = 1;
  hwy::PreventElision(one);
  const auto a = hn::Set(d, one);
  const auto b = hn::Set(d, one * static_cast<C>(0.5));
  hn::Vec<decltype(d)> sums[kSums];
  for (size_t i = 0; i < kSums; ++i) sums[i] = hn::Set(d, one * static_cast<C>(i));
  for (int64_t r = 0; r < rounds; ++r) {
    HWY_UNROLL(24)
    for (size_t i = 0; i < kSums; i += 2) {
      sums[i] = hn::Mul(sums[i], a);
      sums[i + 1] = hn::Add(sums[i + 1], b);
    }
  }
  return TotalOf(d, sums);
}

template <typename C>
Probe MultiplyAdd() {
  const double operations = static_cast<double>(kSums * hn::Lanes(fk::Tag<C>()));
#if HWY_NATIVE_FMA
  return {[](int64_t rounds) { hwy::PreventElision(MultiplyAdds<C>(rounds)); }, 2 * operations};
#else
  return {[](int64_t rounds) { hwy::PreventElision(MultipliesAndAdds<C>(rounds)); }, operations};
#endif
}
Probe MultiplyAddF32() { return MultiplyAdd<float>(); }
Probe MultiplyAddF64() { return MultiplyAdd<double>(); }

#if HWY_NATIVE_DOT_BF16
HWY_NOINLINE float DotsBF16(int64_t rounds) {
  const hn::ScalableTag<float> d;
  const hn::Repartition<hwy::bfloat16_t, decltype(d)> d16;
  float one = 1;
  hwy::PreventElision(one);
  const auto a = hn::Set(d16, hwy::ConvertScalarTo<hwy::bfloat16_t>(one * 0.75f));
  const auto b = hn::Set(d16, hwy::ConvertScalarTo<hwy::bfloat16_t>(one * 0.5f));
  hn::Vec<decltype(d)> sums[kSums];
  hn::Vec<decltype(d)> rest = hn::Zero(d);  // stays 0 where the instruction adds pairs itself
  for (size_t i = 0; i < kSums; ++i) sums[i] = hn::Set(d, one * static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
    HWY_UNROLL(24)
    for (size_t i = 0; i < kSums; ++i) {
      sums[i] = hn::ReorderWidenMulAccumulate(d, a, b, sums[i], rest);
    }
  }
  sums[0] = hn::Add(sums[0], rest);
  return TotalOf(d, sums);
}

Probe DotBF16() {
  const double flops = 4.0 * static_cast<double>(kSums * hn::Lanes(hn::ScalableTag<float>()));
  return {[](int64_t rounds) { hwy::PreventElision(DotsBF16(rounds)); }, flops};
}
#else
Probe DotBF16() { return {}; }
#endif

// Panel of 64 * 256 bytes (AVX-512), 6 rows of 64 elements and the 6 rows of the result: 19 KiB at
// most of f32, 20 KiB of f64, less than any L1.
inline constexpr int64_t kTileDepth = 64;

template <typename C>
HWY_NOINLINE void MultiplyTiles(const C* a, const C* b, C* c, int64_t rounds) {
  const fk::Product<C> product{a, kTileDepth, b, kTileDepth, c, nullptr};
  for (int64_t r = 0; r < rounds; ++r) {
    fk::MultiplyTile<fk::LeftLayout::kRowMajor, kernels::kTileRows, fk::kPanelVectors>(
        product, 0, fk::Accumulate::kNothing);
    hwy::PreventElision(*c);
  }
}

template <typename C>
Probe Tile() {
  constexpr size_t kDepth = static_cast<size_t>(kTileDepth);
  constexpr size_t kLeft = kernels::kTileRows * kDepth;
  constexpr size_t kRight = kDepth * fk::kPanelRows<C>;
  constexpr size_t kResult = kernels::kTileRows * fk::kPanelRows<C>;
  // b first: it and c must be aligned to vectors.
  std::shared_ptr<C[]> memory = hwy::AllocateAligned<C>(kRight + kResult + kLeft);
  std::fill(memory.get(), memory.get() + kRight + kResult + kLeft, static_cast<C>(0.5));
  const double flops = 2.0 * static_cast<double>(kLeft * fk::kPanelRows<C>);
  return {[memory](int64_t rounds) {
            C* b = memory.get();
            MultiplyTiles<C>(b + kRight + kResult, b, b + kRight, rounds);
          },
          flops};
}

#if FLASHLANE_HAS_PAIRS
Probe DotTile() {
  using Panel = fk::DotTiles::Panel;
  constexpr int64_t kLeft = static_cast<int64_t>(kernels::kTileRows) * kTileDepth;
  constexpr int64_t kRight = kTileDepth * Panel::kRows;
  constexpr int64_t kResult = static_cast<int64_t>(kernels::kTileRows) * Panel::kRows;
  constexpr size_t kWords = static_cast<size_t>(kRight + kResult + kLeft);
  std::shared_ptr<uint32_t[]> memory = hwy::AllocateAligned<uint32_t>(kWords);
  std::fill(memory.get(), memory.get() + kWords, 0x3E3E3E3Eu);  // two bf16 of 0.19
  return {[memory](int64_t rounds) {
            uint32_t* b = memory.get();
            float* c = reinterpret_cast<float*>(b + kRight);
            const fk::PairProduct product{b + kRight + kResult, kTileDepth, b,
                                          kTileDepth,           c,          nullptr};
            for (int64_t r = 0; r < rounds; ++r) {
              fk::DotTiles::Multiply<Panel::kVectors>(product, kernels::kTileRows,
                                                      fk::Accumulate::kNothing);
              hwy::PreventElision(*c);
            }
          },
          4.0 * static_cast<double>(kLeft * Panel::kRows)};
}
#else
Probe DotTile() { return {}; }
#endif
Probe TileF32() { return Tile<float>(); }
Probe TileF64() { return Tile<double>(); }

inline constexpr size_t kLine = 64;

// Lines [0, lines) of each of kStreams streams, kLinesAtOnce of each in turn.
template <size_t kStreams, size_t kLinesAtOnce>
HWY_NOINLINE uint8_t ReadStreams(const uint8_t* from, size_t stream_stride, size_t lines) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  // Four, so that no chain of dependent instructions limits two or three loads per cycle.
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t line = 0; line < lines; line += kLinesAtOnce) {
    HWY_UNROLL(16)
    for (size_t s = 0; s < kStreams; ++s) {
      const uint8_t* at = from + s * stream_stride + line * kLine;
      HWY_UNROLL(8)
      for (size_t i = 0; i < kLinesAtOnce * kLine; i += lanes) {
        const auto bytes = hn::Load(d, at + i);
        switch ((s * kLinesAtOnce * kLine + i) / lanes % 4) {
          case 0:
            a = hn::Or(a, bytes);
            break;
          case 1:
            b = hn::Or(b, bytes);
            break;
          case 2:
            c = hn::Or(c, bytes);
            break;
          default:
            e = hn::Or(e, bytes);
        }
      }
    }
  }
  return hn::GetLane(hn::Or(hn::Or(a, b), hn::Or(c, e)));
}

uint8_t ReadOneStream(const uint8_t* from, size_t /*stream_stride*/, size_t lines) {
  return ReadStreams<1, 8>(from, 0, lines);
}
uint8_t ReadManyStreams(const uint8_t* from, size_t stream_stride, size_t lines) {
  return ReadStreams<kManyStreams, 1>(from, stream_stride, lines);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::bench {

HWY_EXPORT(MultiplyAddF32);
HWY_EXPORT(MultiplyAddF64);
HWY_EXPORT(DotBF16);
HWY_EXPORT(DotTile);
HWY_EXPORT(TileF32);
HWY_EXPORT(TileF64);
HWY_EXPORT(ReadOneStream);
HWY_EXPORT(ReadManyStreams);

Probe MultiplyAddProbe(Precision precision, int64_t target) {
  return precision == Precision::kF32 ? FLASHLANE_DISPATCH(MultiplyAddF32, target)()
                                      : FLASHLANE_DISPATCH(MultiplyAddF64, target)();
}

Probe DotBF16Probe(int64_t target) { return FLASHLANE_DISPATCH(DotBF16, target)(); }

Probe TileProbe(Precision precision, int64_t target) {
  return precision == Precision::kF32 ? FLASHLANE_DISPATCH(TileF32, target)()
                                      : FLASHLANE_DISPATCH(TileF64, target)();
}

Probe DotTileProbe(int64_t target) { return FLASHLANE_DISPATCH(DotTile, target)(); }

std::vector<ReadLevel> ReadLevels() {
  size_t sizes[4] = {};  // by level
  for (const auto& cache : benchmark::CPUInfo::Get().caches) {
    if (cache.type == "Instruction" || cache.level < 1 || cache.level > 3) continue;
    sizes[cache.level] = static_cast<size_t>(cache.size);
  }
  const auto [none, l1, l2, l3] = sizes;
  (void)none;
  std::vector<ReadLevel> levels;
  // Half of a private cache; of the shared one what is beyond the private ones and yet small.
  if (l1 != 0) levels.push_back({"l1", l1 / 2});
  if (l2 != 0) levels.push_back({"l2", l2 / 2});
  if (l3 >= 8 * l2 && l2 != 0) levels.push_back({"l3", 4 * l2});
  // Four times what any cache could hold, within reason: virtual machines report the L3 of a whole
  // socket.
  constexpr size_t kMinDram = size_t{256} << 20, kMaxDram = size_t{1} << 30;
  levels.push_back({"dram", std::clamp(4 * std::max(l2, l3), kMinDram, kMaxDram)});
  return levels;
}

Probe ReadProbe(const ReadLevel& level, bool many_streams, int64_t target) {
  const size_t streams = many_streams ? kManyStreams : 1;
  constexpr size_t kLine = 64, kLinesAtOnce = 8;
  const size_t lines = level.bytes / streams / (kLine * kLinesAtOnce) * kLinesAtOnce;
  // One line more than needed: at a distance of whole pages all streams would share one cache set.
  const size_t stream_stride = (lines + 1) * kLine;
  std::shared_ptr<uint8_t[]> memory = hwy::AllocateAligned<uint8_t>(streams * stream_stride);
  // Memory that was never written is one shared page of zeros, and looks like L1.
  std::memset(memory.get(), 1, streams * stream_stride);
  const auto read = many_streams ? FLASHLANE_DISPATCH(ReadManyStreams, target)
                                 : FLASHLANE_DISPATCH(ReadOneStream, target);
  return {[=](int64_t rounds) {
            for (int64_t r = 0; r < rounds; ++r) {
              hwy::PreventElision(read(memory.get(), stream_stride, lines));
            }
          },
          static_cast<double>(streams * lines * kLine)};
}

}  // namespace flashlane::bench
#endif  // HWY_ONCE
