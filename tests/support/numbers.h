// Numbers that tests share.
#ifndef FLASHLANE_TESTS_SUPPORT_NUMBERS_H_
#define FLASHLANE_TESTS_SUPPORT_NUMBERS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace flashlane::testing {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

// Worth of the last place of a C as large as `exact`, which is positive. By the bits of its
// exponent: the exhaustive tests ask four billion times.
template <typename C>
double UlpAt(double exact) {
  uint64_t bits = 0;
  std::memcpy(&bits, &exact, sizeof bits);
  bits &= uint64_t{0x7FF} << 52;
  double power = 0;
  std::memcpy(&power, &bits, sizeof power);
  return std::max(power * static_cast<double>(std::numeric_limits<C>::epsilon()),
                  static_cast<double>(std::numeric_limits<C>::denorm_min()));
}

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_NUMBERS_H_
