// The softmax of a few rows against sixteen keys (StreamShape), in natural units: weights
// are exp2((s - m) * log2(e)) <= 1, m follows every new maximum.

#if defined(FLASHLANE_KERNELS_STREAM_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_SOFTMAX_INL_H_
#undef FLASHLANE_KERNELS_STREAM_SOFTMAX_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/exp2-inl.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/tanh-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// What changes scores between the product and the softmax; per-score arrays as Shape lays them out.
template <typename C>
struct StreamTerms {
  C scale;
  C softcap = 0;                // 0 = off
  C scale_by_softcap = 0;       // scale / softcap, finite
  const C* additive = nullptr;  // null: none; -inf hides the key
};

// s = scale * s -> softcap -> + ALiBi, bias and mask.
template <class Shape, typename C = typename Shape::C>
HWY_NOINLINE void ApplyStreamTerms(const StreamTerms<C>& terms, C* scores) {
  const Tag<C> d;
  using V = hn::Vec<Tag<C>>;
  const V minus_inf = hn::Set(d, -kInfinity<C>);
  const V factor = hn::Set(d, terms.softcap != 0 ? terms.scale_by_softcap : terms.scale);
  for (size_t i = 0; i < Shape::kScores; i += Shape::kLanes) {
    V s = hn::Mul(hn::Load(d, scores + i), factor);
    if (terms.softcap != 0) s = hn::Mul(hn::Set(d, terms.softcap), Tanh(d, s));
    if (terms.additive != nullptr) {
      const V term = hn::Load(d, terms.additive + i);
      s = hn::IfThenElse(hn::Eq(term, minus_inf), minus_inf, hn::Add(s, term));
    }
    hn::Store(s, d, scores + i);
  }
}

// The rows of one kv head; per-sum arrays [Shape::kSums], as the scores of a register tile lie.
template <typename C>
struct StreamState {
  C* m;        // the row's maximum so far; +inf in unused lanes, whose weights then are 0
  C* l;        // partial sums of the weights, as the product with V sees them
  C* exact_l;  // of the weights before they are rounded for it; null where they are not
};

// Largest scores per lane of a register tile; returns whether any is above m.
template <class Shape, typename C = typename Shape::C>
HWY_INLINE bool LargestScores(const C* scores, const C* m, C* largest) {
  const Tag<C> d;
  auto grows = hn::MaskFalse(d);
  HWY_UNROLL(4)
  for (size_t lane = 0; lane < Shape::kSums; lane += Shape::kLanes) {
    auto max = hn::Set(d, -kInfinity<C>);
    for (size_t i = lane; i < Shape::kScores; i += Shape::kSums) {
      max = hn::Max(hn::Load(d, scores + i), max);  // a NaN is dropped where Max allows it
    }
    grows = hn::Or(grows, hn::Gt(max, hn::Load(d, m + lane)));
    hn::Store(max, d, largest + lane);
  }
  return !hn::AllFalse(d, grows);
}

// Lets m, l and o follow the maxima of a step.
template <class Shape, typename C = typename Shape::C>
HWY_NOINLINE void RescaleRows(const StreamState<C>& state, const C* largest, int64_t o_stride,
                              C* o) {
  const Tag<C> d;
  for (size_t r = 0; r < Shape::kRows; ++r) {
    const size_t begin = r * Shape::kKeys, end = begin + Shape::kKeys;
    const C old_m = state.m[begin];
    C m = old_m;
    for (size_t i = begin; i < end; ++i) m = largest[i] > m ? largest[i] : m;
    if (m == old_m) continue;
    const C shift = (old_m - m) * static_cast<C>(kLog2E);
    const auto scale = WeightExp2(d, hn::Set(d, shift));
    const C one = hn::GetLane(scale);
    for (size_t i = begin; i < end; ++i) {
      state.m[i] = m;
      state.l[i] *= one;
      if (state.exact_l != nullptr) state.exact_l[i] *= one;
    }
    C* row = o + static_cast<int64_t>(r) * o_stride;
    for (int64_t i = 0; i < o_stride; i += static_cast<int64_t>(Shape::kLanes)) {
      hn::Store(hn::Mul(hn::Load(d, row + i), scale), d, row + i);
    }
  }
}

// Scores to weights, summed per lane.
template <class Unit, class Shape, typename C = typename Shape::C>
HWY_NOINLINE void WeighStep(const StreamState<C>& state, const C* scores,
                            typename Unit::Weight* weights) {
  constexpr WeightPrecision kPrecision =
      Unit::kRoundsWeights ? WeightPrecision::kHalf : WeightPrecision::kFull;
  using V = hn::Vec<Tag<C>>;
  const Tag<C> d;
  const V log2e = hn::Set(d, static_cast<C>(kLog2E));
  HWY_UNROLL(4)
  for (size_t lane = 0; lane < Shape::kSums; lane += Shape::kLanes) {
    const V m = hn::Load(d, state.m + lane);
    // A row that has seen nothing yet: -inf - 0 stays -inf, -inf - -inf would be NaN.
    const V base = hn::IfThenZeroElse(hn::Eq(m, hn::Set(d, -kInfinity<C>)), m);
    V sum = hn::Load(d, state.l + lane);
    V exact = Unit::kRoundsWeights ? hn::Load(d, state.exact_l + lane) : hn::Zero(d);
    constexpr size_t kLockStep = std::min(kVectorsInLockStep, Shape::kTiles);
    for (size_t i = lane; i < Shape::kScores; i += kLockStep * Shape::kSums) {
      V p[kLockStep];
      HWY_UNROLL(4)
      for (size_t j = 0; j < kLockStep; ++j) {
        p[j] = hn::Mul(hn::Sub(hn::Load(d, scores + i + j * Shape::kSums), base), log2e);
      }
      WeightExp2<kPrecision>(d, p);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kLockStep; ++j) {
        typename Unit::Weight* to = weights + i + j * Shape::kSums;
        Unit::StoreWeights(p[j], to);
        if constexpr (Unit::kRoundsWeights) {
          exact = hn::Add(exact, p[j]);
          sum = hn::Add(sum, LoadPromoted(d, to));
        } else {
          sum = hn::Add(sum, p[j]);
        }
      }
    }
    hn::Store(sum, d, state.l + lane);
    if constexpr (Unit::kRoundsWeights) hn::Store(exact, d, state.exact_l + lane);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_SOFTMAX_INL_H_
