// Whole numbers of 128 bits: what products of tensor sizes need.
#ifndef FLASHLANE_DISPATCH_WIDE_H_
#define FLASHLANE_DISPATCH_WIDE_H_

#include <cstdint>
#include <limits>

namespace flashlane {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

inline constexpr Uint128 kMaxUint128 = ~Uint128{0};

constexpr Uint128 SaturatingSum128(Uint128 a, Uint128 b) {
  Uint128 sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMaxUint128 : sum;
}

constexpr Uint128 SaturatingProduct128(Uint128 a, Uint128 b) {
  Uint128 product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMaxUint128 : product;
}

constexpr uint64_t Saturated64(Uint128 value) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return value > kMax ? kMax : static_cast<uint64_t>(value);
}

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_WIDE_H_
