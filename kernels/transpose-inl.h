// Square transposes in registers: rows of a tensor become lanes of a panel and back.

#if defined(FLASHLANE_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_TRANSPOSE_INL_H_
#undef FLASHLANE_KERNELS_TRANSPOSE_INL_H_
#else
#define FLASHLANE_KERNELS_TRANSPOSE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Transposes the square of v[0..N), N lanes each, in log2(N) rounds of N interleavings: each round
// moves one bit of the row number into the lane number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void Transpose(D d, V* HWY_RESTRICT v) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  HWY_UNROLL(4)
  for (size_t round = 1; round < kLanes; round *= 2) {
    V t[kLanes];
    HWY_UNROLL(8)
    for (size_t i = 0; i < kLanes / 2; ++i) {
      t[2 * i] = hn::InterleaveWholeLower(d, v[i], v[i + kLanes / 2]);
      t[2 * i + 1] = hn::InterleaveWholeUpper(d, v[i], v[i + kLanes / 2]);
    }
    HWY_UNROLL(16)
    for (size_t i = 0; i < kLanes; ++i) v[i] = t[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_TRANSPOSE_INL_H_
