// One integer per sequence: k_len, q_start, cu_seqlens.
#ifndef FLASHLANE_DISPATCH_SEQUENCE_VALUES_H_
#define FLASHLANE_DISPATCH_SEQUENCE_VALUES_H_

#include <cstdint>

#include "dispatch/view.h"
#include "flashlane/status.h"
#include "kernels/args.h"

namespace flashlane {

// Positions stay below 2^62 in magnitude: q_start + i and j - a cannot overflow.
inline constexpr int64_t kMaxPosition = int64_t{1} << 61;

struct ValueRange {
  int64_t low;
  int64_t high;
  const char* high_means = "";  // completes the message: ", the keys of k"
};

// The caller's array, or `value` for every sequence where the view is absent.
kernels::SequenceValues SequenceValuesOf(const ConstTensorView& view, int64_t value);

// [count] integers: I32 or I64, or U32 where `low` is not negative; each within the range.
Status CheckSequenceValues(const NamedView& operand, int64_t count, const ValueRange& range);

// [num_sequences + 1] integers: 0 = cu[0] <= cu[1] <= ... <= cu[num_sequences] <= total.
Status CheckCuSeqlens(const NamedView& operand, int64_t num_sequences, int64_t total);

// The longest sequence of checked cu_seqlens.
int64_t LongestOf(const kernels::SequenceValues& cu_seqlens, int64_t count);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_SEQUENCE_VALUES_H_
