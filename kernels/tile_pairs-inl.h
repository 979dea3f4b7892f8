// What products of bf16 pairs have in common, whichever instruction does them: operands are 32-bit
// words of two neighbours in depth, the first in the low half.

#if defined(FLASHLANE_KERNELS_TILE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_TILE_PAIRS_INL_H_
#undef FLASHLANE_KERNELS_TILE_PAIRS_INL_H_
#else
#define FLASHLANE_KERNELS_TILE_PAIRS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/tile_matmul-inl.h"

#if FLASHLANE_HAS_PAIRS

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct PairProduct {
  const uint32_t* a;   // left operand [rows][a_stride]
  int64_t a_stride;    // words
  const uint32_t* b;   // panel [depth][kRows]
  int64_t depth;       // words
  float* c;            // panel [rows][kRows]
  const float* scale;  // [kRows], for Accumulate::kScaled
};

// Rounds two rows of weights to bf16, nearest even, lane by lane as pairs.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::Repartition<hwy::bfloat16_t, D>> RoundToPairs(D d, V first, V second) {
  const hn::Repartition<hwy::bfloat16_t, D> d16;
  const hn::RebindToUnsigned<decltype(d16)> du16;
  constexpr uint16_t kHalf = static_cast<uint16_t>(hn::MaxLanes(D()));
  // The instruction leaves one row after the other.
  const auto halves = hn::BitCast(du16, hn::OrderedDemote2To(d16, first, second));
  const auto pair = hn::Iota(du16, 0);
  const auto at =
      hn::Add(hn::ShiftRight<1>(pair),
              hn::IfThenElseZero(hn::Ne(hn::And(pair, hn::Set(du16, 1)), hn::Zero(du16)),
                                 hn::Set(du16, kHalf)));
  (void)d;
  return hn::BitCast(d16, hn::TableLookupLanes(halves, hn::IndicesFromVec(du16, at)));
}

// sum + both halves of each pair: the sum of the rounded weights, rounded and flushed as a product
// with V = 1 is.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AddPairs(D d, hn::Vec<hn::Repartition<hwy::bfloat16_t, D>> pairs, V sum) {
  const hn::Repartition<hwy::bfloat16_t, D> d16;
  V none = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(
      d, pairs, hn::Set(d16, hwy::ConvertScalarTo<hwy::bfloat16_t>(1.0f)), sum, none);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_TILE_PAIRS_INL_H_
