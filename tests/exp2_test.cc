// The weights' 2^x on every target: its largest error, exhaustively in f32 and by samples in f64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/target.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/exp2_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/online_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

template <typename C>
void Exp2Of(const C* x, size_t count, C* y) {
  const hn::ScalableTag<C> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(WeightExp2(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

void Exp2F32(const float* x, size_t count, float* y) { Exp2Of(x, count, y); }
void Exp2F64(const double* x, size_t count, double* y) { Exp2Of(x, count, y); }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {
namespace {

HWY_EXPORT(Exp2F32);
HWY_EXPORT(Exp2F64);

constexpr size_t kChunk = 1024;  // a multiple of every vector

class Exp2Test : public ::testing::TestWithParam<Target> {
 protected:
  void Of(const float* x, float* y) const {
    FLASHLANE_DISPATCH(Exp2F32, GetParam().bit)(x, kChunk, y);
  }
  void Of(const double* x, double* y) const {
    FLASHLANE_DISPATCH(Exp2F64, GetParam().bit)(x, kChunk, y);
  }

  // Largest error of y over the chunk, in units of the last place of the exact result.
  template <typename C>
  static double WorstUlps(const C* x, const C* y) {
    double worst = 0;
    for (size_t i = 0; i < kChunk; ++i) {
      // In a wider type the library's exp2 is exact as far as C can tell.
      const long double exact = sizeof(C) == 4 ? std::exp2(static_cast<double>(x[i]))
                                               : std::exp2(static_cast<long double>(x[i]));
      const long double ulp =
          std::ldexp(1.0L, std::ilogb(exact)) * std::numeric_limits<C>::epsilon();
      worst = std::max(worst, static_cast<double>(std::fabs(y[i] - exact) / ulp));
    }
    return worst;
  }
};

// Every f32 in (-126, -2^-25]; nearer to 0 the result rounds to 1.
TEST_P(Exp2Test, ErrorInF32) {
  const auto bits_of = [](float x) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
  };
  double worst = 0;
  std::vector<float> x(kChunk), y(kChunk);
  const uint32_t end = bits_of(-126.0f);
  for (uint32_t bits = bits_of(-0x1p-25f); bits < end; bits += kChunk) {
    for (uint32_t i = 0; i < kChunk; ++i) {
      const uint32_t at = std::min(bits + i, end - 1);
      std::memcpy(&x[i], &at, sizeof at);
    }
    Of(x.data(), y.data());
    worst = std::max(worst, WorstUlps(x.data(), y.data()));
  }
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LE(worst, GetParam().bit >= HWY_SSE2 ? 2.0 : 1.0);  // SSE2 rounds every product
}

TEST_P(Exp2Test, ErrorInF64) {
  double worst = 0;
  std::vector<double> x(kChunk), y(kChunk);
  for (int chunk = 0; chunk < 2000; ++chunk) {
    for (size_t i = 0; i < kChunk; ++i) {
      const double at = static_cast<double>(chunk) * kChunk + static_cast<double>(i);
      x[i] = -1022.0 * std::fmod(at * 0.6180339887498949, 1.0);
      if (chunk % 2 == 0) x[i] /= 1022.0;
    }
    Of(x.data(), y.data());
    worst = std::max(worst, WorstUlps(x.data(), y.data()));
  }
  EXPECT_LE(worst, GetParam().bit >= HWY_SSE2 ? 2.0 : 1.0);
}

template <typename C>
std::vector<C> Exp2OfAll(const std::vector<C>& values,
                         const std::function<void(const C*, C*)>& of) {
  std::vector<C> x(kChunk, C{0}), y(kChunk);
  std::copy(values.begin(), values.end(), x.begin());
  of(x.data(), y.data());
  y.resize(values.size());
  return y;
}

TEST_P(Exp2Test, SpecialValues) {
  const auto check = [&](auto zero, auto lowest_exponent) {
    using C = decltype(zero);
    constexpr C kInf = std::numeric_limits<C>::infinity();
    const std::vector<C> x = {C{0},
                              C{-0.0},
                              C{1},
                              C{8},
                              C{-1},
                              lowest_exponent,
                              lowest_exponent - 2,
                              -std::numeric_limits<C>::max(),
                              -kInf,
                              std::numeric_limits<C>::quiet_NaN()};
    const std::vector<C> y = Exp2OfAll<C>(x, [&](const C* from, C* to) { Of(from, to); });
    EXPECT_EQ(y[0], C{1});
    EXPECT_EQ(y[1], C{1});
    EXPECT_NEAR(y[2], C{2}, 3e-7);
    EXPECT_NEAR(y[3], C{256}, 4e-5);
    EXPECT_NEAR(y[4], C{0.5}, 1e-7);
    EXPECT_EQ(y[5], std::numeric_limits<C>::min());
    EXPECT_EQ(y[6], C{0});
    EXPECT_EQ(y[7], C{0});
    EXPECT_EQ(y[8], C{0});
    EXPECT_TRUE(std::isnan(y[9]));
  };
  check(0.0f, -126.0f);
  check(0.0, -1022.0);
}

INSTANTIATE_TEST_SUITE_P(All, Exp2Test, ::testing::ValuesIn(SupportedTargetList()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace flashlane::kernels
#endif  // HWY_ONCE
