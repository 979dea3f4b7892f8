#include "bench/tile_probes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/tile_probes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fk = kernels::HWY_NAMESPACE;

template <typename C>
inline constexpr int64_t kPanel = static_cast<int64_t>(fk::kPanelRows<C>);
template <typename C>
inline constexpr Peak kPeak = std::is_same_v<C, double> ? Peak::kF64 : Peak::kF32;

template <typename C>
std::shared_ptr<C[]> Filled(int64_t count, C value) {
  std::shared_ptr<C[]> memory = hwy::AllocateAligned<C>(static_cast<size_t>(count));
  std::fill(memory.get(), memory.get() + count, value);
  return memory;
}

// A number that the compiler does not know: the kernels know no size either.
HWY_INLINE int64_t Opaque(int64_t value) {
  hwy::PreventElision(value);
  return value;
}

// ---- register tiles

// Depth of a tile whose operands stay in L1: 16 KiB of panel at most.
inline constexpr int64_t kDepth = 64;
// A call costs nothing beside so many tiles.
inline constexpr int kTilesPerCall = 64;

template <fk::LeftLayout kLayout, size_t kRows, size_t kVecs, typename C>
HWY_NOINLINE void MultiplyTiles(const fk::Product<C>& product) {
  for (int i = 0; i < kTilesPerCall; ++i) {
    fk::MultiplyTile<kLayout, kRows, kVecs>(product, 0, fk::Accumulate::kNothing);
    hwy::PreventElision(*product.c);
  }
}

template <fk::LeftLayout kLayout, size_t kRows, size_t kVecs, typename C>
Part TilePart() {
  const auto a = Filled<C>(kDepth * kDepth, C(0.5));
  const auto b = Filled<C>(kDepth * kPanel<C>, C(0.5));
  const auto c = Filled<C>(static_cast<int64_t>(kRows) * kPanel<C>, C(0));
  Part part;
  part.peak = kPeak<C>;
  part.flops = 2.0 * kTilesPerCall * kDepth * kRows * kVecs * hn::Lanes(fk::Tag<C>());
  part.call = [a, b, c] {
    MultiplyTiles<kLayout, kRows, kVecs>(
        fk::Product<C>{a.get(), Opaque(kDepth), b.get(), Opaque(kDepth), c.get(), nullptr});
  };
  return part;
}

// ---- passes over elements

// Four vectors in lock step, relative to a base, as the softmax has them.
template <fk::WeightPrecision kWeights>
struct Exp2Step {
  template <class D, class V>
  HWY_INLINE void operator()(D d, V base, V (&x)[4]) const {
    for (V& v : x) v = hn::Sub(v, base);
    fk::WeightExp2<kWeights>(d, x);
  }
};

// As for softcap, without the division by it.
struct TanhStep {
  template <class D, class V>
  HWY_INLINE void operator()(D d, V /*base*/, V (&x)[4]) const {
    fk::Tanh(d, x);
  }
};

template <class Step, typename C>
HWY_NOINLINE void StepAll(const C* from, C* to, int64_t count) {
  const fk::Tag<C> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto base = hn::Load(d, from);
  for (int64_t i = 0; i < count; i += 4 * lanes) {
    hn::Vec<fk::Tag<C>> x[4];
    HWY_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) x[v] = hn::Load(d, from + i + v * lanes);
    Step()(d, base, x);
    HWY_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) hn::Store(x[v], d, to + i + v * lanes);
  }
}

template <class Step, typename C>
Part ElementsPart() {
  constexpr int64_t kCount = 8192 / sizeof(C);  // from and to take half of L1
  const auto from = Filled<C>(kCount, C(0));
  const auto to = Filled<C>(kCount, C(0));
  for (int64_t i = 0; i < kCount; ++i) from[i] = C(-0.01) * static_cast<C>(i);  // down to -20
  Part part;
  part.peak = kPeak<C>;
  part.elements = kCount;
  part.call = [from, to] {
    StepAll<Step>(from.get(), to.get(), kCount);
    hwy::PreventElision(to[0]);
  };
  return part;
}

// ---- the list

template <typename C, fk::LeftLayout kLayout>
void AddTiles(const std::string& layout, std::vector<PartMaker>* parts) {
  constexpr size_t kRows = kernels::kTileRows;
  const std::string name = "multiply_" + layout + (sizeof(C) == 8 ? "/f64" : "/f32");
  const std::string full = "/vecs:" + std::to_string(fk::kPanelVectors);
  if constexpr (fk::kPanelVectors > 2) {
    parts->push_back({name + "/rows:6" + full, &TilePart<kLayout, kRows, fk::kPanelVectors, C>});
  }
  parts->push_back({name + "/rows:6/vecs:2", &TilePart<kLayout, kRows, 2, C>});
  parts->push_back({name + "/rows:6/vecs:1", &TilePart<kLayout, kRows, 1, C>});
  parts->push_back({name + "/rows:4" + full, &TilePart<kLayout, 4, fk::kPanelVectors, C>});
  parts->push_back({name + "/rows:2" + full, &TilePart<kLayout, 2, fk::kPanelVectors, C>});
  parts->push_back({name + "/rows:1" + full, &TilePart<kLayout, 1, fk::kPanelVectors, C>});
}

template <typename C>
void AddComputeType(std::vector<PartMaker>* parts) {
  const std::string type = sizeof(C) == 8 ? "/f64" : "/f32";
  AddTiles<C, fk::LeftLayout::kRowMajor>("row_major", parts);
  AddTiles<C, fk::LeftLayout::kDepthMajor>("depth_major", parts);
  parts->push_back({"exp2" + type, &ElementsPart<Exp2Step<fk::WeightPrecision::kFull>, C>});
  parts->push_back({"tanh" + type, &ElementsPart<TanhStep, C>});
}

std::vector<PartMaker> AllParts() {
  std::vector<PartMaker> parts;
  AddComputeType<float>(&parts);
  AddComputeType<double>(&parts);
  parts.push_back({"exp2/half", &ElementsPart<Exp2Step<fk::WeightPrecision::kHalf>, float>});
  return parts;
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::bench {

HWY_EXPORT(AllParts);

std::vector<PartMaker> PartsOf(int64_t target) {
  std::vector<PartMaker> parts = FLASHLANE_DISPATCH(AllParts, target)();
  for (PartMaker& part : UnitPartsOf(target)) parts.push_back(std::move(part));
  return parts;
}

}  // namespace flashlane::bench
#endif  // HWY_ONCE
