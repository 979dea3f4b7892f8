// What the AMX instructions do, against plain loops. On a machine with AMX the same tests run on
// the hardware, and so prove the emulator's semantics; amx_encoding_test has the instructions'
// forms.

#include <gtest/gtest.h>

#include "tests/support/amx_emulator.h"

#if defined(__x86_64__) && defined(__linux__)

#include <xmmintrin.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/amx_asm.h"

namespace flashlane::testing {
namespace {

using amx::AmxTest;
using amx::Config;

class AmxEmulatorTest : public AmxTest {};

constexpr int64_t kStrides[] = {64, 100, -80, 1, 0};
constexpr size_t kMiddle = 2048;  // room for 16 rows of any of these strides on either side
constexpr size_t kArena = 2 * kMiddle;

TEST_F(AmxEmulatorTest, LoadsAndStoresExactlyTheShape) {
  const std::vector<uint8_t> source = amx::RandomBytes(kArena, 1);
  for (int rows = 1; rows <= 16; ++rows) {
    for (int colsb = 4; colsb <= 64; colsb += 4) {
      for (size_t s = 0; s < std::size(kStrides); ++s) {
        const int64_t load_stride = kStrides[s];
        const int64_t store_stride = kStrides[(s + rows) % std::size(kStrides)];
        std::vector<uint8_t> stored(kArena, 0xA5), expected = stored;
        amx::Configure(Config().Set(5, rows, colsb));
        amx::Load<5>(source.data() + kMiddle, load_stride);
        amx::Store<5>(stored.data() + kMiddle, store_stride);
        amx::Release();
        for (int r = 0; r < rows; ++r) {
          std::copy_n(source.data() + kMiddle + r * load_stride, colsb,
                      expected.data() + kMiddle + r * store_stride);
        }
        ASSERT_EQ(stored, expected)
            << rows << " x " << colsb << ", strides " << load_stride << " " << store_stride;
      }
    }
  }
}

TEST_F(AmxEmulatorTest, LoadOnceIsALoad) {
  const std::vector<uint8_t> source = amx::RandomBytes(1024, 2);
  std::vector<uint8_t> stored(1024);
  amx::Configure(Config::AllFull());
  amx::LoadOnce<7>(source.data(), 64);
  amx::Store<7>(stored.data(), 64);
  amx::Release();
  EXPECT_EQ(stored, source);
}

TEST_F(AmxEmulatorTest, ZeroClearsOneTile) {
  const std::vector<uint8_t> source = amx::RandomBytes(1024, 3);
  std::vector<uint8_t> zeroed(1024, 1), kept(1024, 1);
  amx::Configure(Config::AllFull());
  amx::Load<3>(source.data(), 64);
  amx::Load<4>(source.data(), 64);
  amx::Zero<3>();
  amx::Store<3>(zeroed.data(), 64);
  amx::Store<4>(kept.data(), 64);
  amx::Release();
  EXPECT_EQ(zeroed, std::vector<uint8_t>(1024));
  EXPECT_EQ(kept, source);
}

TEST_F(AmxEmulatorTest, ConfiguringClearsAllTiles) {
  const std::vector<uint8_t> source = amx::RandomBytes(1024, 4);
  std::vector<uint8_t> stored(1024, 1);
  amx::Configure(Config::AllFull());
  amx::Load<0>(source.data(), 64);
  amx::Configure(Config::AllFull());
  amx::Store<0>(stored.data(), 64);
  amx::Release();
  EXPECT_EQ(stored, std::vector<uint8_t>(1024));
}

TEST_F(AmxEmulatorTest, StoresTheConfiguration) {
  Config config, init;
  config.Set(0, 1, 64).Set(2, 16, 4).Set(7, 9, 36);
  init.bytes[0] = 0;
  amx::Configure(config);
  const Config configured = amx::Configuration();
  amx::Release();
  const Config released = amx::Configuration();
  amx::Configure(config);
  amx::Configure(init);  // palette 0 releases too
  const Config reset = amx::Configuration();
  EXPECT_EQ(0, std::memcmp(&configured, &config, sizeof(Config)));
  EXPECT_EQ(0, std::memcmp(&released, &init, sizeof(Config)));
  EXPECT_EQ(0, std::memcmp(&reset, &init, sizeof(Config)));
}

// ---- tdpbf16ps

using Pair = uint32_t;  // two bf16, the even one in the low half

float Even(Pair pair) { return std::bit_cast<float>(pair << 16); }
float Odd(Pair pair) { return std::bit_cast<float>(pair & 0xFFFF0000u); }
float Flush(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
float FusedFlushed(float a, float b, float c) { return Flush(std::fma(Flush(a), Flush(b), c)); }

// One product, dense: a is m x k pairs, b k x n pairs, c m x n floats.
struct Product {
  int m, n, k;
  std::vector<Pair> a, b;
  std::vector<float> c;

  Config Shapes(int tile_c, int tile_a, int tile_b) const {
    return Config().Set(tile_c, m, 4 * n).Set(tile_a, m, 4 * k).Set(tile_b, k, 4 * n);
  }
  std::vector<float> Expected() const {
    std::vector<float> result = c;
    for (int row = 0; row < m; ++row) {
      for (int column = 0; column < n; ++column) {
        float even = 0, odd = 0;
        for (int i = 0; i < k; ++i) {
          const Pair from_a = a[row * k + i], from_b = b[i * n + column];
          even = FusedFlushed(Even(from_a), Even(from_b), even);
          odd = FusedFlushed(Odd(from_a), Odd(from_b), odd);
        }
        float& out = result[row * n + column];
        out = Flush(Flush(out) + Flush(even + odd));
      }
    }
    return result;
  }
  template <int kC, int kA, int kB>
  std::vector<float> Run() const {
    std::vector<float> result = c;
    amx::Configure(Shapes(kC, kA, kB));
    amx::Load<kC>(result.data(), 4 * n);
    amx::Load<kA>(a.data(), 4 * k);
    amx::Load<kB>(b.data(), 4 * n);
    amx::Multiply<kC, kA, kB>();
    amx::Store<kC>(result.data(), 4 * n);
    amx::Release();
    return result;
  }
};

// Values of one sort; one in eight is of the kind that the name says.
enum class Values { kOrdinary, kDenormal, kHuge, kInfinite, kNaN };

uint16_t RandomBf16(Values values, std::mt19937& random) {
  const uint16_t sign_and_mantissa = static_cast<uint16_t>(random() & 0x807F);
  const auto with_exponent = [&](unsigned exponent) {
    return static_cast<uint16_t>(sign_and_mantissa | exponent << 7);
  };
  if (random() % 8 == 0) {
    if (values == Values::kInfinite) return static_cast<uint16_t>(random() & 0x8000) | 0x7F80;
    if (values == Values::kNaN) return 0x7FC1;
    if (values == Values::kDenormal) return with_exponent(0);
    if (values == Values::kHuge) return with_exponent(254);
  }
  // Around the square root of the smallest normal number: products of these are denormal or nearly.
  if (values == Values::kDenormal) return with_exponent(60 + random() % 10);
  return with_exponent(120 + random() % 14);
}

Product RandomProduct(int m, int n, int k, Values values, unsigned seed) {
  std::mt19937 random(seed);
  Product product{
      m, n, k, std::vector<Pair>(m * k), std::vector<Pair>(k * n), std::vector<float>(m * n)};
  for (float& element : product.c) {
    element = std::bit_cast<float>(Pair{RandomBf16(values, random)} << 16 |
                                   static_cast<Pair>(random() & 0xFFFF));
  }
  if (values == Values::kDenormal) {  // of the size of the products
    for (float& element : product.c) {
      element = std::bit_cast<float>((std::bit_cast<Pair>(element) & 0x807FFFFFu) |
                                     static_cast<Pair>(random() % 4 << 23));
    }
  }
  for (std::vector<Pair>* operand : {&product.a, &product.b}) {
    for (Pair& pair : *operand) {
      pair = Pair{RandomBf16(values, random)} << 16 | RandomBf16(values, random);
    }
  }
  return product;
}

// Bit for bit, except that one NaN is as good as another.
void ExpectSame(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << actual[i] << " instead of " << expected[i] << " at " << i;
  }
}

class AmxProductTest : public AmxTest, public ::testing::WithParamInterface<Values> {};

TEST_P(AmxProductTest, EqualsPlainLoops) {
  unsigned seed = 0;
  for (const int m : {1, 2, 7, 15, 16}) {
    for (const int n : {1, 3, 8, 9, 16}) {
      for (const int k : {1, 2, 5, 15, 16}) {
        const Product product = RandomProduct(m, n, k, GetParam(), ++seed);
        SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k);
        const std::vector<float> expected = product.Expected();
        ExpectSame(product.Run<0, 1, 2>(), expected);
        ExpectSame(product.Run<6, 7, 5>(), expected);
        ExpectSame(product.Run<2, 0, 7>(), expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AmxProductTest,
                         ::testing::Values(Values::kOrdinary, Values::kDenormal, Values::kHuge,
                                           Values::kInfinite, Values::kNaN));

// Each sort of values shows what it is for, so that no comparison above is idle.
TEST_F(AmxEmulatorTest, TheValuesAreWhatTheyAreCalled) {
  const auto any = [](Values values, auto predicate) {
    const std::vector<float> result = RandomProduct(16, 16, 1, values, 1).Expected();
    return std::any_of(result.begin(), result.end(), predicate);
  };
  EXPECT_FALSE(any(Values::kOrdinary, [](float x) { return x == 0 || !std::isfinite(x); }));
  EXPECT_TRUE(any(Values::kDenormal, [](float x) { return x == 0; }));
  EXPECT_TRUE(any(Values::kDenormal, [](float x) { return x != 0; }));
  EXPECT_TRUE(any(Values::kHuge, [](float x) { return std::isinf(x); }));
  EXPECT_TRUE(any(Values::kInfinite, [](float x) { return std::isinf(x); }));
  EXPECT_TRUE(any(Values::kNaN, [](float x) { return std::isnan(x); }));
}

// The order of the sums: even and odd apart, and both before c.
TEST_F(AmxEmulatorTest, SumsEvenAndOddApart) {
  constexpr Pair kOne = 0x3F80, kBig = 0x4B80;  // 1; 2^24, beyond which f32 has no odd numbers
  // Even: 2^24 + 1 = 2^24. Odd: 1 + 0. Together 2^24 again, so that c = -2^24 leaves nothing. One
  // after the other into c, or in a wider sum, leaves 2.
  const Product product{
      1, 1, 2, {kOne << 16 | kBig, kOne}, {kOne << 16 | kOne, kOne}, {-16777216.0f}};
  EXPECT_EQ((product.Run<0, 1, 2>()[0]), 0.0f);
}

TEST_F(AmxEmulatorTest, IgnoresAndKeepsTheCallersRounding) {
  const Product product = RandomProduct(16, 16, 16, Values::kHuge, 5);
  std::vector<float> result = product.c;
  amx::Configure(product.Shapes(0, 1, 2));
  amx::Load<0>(result.data(), 64);
  amx::Load<1>(product.a.data(), 64);
  amx::Load<2>(product.b.data(), 64);
  constexpr unsigned kUpwardsAllTrapsOpen = 0x4000;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kUpwardsAllTrapsOpen);
  amx::Multiply<0, 1, 2>();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  amx::Store<0>(result.data(), 64);
  amx::Release();
  EXPECT_EQ(after, kUpwardsAllTrapsOpen);
  ExpectSame(result, product.Expected());
}

TEST_F(AmxEmulatorTest, KeepsOtherRegistersAndFlags) {
  const std::vector<uint8_t> pattern = amx::RandomBytes(16, 6);
  std::vector<uint8_t> kept(16);
  uint64_t general = 0x123456789ABCDEF0;
  bool carry = false;
  amx::Configure(Config::AllFull());
  asm volatile(
      "movdqu (%[pattern]), %%xmm3\n\t"
      "stc\n\t"
      "tdpbf16ps %%tmm2, %%tmm1, %%tmm0\n\t"
      "tilezero %%tmm0\n\t"
      "setc %[carry]\n\t"
      "movdqu %%xmm3, (%[kept])"
      : [carry] "=q"(carry), [general] "+r"(general)
      : [pattern] "r"(pattern.data()), [kept] "r"(kept.data())
      : "xmm3", "cc", "memory");
  amx::Release();
  EXPECT_TRUE(carry);
  EXPECT_EQ(general, 0x123456789ABCDEF0u);
  EXPECT_EQ(kept, pattern);
}

// ---- threads

// Configures, waits for the other, multiplies, waits, stores, releases; many times.
void ManyProducts(const Product& product, std::barrier<>* both, std::vector<float>* result) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    *result = product.c;
    amx::Configure(product.Shapes(0, 1, 2));
    both->arrive_and_wait();
    amx::Load<0>(result->data(), 4 * product.n);
    amx::Load<1>(product.a.data(), 4 * product.k);
    amx::Load<2>(product.b.data(), 4 * product.n);
    both->arrive_and_wait();
    amx::Multiply<0, 1, 2>();
    both->arrive_and_wait();
    amx::Store<0>(result->data(), 4 * product.n);
    amx::Release();
  }
}

TEST_F(AmxEmulatorTest, ThreadsHaveTheirOwnTiles) {
  const Product one = RandomProduct(16, 5, 3, Values::kOrdinary, 7);
  const Product two = RandomProduct(3, 16, 16, Values::kOrdinary, 8);
  std::vector<float> result_one, result_two;
  std::barrier<> both(2);
  std::thread other(ManyProducts, std::cref(two), &both, &result_two);
  ManyProducts(one, &both, &result_one);
  other.join();
  ExpectSame(result_one, one.Expected());
  ExpectSame(result_two, two.Expected());
}

TEST_F(AmxEmulatorTest, Counts) {
  if (AmxHardwareUsable()) GTEST_SKIP() << "nobody counts on the hardware";
  const AmxEmulatorCounts& counts = GetAmxEmulatorCounts();
  const auto now = [&] {
    return std::vector<int64_t>{counts.configures, counts.releases, counts.loads,
                                counts.stores,     counts.products, counts.live_configurations};
  };
  const std::vector<int64_t> start = now();
  const auto since_start = [&] {
    std::vector<int64_t> difference = now();
    for (size_t i = 0; i < start.size(); ++i) difference[i] -= start[i];
    return difference;
  };
  EXPECT_EQ(start.back(), 0);
  amx::Configure(Config::AllFull());
  EXPECT_EQ(since_start(), (std::vector<int64_t>{1, 0, 0, 0, 0, 1}));
  amx::Configure(Config::AllFull());
  EXPECT_EQ(since_start(), (std::vector<int64_t>{2, 0, 0, 0, 0, 1}));
  std::thread([&] {
    amx::Configure(Config::AllFull());
    EXPECT_EQ(since_start(), (std::vector<int64_t>{3, 0, 0, 0, 0, 2}));
    amx::Release();
  }).join();
  amx::Release();
  amx::Release();
  EXPECT_EQ(since_start(), (std::vector<int64_t>{3, 3, 0, 0, 0, 0}));
  RandomProduct(2, 2, 2, Values::kOrdinary, 9).Run<0, 1, 2>();
  EXPECT_EQ(since_start(), (std::vector<int64_t>{4, 4, 3, 1, 1, 0}));
}

}  // namespace
}  // namespace flashlane::testing

#else

TEST(AmxEmulatorTest, IsNotForThisSystem) {
  EXPECT_FALSE(flashlane::testing::InstallAmxEmulator());
}

#endif
