// Conversions are checked against the definition of round-to-nearest-even: between two neighbouring
// values of the narrow type the midpoint decides, and a tie goes to the even one.
#include "dispatch/dtype.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace flashlane {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <typename To, typename From>
To Convert(From value, DType from, DType to) {
  To result{};
  EXPECT_TRUE(ConvertElements(&value, from, &result, to, 1));
  return result;
}

// From any wider type into a 16-bit type, by way of bits.
template <typename From>
std::uint16_t Narrow(From value, DType to) {
  const DType from = sizeof(From) == 8 ? DType::kF64 : DType::kF32;
  return Convert<std::uint16_t>(value, from, to);
}

double Widen(std::uint16_t bits, DType from) { return Convert<double>(bits, from, DType::kF64); }

struct Format {
  DType dtype;
  int mantissa_bits;
  int exponent_bits;
};
constexpr Format kFormats[] = {{DType::kBF16, 7, 8}, {DType::kF16, 10, 5}};

// The value of a 16-bit float by definition; infinities and NaN excluded.
double Definition(std::uint16_t bits, const Format& format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - format.mantissa_bits)
                                         : std::ldexp(mantissa + (1 << format.mantissa_bits),
                                                      exponent - bias - format.mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t InfinityBits(const Format& format) {
  return static_cast<std::uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
}

TEST(DType, ParsesEveryNameInAnyCase) {
  for (int i = 0; i <= static_cast<int>(DType::kU32); ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
    EXPECT_EQ(ParseDType(LowerDTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("Bf16"), DType::kBF16);
  for (const char* name : {"", "f", "f8", "float32", "f32 ", " f32", "f322"}) {
    EXPECT_FALSE(ParseDType(name).has_value()) << name;
  }
}

TEST(DType, WideningIsExact) {
  for (const Format& format : kFormats) {
    for (std::uint32_t sign : {0u, 0x8000u}) {
      for (std::uint16_t bits = 0; bits < InfinityBits(format); ++bits) {
        const auto signed_bits = static_cast<std::uint16_t>(bits | sign);
        const double expected = Definition(signed_bits, format);
        ASSERT_EQ(Widen(signed_bits, format.dtype), expected) << DTypeName(format.dtype) << bits;
        ASSERT_EQ(Convert<float>(signed_bits, format.dtype, DType::kF32), expected);
      }
    }
  }
}

// Every pair of neighbours, both signs, denormals and the step to infinity included.
TEST(DType, NarrowingFromF64RoundsOnceToNearestEven) {
  for (const Format& format : kFormats) {
    const std::uint16_t infinity = InfinityBits(format);
    for (std::uint16_t low = 0; low < infinity; ++low) {
      const auto high = static_cast<std::uint16_t>(low + 1);
      const double below = Definition(low, format);
      // Infinity stands where the next finite value would.
      const double above = Definition(high, format);
      const double middle = below + (above - below) / 2;
      const std::uint16_t even = (low & 1) == 0 ? low : high;
      for (const std::uint16_t sign : {std::uint16_t{0}, std::uint16_t{0x8000}}) {
        const double s = sign == 0 ? 1.0 : -1.0;
        const auto signed_of = [sign](std::uint16_t b) {
          return static_cast<std::uint16_t>(b | sign);
        };
        ASSERT_EQ(Narrow(s * below, format.dtype), signed_of(low));
        ASSERT_EQ(Narrow(s * middle, format.dtype), signed_of(even)) << low;
        ASSERT_EQ(Narrow(s * std::nextafter(middle, 0.0), format.dtype), signed_of(low)) << low;
        ASSERT_EQ(Narrow(s * std::nextafter(middle, kInf), format.dtype), signed_of(high)) << low;
        ASSERT_EQ(Narrow(s * std::nextafter(above, 0.0), format.dtype), signed_of(high)) << low;
      }
    }
  }
}

TEST(DType, NarrowingFromF32RoundsToNearestEven) {
  constexpr float kInfF = std::numeric_limits<float>::infinity();
  for (const Format& format : kFormats) {
    // The last step, to BF16's infinity, has no midpoint in f32 but FLT_MAX lies beyond it.
    for (std::uint16_t low = 0; low + 1 < InfinityBits(format); ++low) {
      const auto high = static_cast<std::uint16_t>(low + 1);
      const double below = Definition(low, format);
      const auto middle = static_cast<float>(below + (Definition(high, format) - below) / 2);
      ASSERT_EQ(Narrow(middle, format.dtype), (low & 1) == 0 ? low : high) << low;
      ASSERT_EQ(Narrow(std::nextafter(middle, 0.0F), format.dtype), low) << low;
      ASSERT_EQ(Narrow(std::nextafter(middle, kInfF), format.dtype), high) << low;
    }
    EXPECT_EQ(Narrow(std::numeric_limits<float>::max(), format.dtype), InfinityBits(format));
  }
}

TEST(DType, SpecialValues) {
  for (const Format& format : kFormats) {
    const std::uint16_t infinity = InfinityBits(format);
    EXPECT_EQ(Narrow(kInf, format.dtype), infinity);
    EXPECT_EQ(Narrow(-kInf, format.dtype), infinity | 0x8000);
    EXPECT_EQ(Narrow(1e300, format.dtype), infinity);
    EXPECT_EQ(Narrow(-1e300, format.dtype), infinity | 0x8000);
    EXPECT_EQ(Narrow(5e-324, format.dtype), 0);
    EXPECT_EQ(Narrow(-5e-324, format.dtype), 0x8000);
    EXPECT_EQ(Narrow(-0.0, format.dtype), 0x8000);
    EXPECT_EQ(Widen(infinity, format.dtype), kInf);
    // NaN with the payload in the highest and in the lowest bit only.
    for (const std::uint64_t payload : {0x8000000000000ULL, 1ULL}) {
      const std::uint64_t nan_bits = 0x7FF0000000000000ULL | payload;
      double nan = 0;
      std::memcpy(&nan, &nan_bits, sizeof nan);
      EXPECT_TRUE(std::isnan(Widen(Narrow(nan, format.dtype), format.dtype))) << payload;
    }
    for (const std::uint32_t nan_bits : {0x7FC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
      float nan = 0;
      std::memcpy(&nan, &nan_bits, sizeof nan);
      EXPECT_TRUE(std::isnan(Widen(Narrow(nan, format.dtype), format.dtype))) << nan_bits;
    }
  }
  EXPECT_TRUE(std::isnan(Convert<float>(kNaN, DType::kF64, DType::kF32)));
  EXPECT_EQ(Convert<float>(1e300, DType::kF64, DType::kF32),
            std::numeric_limits<float>::infinity());
}

TEST(DType, BetweenTheSixteenBitTypes) {
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    const std::uint16_t bf16 = Convert<std::uint16_t>(bits, DType::kF16, DType::kBF16);
    const std::uint16_t f16 = Convert<std::uint16_t>(bits, DType::kBF16, DType::kF16);
    if (!std::isnan(Widen(bits, DType::kF16))) {
      ASSERT_EQ(bf16, Narrow(Widen(bits, DType::kF16), DType::kBF16)) << b;
    }
    if (!std::isnan(Widen(bits, DType::kBF16))) {
      ASSERT_EQ(f16, Narrow(Widen(bits, DType::kBF16), DType::kF16)) << b;
    }
  }
}

TEST(DType, SameTypeCopiesBitsAndOtherTypesAreRefused) {
  std::vector<std::uint16_t> from(0x10000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint16_t>(i);
  std::vector<std::uint16_t> to(from.size());
  ASSERT_TRUE(ConvertElements(from.data(), DType::kF16, to.data(), DType::kF16, 0x10000));
  EXPECT_EQ(from, to);
  std::int32_t integer = 1;
  float untouched = 7.0F;
  EXPECT_FALSE(ConvertElements(&integer, DType::kI32, &untouched, DType::kF32, 1));
  EXPECT_FALSE(ConvertElements(&untouched, DType::kF32, &integer, DType::kI32, 1));
  EXPECT_EQ(untouched, 7.0F);
  EXPECT_EQ(integer, 1);
  EXPECT_TRUE(ConvertElements(nullptr, DType::kF32, nullptr, DType::kF16, 0));
}

}  // namespace
}  // namespace flashlane
