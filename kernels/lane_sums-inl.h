// Sums over the lanes of several vectors at once, by one transposed reduction.

#if defined(FLASHLANE_KERNELS_LANE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_LANE_SUMS_INL_H_
#undef FLASHLANE_KERNELS_LANE_SUMS_INL_H_
#else
#define FLASHLANE_KERNELS_LANE_SUMS_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors of pairs of sums: lanes a and b of each pair of neighbours in turn.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V FoldLanes(D d, V a, V b) {
  return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
}

// Lane i of the result is the sum of the lanes of v[i]; as many vectors as a vector has lanes.
// Every round halves the vectors and what is left of each: for 16 lanes 15 additions and 31
// shuffles, against 60 and 60 for 16 sums one by one. The order of the additions is the same for
// all lanes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SumLanes(D d, const V* HWY_RESTRICT v) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  constexpr size_t kBlocks = kLanes * sizeof(hn::TFromD<D>) / 16;
  constexpr size_t kPerBlock = kLanes / kBlocks;
  // Within blocks of 128 bits: `block[i]` has in each block the sums of vectors i * kPerBlock on,
  // of that block's lanes.
  V block[kBlocks];
  HWY_UNROLL(4)
  for (size_t i = 0; i < kBlocks; ++i) {
    if constexpr (kPerBlock == 4) {
      const hn::Repartition<double, D> d64;
      const auto ab = hn::BitCast(d64, FoldLanes(d, v[4 * i], v[4 * i + 1]));
      const auto cd = hn::BitCast(d64, FoldLanes(d, v[4 * i + 2], v[4 * i + 3]));
      block[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab, cd)),
                         hn::BitCast(d, hn::InterleaveUpper(d64, ab, cd)));
    } else {
      block[i] = FoldLanes(d, v[2 * i], v[2 * i + 1]);
    }
  }
  if constexpr (kBlocks == 1) {
    return block[0];
  } else if constexpr (kBlocks == 2) {
    return hn::Add(hn::ConcatLowerLower(d, block[1], block[0]),
                   hn::ConcatUpperUpper(d, block[1], block[0]));
  } else {
    static_assert(kBlocks == 4);
    // Blocks 0 and 2 meet in one vector, 1 and 3 in the other, so that the last round leaves them
    // in order.
    const V even = hn::Add(hn::ConcatLowerLower(d, block[2], block[0]),
                           hn::ConcatUpperUpper(d, block[2], block[0]));  // 0 0 2 2
    const V odd = hn::Add(hn::ConcatLowerLower(d, block[3], block[1]),
                          hn::ConcatUpperUpper(d, block[3], block[1]));  // 1 1 3 3
    return hn::Add(hn::OddEvenBlocks(odd, even),
                   hn::SwapAdjacentBlocks(hn::OddEvenBlocks(even, odd)));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_LANE_SUMS_INL_H_
