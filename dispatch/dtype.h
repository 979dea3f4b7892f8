// Names of element types, and conversion between the four attention dtypes.
#ifndef FLASHLANE_DISPATCH_DTYPE_H_
#define FLASHLANE_DISPATCH_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "flashlane/tensor.h"

namespace flashlane {

// The dtype whose DTypeName is `name` in any case ("f32", "BF16", ...); nothing for other names.
std::optional<DType> ParseDType(std::string_view name) noexcept;

// DTypeName in lower case, as the command line spells it: "f32", "bf16", ...
const char* LowerDTypeName(DType dtype) noexcept;

// Converts n elements; `from` and `to` are attention dtypes and the ranges do not overlap.
// Narrowing rounds once, to nearest even (also from F64); overflow gives infinity, NaN stays NaN,
// and conversion to the same dtype copies the bits. False, and nothing written, for another dtype.
bool ConvertElements(const void* src, DType from, void* dst, DType to, std::int64_t n) noexcept;

// What rounding `value` to nearest in an attention dtype may cost: the unit roundoff times the
// value, plus half the distance between denormals.
double UnitRoundoff(DType dtype) noexcept;
double RoundingError(DType dtype, double value) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_DTYPE_H_
