#include "dispatch/sequence_values.h"

#include <algorithm>
#include <string>

namespace flashlane {

kernels::SequenceValues SequenceValuesOf(const ConstTensorView& view, int64_t value) {
  using Type = kernels::SequenceValues::Type;
  kernels::SequenceValues values;
  values.value = value;
  if (!view.present()) return values;
  values.data = view.data;
  values.type = view.dtype == DType::kI32   ? Type::kI32
                : view.dtype == DType::kU32 ? Type::kU32
                                            : Type::kI64;
  values.stride = view.shape[0] > 1 ? view.strides[0] : 0;
  return values;
}

Status CheckSequenceValues(const NamedView& operand, int64_t count, const ValueRange& range) {
  if (Status s = CheckView(operand, 1, Inner::kAny); !s.ok()) return s;
  if (operand.view.shape[0] != count) {
    return Invalid(operand.name, "length " + std::to_string(operand.view.shape[0]) + " is not " +
                                     std::to_string(count));
  }
  const DType dtype = operand.view.dtype;
  const bool unsigned_allowed = range.low >= 0;
  if (dtype != DType::kI32 && dtype != DType::kI64 && !(dtype == DType::kU32 && unsigned_allowed)) {
    return Invalid(operand.name, std::string("dtype ") + DTypeName(dtype) +
                                     " is not one of I32, I64" + (unsigned_allowed ? ", U32" : ""));
  }
  const kernels::SequenceValues values = SequenceValuesOf(operand.view, 0);
  for (int64_t b = 0; b < count; ++b) {
    const int64_t value = values.At(b);
    if (value < range.low || value > range.high) {
      return Invalid(operand.name, "value " + std::to_string(value) + " at " + std::to_string(b) +
                                       " is not within [" + std::to_string(range.low) + ", " +
                                       std::to_string(range.high) + "]" + range.high_means);
    }
  }
  return {};
}

Status CheckCuSeqlens(const NamedView& operand, int64_t num_sequences, int64_t total) {
  if (Status s = CheckSequenceValues(operand, num_sequences + 1, {0, total}); !s.ok()) return s;
  const kernels::SequenceValues values = SequenceValuesOf(operand.view, 0);
  if (values.At(0) != 0) {
    return Invalid(operand.name, "value " + std::to_string(values.At(0)) + " at 0 is not 0");
  }
  for (int64_t b = 0; b < num_sequences; ++b) {
    if (values.At(b + 1) < values.At(b)) {
      return Invalid(operand.name, "value " + std::to_string(values.At(b + 1)) + " at " +
                                       std::to_string(b + 1) + " is below the one before it, " +
                                       std::to_string(values.At(b)));
    }
  }
  return {};
}

int64_t LongestOf(const kernels::SequenceValues& cu_seqlens, int64_t count) {
  int64_t longest = 0;
  for (int64_t b = 0; b < count; ++b) {
    longest = std::max(longest, cu_seqlens.At(b + 1) - cu_seqlens.At(b));
  }
  return longest;
}

}  // namespace flashlane
