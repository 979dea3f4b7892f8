// Asks for the rows of K or V that come next.
#ifndef FLASHLANE_KERNELS_STREAM_AHEAD_H_
#define FLASHLANE_KERNELS_STREAM_AHEAD_H_

#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "hwy/cache_control.h"

namespace flashlane::kernels {

// Rows of some heads of the tokens of one step, walked through in the order of memory.
class RowWalk {
 public:
  struct Bytes {
    const uint8_t* begin;
    const uint8_t* end;
  };

  // Row of token i and head h: `width` elements at base + offsets[i] + h * head_stride. Tokens
  // whose offset is negative are left out.
  template <typename T>
  RowWalk(const T* base, const int64_t* offsets, int64_t num_tokens, int64_t num_heads,
          int64_t head_stride, int64_t width)
      : base_(reinterpret_cast<const uint8_t*>(base)),
        offsets_(offsets),
        element_bytes_(sizeof(T)),
        head_bytes_(head_stride * element_bytes_),
        row_bytes_(width * element_bytes_) {
    if (head_stride == width) {  // side by side: one row
      row_bytes_ *= num_heads;
      num_heads = 1;
    }
    heads_outside_ = num_tokens > 1 && offsets[1] - offsets[0] < head_stride;
    num_outer_ = heads_outside_ ? num_heads : num_tokens;
    num_inner_ = heads_outside_ ? num_tokens : num_heads;
  }

  // The next row; empty at the end.
  HWY_NOINLINE Bytes Next() {
    for (; outer_ < num_outer_; inner_ = 0, ++outer_) {
      while (inner_ < num_inner_) {
        const int64_t token = heads_outside_ ? inner_ : outer_;
        const int64_t head = heads_outside_ ? outer_ : inner_;
        ++inner_;
        if (offsets_[token] < 0) continue;
        const uint8_t* const row = base_ + offsets_[token] * element_bytes_ + head * head_bytes_;
        return {row, row + row_bytes_};
      }
    }
    return {base_, base_};
  }

 private:
  const uint8_t* base_;
  const int64_t* offsets_;
  int64_t element_bytes_;
  int64_t head_bytes_;
  int64_t row_bytes_;
  bool heads_outside_ = false;
  int64_t num_outer_ = 0;
  int64_t num_inner_ = 0;
  int64_t outer_ = 0;
  int64_t inner_ = 0;
};

// Prefetches the rows of a walk line by line as the work beside it goes on: the prefetchers of the
// machine then see streams, whatever the order of the work. To be kept in registers: a copy each
// in functions that are not inlined.
class Prefetcher {
 public:
  explicit Prefetcher(RowWalk* walk) : walk_(walk) { NextRow(); }
  Prefetcher() : step_(0) { end_ = &kNowhere + 1; }  // asks for nothing

  // The work has taken kBytes of its own rows.
  template <size_t kBytes>
  HWY_INLINE void Advance() {
    if constexpr (kBytes % kLine == 0) {
      HWY_UNROLL(16)
      for (size_t i = 0; i < kBytes / kLine; ++i) Ask();
    } else {
      due_ += kBytes;
      for (; due_ >= kLine; due_ -= kLine) Ask();
    }
  }

 private:
  static constexpr size_t kLine = 64;  // bytes: of a cache line

  HWY_INLINE void Ask() {
    hwy::Prefetch(at_);
    at_ += step_;
    if (HWY_UNLIKELY(at_ >= end_)) NextRow();
  }

  HWY_INLINE void NextRow() {
    const RowWalk::Bytes row = walk_->Next();
    at_ = row.begin;
    end_ = row.end;
    if (HWY_LIKELY(at_ != end_)) return;
    step_ = 0;  // the end: no more than the same line again and again
    ++end_;
  }

  static constexpr uint8_t kNowhere = 0;

  RowWalk* walk_ = nullptr;
  const uint8_t* at_ = &kNowhere;
  const uint8_t* end_ = nullptr;
  size_t step_ = kLine;
  size_t due_ = 0;
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_STREAM_AHEAD_H_
