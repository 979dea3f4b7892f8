// How the scores of a few rows against sixteen keys lie in vectors.

#if defined(FLASHLANE_KERNELS_STREAM_SHAPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_SHAPE_INL_H_
#undef FLASHLANE_KERNELS_STREAM_SHAPE_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_SHAPE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/key_splits.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Keys per step: sixteen sums per row fill the widest vector, and sixteen rows of K and V of eight
// heads are 128 KiB, which the L2 cache holds twice (this step and the prefetched next).
inline constexpr size_t kUnitKeys = 16;

// A register tile of the scores is kRows x kKeys sums, each a vector over the head size, that one
// or more transposed reductions turn into kSums scores: score (row, key) of a tile is number
// row * kKeys + key. Numbers past the last row are unused.
template <typename C_, size_t kRows_>
struct StreamShape {
  using C = C_;
  static constexpr size_t kRows = kRows_;
  static constexpr size_t kLanes = hn::MaxLanes(Tag<C>());
  // At least eight, for the latency of eight multiply-adds in flight. 32 registers of 128 bits hold
  // sixteen beside eight rows of q and a key: two keys for each load of q, and pairs of keys whole.
  static constexpr bool kManySmallRegisters = kNumRegisters >= 32 && kLanes * sizeof(C) == 16;
  static constexpr size_t kSums =
      std::max<size_t>(kLanes, kManySmallRegisters ? 2 * kBundleRows : kBundleRows);
  static constexpr size_t kKeys = size_t{1} << hwy::FloorLog2(kSums / kRows);
  static constexpr size_t kTiles = kUnitKeys / kKeys;
  static constexpr size_t kScores = kTiles * kSums;  // of one step

  static constexpr size_t At(size_t row, size_t key) {
    return key / kKeys * kSums + row * kKeys + key % kKeys;
  }
  // Vectors of O per row in a register tile of the second product: with the vectors of V and a
  // broadcast they fill the registers. 32 registers: 8, 8, 4, 4, 4, 4, 2, 2; 16: 4, 4, 2, 2, 2, 2,
  // 1, 1.
  static constexpr size_t kOutVectors = (kRows <= 2   ? 8
                                         : kRows <= 6 ? 4
                                                      : 2) /
                                        (kNumRegisters >= 32 ? 1 : 2);
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_SHAPE_INL_H_
