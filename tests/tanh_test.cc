// The tanh of softcap on every target: what tanh-inl.h states, exhaustively in f32 and by samples
// in f64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/target.h"
#include "kernels/simd_config.h"
#include "tests/support/numbers.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/tanh_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/tanh-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

template <typename C>
void TanhOf(const C* x, size_t count, C* y) {
  const Tag<C> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(Tanh(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

void TanhF32(const float* x, size_t count, float* y) { TanhOf(x, count, y); }
void TanhF64(const double* x, size_t count, double* y) { TanhOf(x, count, y); }
double TanhUlps() { return kTanhMaxUlps; }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {
namespace {

HWY_EXPORT(TanhF32);
HWY_EXPORT(TanhF64);
HWY_EXPORT(TanhUlps);

using testing::UlpAt;

constexpr size_t kChunk = 1024;  // a multiple of every vector

class TanhTest : public ::testing::TestWithParam<Target> {
 protected:
  void Of(const float* x, float* y) const {
    FLASHLANE_DISPATCH(TanhF32, GetParam().bit)(x, kChunk, y);
  }
  void Of(const double* x, double* y) const {
    FLASHLANE_DISPATCH(TanhF64, GetParam().bit)(x, kChunk, y);
  }
  double MaxUlps() const { return FLASHLANE_DISPATCH(TanhUlps, GetParam().bit)(); }

  // tanh of x and of -x, which must be its negative.
  template <typename C>
  void OfBoth(const std::vector<C>& x, std::vector<C>& y) const {
    std::vector<C> negative(kChunk), of_negative(kChunk);
    for (size_t i = 0; i < kChunk; ++i) negative[i] = -x[i];
    Of(x.data(), y.data());
    Of(negative.data(), of_negative.data());
    size_t even = 0;
    for (size_t i = 0; i < kChunk; ++i) even += y[i] == -of_negative[i] ? 0 : 1;
    ASSERT_EQ(even, 0U) << x[0];
  }
};

// Every f32 from the smallest to where tanh has long been 1; only its beginning, where tanh(x) is
// x, by samples.
TEST_P(TanhTest, ErrorInF32) {
  constexpr float kAlmostLinear = 0x1p-14f;  // x^2 / 3 is below a hundredth of the last place
  constexpr uint32_t kEnd = 0x41200000;      // 10
  double worst = 0;
  std::vector<float> x(kChunk), y(kChunk);
  uint32_t stride = 251;
  for (uint32_t bits = 1; bits < kEnd; bits += kChunk * stride) {
    for (uint32_t i = 0; i < kChunk; ++i) {
      const uint32_t at = std::min(bits + i * stride, kEnd);
      std::memcpy(&x[i], &at, sizeof at);
    }
    OfBoth(x, y);
    for (size_t i = 0; i < kChunk; ++i) {
      const double exact = std::tanh(static_cast<double>(x[i]));
      worst = std::max(worst, std::fabs(y[i] - exact) / UlpAt<float>(exact));
      ASSERT_LE(y[i], 1.0f);
    }
    if (x.back() >= kAlmostLinear) stride = 1;
  }
  EXPECT_LE(worst, MaxUlps());
  EXPECT_GE(worst, 0.5);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST_P(TanhTest, ErrorInF64) {
  double worst = 0;
  std::vector<double> x(kChunk), y(kChunk);
  for (int chunk = 0; chunk < 4000; ++chunk) {
    for (size_t i = 0; i < kChunk; ++i) {
      const double at = static_cast<double>(chunk) * kChunk + static_cast<double>(i);
      const double unit = std::fmod(at * 0.6180339887498949, 1.0);
      x[i] = chunk % 2 == 0 ? 25.0 * unit : std::exp2(-100.0 * unit);
    }
    OfBoth(x, y);
    for (size_t i = 0; i < kChunk; ++i) {
      const long double exact = std::tanh(static_cast<long double>(x[i]));
      const auto error = static_cast<double>(std::fabs(y[i] - exact));
      worst = std::max(worst, error / UlpAt<double>(static_cast<double>(exact)));
      ASSERT_LE(y[i], 1.0);
    }
  }
  EXPECT_LE(worst, MaxUlps());
  EXPECT_GE(worst, 0.5);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST_P(TanhTest, SpecialValues) {
  const auto check = [&](auto zero) {
    using C = decltype(zero);
    constexpr C kInf = std::numeric_limits<C>::infinity();
    constexpr C kMax = std::numeric_limits<C>::max();
    const std::vector<C> special = {C{0}, C{-0.0}, kInf,  -kInf,
                                    kMax, -kMax,   C{20}, std::numeric_limits<C>::quiet_NaN()};
    std::vector<C> x(kChunk, C{0}), y(kChunk);
    std::copy(special.begin(), special.end(), x.begin());
    Of(x.data(), y.data());
    EXPECT_TRUE(y[0] == 0 && !std::signbit(y[0]));
    EXPECT_TRUE(y[1] == 0 && std::signbit(y[1]));
    EXPECT_EQ(y[2], C{1});
    EXPECT_EQ(y[3], C{-1});
    EXPECT_EQ(y[4], C{1});
    EXPECT_EQ(y[5], C{-1});
    EXPECT_EQ(y[6], C{1});
    EXPECT_TRUE(std::isnan(y[7]));
  };
  check(0.0f);
  check(0.0);
}

INSTANTIATE_TEST_SUITE_P(All, TanhTest, ::testing::ValuesIn(SupportedTargetList()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace flashlane::kernels
#endif  // HWY_ONCE
