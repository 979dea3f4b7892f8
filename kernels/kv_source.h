// Where row j of K or V lives.
#ifndef FLASHLANE_KERNELS_KV_SOURCE_H_
#define FLASHLANE_KERNELS_KV_SOURCE_H_

#include <cstdint>

#include "kernels/args.h"

namespace flashlane::kernels {

// Rows at one distance from each other: a contiguous or a strided tensor.
template <typename T>
struct StridedRows {
  const T* base = nullptr;
  int64_t row_stride = 0;

  static StridedRows Of(const void* data, const RowStrides& strides, const Tile& tile,
                        const Sequence& sequence) {
    return {static_cast<const T*>(data) + tile.batch * strides.batch + tile.kv_head * strides.head +
                sequence.k_begin * strides.row,
            strides.row};
  }
  const T* Row(int64_t j) const { return base + j * row_stride; }
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_KV_SOURCE_H_
