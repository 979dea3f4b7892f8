// Which keys a query row may see, as intervals: causal, windows and lengths. Both bounds never
// decrease from one query to the next, so a tile's bounds are those of its first and last query.
#ifndef FLASHLANE_KERNELS_MASK_H_
#define FLASHLANE_KERNELS_MASK_H_

#include <algorithm>
#include <cstdint>

#include "kernels/args.h"

namespace flashlane::kernels {

// Keys [begin, end); empty when begin >= end.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
  int64_t size() const { return empty() ? 0 : end - begin; }
};

// The lengths and position of one sequence, and the windows: all that decides visibility but the
// boolean mask.
struct SequenceMask {
  int64_t k_len = 0;
  int64_t q_start = 0;
  int64_t window_left = kUnlimited;
  int64_t window_right = kUnlimited;
  bool clamps_positions = false;

  static SequenceMask Of(const ForwardArgs& args, const Sequence& sequence) {
    return {sequence.k_len, sequence.q_start, args.window_left, args.window_right,
            args.clamps_positions};
  }

  // Where query i stands among the keys.
  int64_t Position(int64_t i) const {
    return clamps_positions ? std::max<int64_t>(q_start + i, 0) : q_start + i;
  }

  // Keys that query i may see.
  KeyRange Visible(int64_t i) const {
    const int64_t position = Position(i);
    const int64_t first = window_left == kUnlimited ? 0 : SaturatingAdd(position, -window_left);
    const int64_t last =
        window_right == kUnlimited ? kUnlimited : SaturatingAdd(position, window_right);
    return {std::max<int64_t>(first, 0), std::min(SaturatingAdd(last, 1), k_len)};
  }

  // Smallest interval that holds every key any query of [i_begin, i_end) may see.
  KeyRange VisibleToAny(int64_t i_begin, int64_t i_end) const {
    return {Visible(i_begin).begin, Visible(i_end - 1).end};
  }

  // Keys that every query of [i_begin, i_end) may see.
  KeyRange VisibleToAll(int64_t i_begin, int64_t i_end) const {
    return {Visible(i_end - 1).begin, Visible(i_begin).end};
  }
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_MASK_H_
