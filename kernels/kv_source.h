// Where row j of K or V lives.
#ifndef FLASHLANE_KERNELS_KV_SOURCE_H_
#define FLASHLANE_KERNELS_KV_SOURCE_H_

#include <algorithm>
#include <cstdint>

#include "kernels/args.h"

namespace flashlane::kernels {

// The rows of one kv head of one sequence: at one distance from each other, or in the blocks of a
// paged cache. One type for both, because a row is looked up once per tile and key block, which is
// nothing beside the work on it; a type each would compile every kernel twice.
template <typename T>
struct KvRows {
  const T* base = nullptr;
  int64_t row_stride = 0;
  int64_t block_stride = 0;
  int64_t block_size = 1;
  const uint32_t* table = nullptr;  // null: not paged
  int64_t table_stride = 0;

  static KvRows Of(const ForwardArgs& args, const void* data, const RowStrides& strides,
                   int64_t batch, int64_t kv_head, const Sequence& sequence) {
    KvRows rows;
    rows.base = static_cast<const T*>(data) + kv_head * strides.head;
    rows.row_stride = strides.row;
    const BlockTable& blocks = args.block_table;
    if (blocks.data == nullptr) {
      rows.base += batch * strides.batch + sequence.k_begin * strides.row;
      return rows;
    }
    rows.block_stride = strides.batch;
    rows.block_size = blocks.block_size;
    rows.table = blocks.data + batch * blocks.batch;
    rows.table_stride = blocks.col;
    return rows;
  }

  // Rows at one distance can be read in place.
  bool strided() const { return table == nullptr; }

  const T* Row(int64_t j) const { return base + Offset(j); }
  // Of row j from `base`: the same for all heads.
  int64_t Offset(int64_t j) const {
    if (strided()) return j * row_stride;
    const int64_t block = j / block_size;
    return static_cast<int64_t>(table[block * table_stride]) * block_stride +
           (j - block * block_size) * row_stride;
  }
  // Of rows [begin, end), looked up once per block.
  void Offsets(int64_t begin, int64_t end, int64_t* offsets) const {
    while (begin < end) {
      const int64_t in_block = strided() ? end - begin : block_size - begin % block_size;
      const int64_t run_end = std::min(end, begin + in_block);
      for (int64_t offset = Offset(begin); begin < run_end; ++begin, offset += row_stride) {
        *offsets++ = offset;
      }
    }
  }
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_KV_SOURCE_H_
