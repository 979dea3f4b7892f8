#include "dispatch/dtype.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "hwy/base.h"

namespace flashlane {
namespace {

struct NamedDType {
  DType dtype;
  const char* lower;
};

constexpr std::array<NamedDType, 8> kNames = {{{DType::kF32, "f32"},
                                               {DType::kF64, "f64"},
                                               {DType::kBF16, "bf16"},
                                               {DType::kF16, "f16"},
                                               {DType::kBool, "bool"},
                                               {DType::kI32, "i32"},
                                               {DType::kI64, "i64"},
                                               {DType::kU32, "u32"}}};

bool EqualsLower(std::string_view name, std::string_view lower) {
  if (name.size() != lower.size()) return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != lower[i]) return false;
  }
  return true;
}

template <typename From, typename To>
void ConvertAll(const void* src, void* dst, std::int64_t n) {
  const From* from = static_cast<const From*>(src);
  To* to = static_cast<To*>(dst);
  for (std::int64_t i = 0; i < n; ++i) to[i] = hwy::ConvertScalarTo<To>(from[i]);
}

template <typename From>
void ConvertFrom(const void* src, void* dst, DType to, std::int64_t n) {
  switch (to) {
    case DType::kF32:
      return ConvertAll<From, float>(src, dst, n);
    case DType::kF64:
      return ConvertAll<From, double>(src, dst, n);
    case DType::kBF16:
      return ConvertAll<From, hwy::bfloat16_t>(src, dst, n);
    case DType::kF16:
      return ConvertAll<From, hwy::float16_t>(src, dst, n);
    default:
      return;
  }
}

}  // namespace

std::optional<DType> ParseDType(std::string_view name) noexcept {
  for (const NamedDType& entry : kNames) {
    if (EqualsLower(name, entry.lower)) return entry.dtype;
  }
  return std::nullopt;
}

const char* LowerDTypeName(DType dtype) noexcept {
  for (const NamedDType& entry : kNames) {
    if (entry.dtype == dtype) return entry.lower;
  }
  return "?";
}

bool ConvertElements(const void* src, DType from, void* dst, DType to, std::int64_t n) noexcept {
  if (!IsAttentionDType(from) || !IsAttentionDType(to)) return false;
  if (n <= 0) return true;
  if (from == to) {
    // Bits, not values: a value copy may quieten a signalling NaN.
    std::memcpy(dst, src, static_cast<std::size_t>(n) * DTypeSize(from));
    return true;
  }
  switch (from) {
    case DType::kF32:
      ConvertFrom<float>(src, dst, to, n);
      break;
    case DType::kF64:
      ConvertFrom<double>(src, dst, to, n);
      break;
    case DType::kBF16:
      ConvertFrom<hwy::bfloat16_t>(src, dst, to, n);
      break;
    default:
      ConvertFrom<hwy::float16_t>(src, dst, to, n);
      break;
  }
  return true;
}

double UnitRoundoff(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

double RoundingError(DType dtype, double value) noexcept {
  double denormal = 0x1p-150;
  if (dtype == DType::kF64) denormal = 0.0;  // half the smallest is not representable
  if (dtype == DType::kBF16) denormal = 0x1p-134;
  if (dtype == DType::kF16) denormal = 0x1p-25;
  return UnitRoundoff(dtype) * std::abs(value) + denormal;
}

}  // namespace flashlane
