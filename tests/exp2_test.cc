// The weights' 2^x on every target: what exp2-inl.h states, exhaustively in f32 and by samples in
// f64.

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
#include "kernels/block_sizes.h"
#include "kernels/simd_config.h"
#include "tests/support/numbers.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/exp2_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

// Four vectors in lock step; `count` is a multiple of them.
template <WeightPrecision kPrecision, typename C>
void Exp2Of(const C* x, size_t count, C* y) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < count; i += 4 * lanes) {
    hn::Vec<Tag<C>> v[4];
    for (size_t k = 0; k < 4; ++k) v[k] = hn::LoadU(d, x + i + k * lanes);
    WeightExp2<kPrecision>(d, v);
    for (size_t k = 0; k < 4; ++k) hn::StoreU(v[k], d, y + i + k * lanes);
  }
}

void Exp2F32(const float* x, size_t count, float* y) {
  Exp2Of<WeightPrecision::kFull>(x, count, y);
}
void Exp2HalfF32(const float* x, size_t count, float* y) {
  Exp2Of<WeightPrecision::kHalf>(x, count, y);
}
void Exp2F64(const double* x, size_t count, double* y) {
  Exp2Of<WeightPrecision::kFull>(x, count, y);
}

// One vector at a time: the same bits.
void SingleExp2F32(const float* x, size_t count, float* y) {
  const Tag<float> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(WeightExp2(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

double FullUlps() { return kExp2MaxUlps; }
double HalfRelative() { return kHalfExp2MaxRelative; }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {
namespace {

HWY_EXPORT(Exp2F32);
HWY_EXPORT(Exp2HalfF32);
HWY_EXPORT(Exp2F64);
HWY_EXPORT(SingleExp2F32);
HWY_EXPORT(FullUlps);
HWY_EXPORT(HalfRelative);

using testing::UlpAt;

constexpr size_t kChunk = 1024;  // a multiple of four of every vector

uint32_t BitsOf(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

class Exp2Test : public ::testing::TestWithParam<Target> {
 protected:
  void Full(const float* x, float* y) const {
    FLASHLANE_DISPATCH(Exp2F32, GetParam().bit)(x, kChunk, y);
  }
  void Full(const double* x, double* y) const {
    FLASHLANE_DISPATCH(Exp2F64, GetParam().bit)(x, kChunk, y);
  }
  void Half(const float* x, float* y) const {
    FLASHLANE_DISPATCH(Exp2HalfF32, GetParam().bit)(x, kChunk, y);
  }
  double MaxUlps() const { return FLASHLANE_DISPATCH(FullUlps, GetParam().bit)(); }
  double MaxRelative() const { return FLASHLANE_DISPATCH(HalfRelative, GetParam().bit)(); }

  // Calls see(x, full, half) for every `stride`-th f32 from `first` away from zero to `last`, which
  // has the same sign.
  template <class See>
  void Sweep(float first, float last, uint32_t stride, See see) const {
    std::vector<float> x(kChunk), full(kChunk), half(kChunk);
    const uint32_t end = BitsOf(last);
    for (uint64_t bits = BitsOf(first); bits <= end; bits += uint64_t{kChunk} * stride) {
      for (uint32_t i = 0; i < kChunk; ++i) {
        const auto at = static_cast<uint32_t>(std::min<uint64_t>(bits + uint64_t{i} * stride, end));
        std::memcpy(&x[i], &at, sizeof at);
      }
      Full(x.data(), full.data());
      Half(x.data(), half.data());
      for (size_t i = 0; i < kChunk; ++i) see(x[i], full[i], half[i]);
    }
  }

  // The stated errors over [first, last].
  void ExpectErrors(float first, float last, uint32_t stride) {
    Sweep(first, last, stride, [&](float x, float full, float half) {
      const double exact = std::exp2(static_cast<double>(x));
      worst_ulps_ = std::max(worst_ulps_, std::fabs(full - exact) / UlpAt<float>(exact));
      worst_relative_ = std::max(worst_relative_, std::fabs(half - exact) / exact);
    });
    EXPECT_LE(worst_ulps_, MaxUlps()) << first;
    EXPECT_LE(worst_relative_, MaxRelative()) << first;
    EXPECT_GT(worst_relative_, 0) << first;
    RecordProperty("worst_ulps", std::to_string(worst_ulps_));
    RecordProperty("worst_relative", std::to_string(worst_relative_));
  }

  double worst_ulps_ = 0;
  double worst_relative_ = 0;
};

// Nearer to 0 than 2^-25 the result rounds to 1, and samples do.
TEST_P(Exp2Test, ErrorBelowZero) {
  ExpectErrors(-0x1p-25f, -126.0f, 1);
  ExpectErrors(-0x1p-149f, -0x1p-25f, 509);
}

// Up to what the fast domain lets scores exceed their maximum by; beyond, samples.
TEST_P(Exp2Test, ErrorAboveZero) {
  ExpectErrors(0x1p-25f, static_cast<float>(kRescaleThresholdLog2), 1);
  ExpectErrors(0x1p-149f, 0x1p-25f, 509);
  ExpectErrors(static_cast<float>(kRescaleThresholdLog2), 127.0f, 509);
}

TEST_P(Exp2Test, BelowTheNormalNumbers) {
  constexpr float kSmallest = std::numeric_limits<float>::min();
  size_t wrong = 0;
  const auto small = [&](float, float full, float half) {
    wrong += full >= 0 && full <= kSmallest && half >= 0 && half <= kSmallest ? 0 : 1;
  };
  Sweep(std::nextafter(-126.0f, -127.0f), -150.0f, 1, small);
  EXPECT_EQ(wrong, 0U);
  const auto zero = [&](float, float full, float half) {
    wrong += full == 0 && half == 0 && !std::signbit(full) && !std::signbit(half) ? 0 : 1;
  };
  Sweep(-150.0f, -1024.0f, 1, zero);
  Sweep(-1024.0f, -std::numeric_limits<float>::infinity(), 509, zero);
  EXPECT_EQ(wrong, 0U);
}

TEST_P(Exp2Test, OneVectorAtATimeGivesTheSameBits) {
  std::vector<float> x(kChunk), four(kChunk), one(kChunk);
  for (size_t i = 0; i < kChunk; ++i) x[i] = 8.0f - 0.125f * 1.0625f * static_cast<float>(i);
  Full(x.data(), four.data());
  FLASHLANE_DISPATCH(SingleExp2F32, GetParam().bit)(x.data(), kChunk, one.data());
  EXPECT_EQ(four, one);
}

TEST_P(Exp2Test, ErrorInF64) {
  double worst = 0;
  std::vector<double> x(kChunk), y(kChunk);
  for (int chunk = 0; chunk < 4000; ++chunk) {
    for (size_t i = 0; i < kChunk; ++i) {
      const double at = static_cast<double>(chunk) * kChunk + static_cast<double>(i);
      const double unit = std::fmod(at * 0.6180339887498949, 1.0);
      // All of the range, near 0, and above it, where weights lie mostly.
      x[i] = chunk % 3 == 0 ? -1022.0 * unit : chunk % 3 == 1 ? -unit : 9.0 * unit - 1.0;
    }
    Full(x.data(), y.data());
    for (size_t i = 0; i < kChunk; ++i) {
      const long double exact = std::exp2(static_cast<long double>(x[i]));
      const long double ulps = std::fabs(y[i] - exact) / UlpAt<double>(static_cast<double>(exact));
      worst = std::max(worst, static_cast<double>(ulps));
    }
  }
  EXPECT_LE(worst, MaxUlps());
  EXPECT_GE(worst, 0.5);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST_P(Exp2Test, SmallF64) {
  std::vector<double> x(kChunk), y(kChunk);
  for (size_t i = 0; i < kChunk; ++i) x[i] = -1022.0 - static_cast<double>(i) / 16;
  Full(x.data(), y.data());
  for (size_t i = 0; i < kChunk; ++i) {
    EXPECT_TRUE(y[i] >= 0 && y[i] <= std::numeric_limits<double>::min()) << x[i] << " " << y[i];
    EXPECT_TRUE(x[i] > -1075.0 || y[i] == 0.0) << x[i] << " " << y[i];
  }
}

TEST_P(Exp2Test, SpecialValues) {
  const auto check = [&](auto zero, auto of) {
    using C = decltype(zero);
    const std::vector<C> special = {C{0},
                                    C{-0.0},
                                    -std::numeric_limits<C>::max(),
                                    -std::numeric_limits<C>::infinity(),
                                    std::numeric_limits<C>::quiet_NaN(),
                                    -std::numeric_limits<C>::quiet_NaN()};
    // In every lane.
    for (size_t at = 0; at < 16; ++at) {
      std::vector<C> x(kChunk, C{-1}), y(kChunk);
      std::copy(special.begin(), special.end(), x.begin() + static_cast<std::ptrdiff_t>(at));
      of(x.data(), y.data());
      EXPECT_EQ(y[at], C{1});
      EXPECT_EQ(y[at + 1], C{1});
      EXPECT_EQ(y[at + 2], C{0});
      EXPECT_EQ(y[at + 3], C{0});
      EXPECT_TRUE(std::isnan(y[at + 4]));
      EXPECT_TRUE(std::isnan(y[at + 5]));
    }
  };
  check(0.0f, [&](const float* x, float* y) { Full(x, y); });
  check(0.0f, [&](const float* x, float* y) { Half(x, y); });
  check(0.0, [&](const double* x, double* y) { Full(x, y); });
}

// A NaN keeps being one whatever its lower bits say.
TEST_P(Exp2Test, EveryNan) {
  size_t numbers = 0;
  const auto see = [&](float, float full, float half) {
    numbers += std::isnan(full) && std::isnan(half) ? 0 : 1;
  };
  constexpr uint32_t kFirst = 0x7FC00000, kLast = 0x7FFFFFFF;
  float first = 0, last = 0;
  std::memcpy(&first, &kFirst, sizeof first);
  std::memcpy(&last, &kLast, sizeof last);
  Sweep(first, last, 1, see);
  EXPECT_EQ(numbers, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, Exp2Test, ::testing::ValuesIn(SupportedTargetList()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace flashlane::kernels
#endif  // HWY_ONCE
