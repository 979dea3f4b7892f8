// RopeInverseFrequencies and RopeTable: the document's worked example, every scaling against values
// computed by hand (in Python, with transformers' formulas in F64), tables far out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "flashlane/rope.h"
#include "tests/support/memory.h"
#include "tests/support/rope.h"

namespace flashlane::testing {
namespace {

using Type = RopeScaling::Type;

std::vector<double> Frequencies(int64_t rotary_dim, double theta, const RopeScaling& scaling = {},
                                double* attention_factor = nullptr) {
  std::vector<double> values(static_cast<size_t>(rotary_dim / 2), -7.0);
  const Status status = RopeInverseFrequencies(
      theta, scaling, TensorView(values.data(), DType::kF64, {rotary_dim / 2}), attention_factor);
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], tolerance * std::abs(want[i])) << i;
  }
}

RopeScaling Of(Type type, double factor, int64_t original = 0) {
  RopeScaling scaling;
  scaling.type = type;
  scaling.factor = factor;
  scaling.original_max_position = original;
  return scaling;
}

// "rope_inv_freq", [4, 10000.0] -> [1.0, 0.01].
TEST(RopeFrequenciesTest, TheDocumentsExample) {
  ExpectNear(Frequencies(4, 10000.0), {1.0, 0.01}, 1e-12);
}

TEST(RopeFrequenciesTest, Plain) {
  double factor = 0;
  ExpectNear(Frequencies(8, 10000.0, {}, &factor), {1.0, 0.1, 0.01, 0.001}, 1e-15);
  EXPECT_EQ(factor, 1.0);
  ExpectNear(Frequencies(6, 8.0), {1.0, 0.5, 0.25}, 1e-15);
  EXPECT_TRUE(Frequencies(0, 10000.0).empty());
}

TEST(RopeFrequenciesTest, Linear) {
  ExpectNear(Frequencies(4, 10000.0, Of(Type::kLinear, 8.0)), {0.125, 0.00125}, 1e-15);
}

// theta 16, d 4: 16 * 3^(4 / 2) = 144, whose root is 12. The longest wave grows by factor.
TEST(RopeFrequenciesTest, Ntk) {
  ExpectNear(Frequencies(4, 16.0, Of(Type::kNtk, 3.0)), {1.0, 1.0 / 12}, 1e-15);
}

// At the original length nothing is scaled; at three times it, factor 2 stretches by 2 * 3 - 1.
TEST(RopeFrequenciesTest, DynamicNtk) {
  RopeScaling scaling = Of(Type::kDynamicNtk, 2.0, 100);
  for (const int64_t seqlen : {0, 7, 100}) {
    scaling.seqlen = seqlen;
    ExpectNear(Frequencies(4, 16.0, scaling), {1.0, 0.25}, 1e-15);
  }
  scaling.seqlen = 300;
  ExpectNear(Frequencies(4, 16.0, scaling), {1.0, 1.0 / 20}, 1e-15);
}

// Llama 3.1: theta 500000, factor 8, factors 1 and 4 of 8192. Waves up to pair 28 are shorter than
// 2048 and kept, from pair 35 on longer than 8192 and divided.
TEST(RopeFrequenciesTest, Llama3) {
  const std::vector<double> plain = Frequencies(128, 500000.0);
  double factor = 0;
  const std::vector<double> got = Frequencies(128, 500000.0, Of(Type::kLlama3, 8.0, 8192), &factor);
  EXPECT_EQ(factor, 1.0);
  for (size_t i = 0; i <= 28; ++i) EXPECT_EQ(got[i], plain[i]) << i;
  for (size_t i = 35; i < 64; ++i) EXPECT_EQ(got[i], plain[i] / 8) << i;
  // Between: f (1 - s) / 8 + f s, s = (8192 f / 2 pi - 1) / 3.
  ExpectNear({got[29], got[30], got[31], got[32], got[33], got[34]},
             {0.002166570763503359, 0.0013718935677611381, 0.0008567514129196321,
              0.0005248461609929547, 0.00031269375038406517, 0.0001785078127679964},
             1e-12);
}

// A ramp with both ends inside: d 64, theta 10000, 4096 positions, factor 16.
TEST(RopeFrequenciesTest, Yarn) {
  RopeScaling scaling = Of(Type::kYarn, 16.0, 4096);
  double factor = 0;
  std::vector<double> got = Frequencies(64, 10000.0, scaling, &factor);
  EXPECT_NEAR(factor, 0.1 * std::log(16.0) + 1.0, 1e-15);
  const std::vector<double> plain = Frequencies(64, 10000.0);
  for (size_t i = 0; i <= 10; ++i) EXPECT_NEAR(got[i], plain[i], 1e-15 * plain[i]) << i;
  for (size_t i = 23; i < 32; ++i) {
    EXPECT_NEAR(got[i], plain[i] / 16, 1e-15 * plain[i]) << i;
  }
  ExpectNear({got[11], got[16], got[22]},
             {0.039128569789286714, 0.005673076923076923, 0.00023938376673600877}, 1e-12);
  scaling.truncate = false;
  got = Frequencies(64, 10000.0, scaling);
  ExpectNear({got[11], got[16], got[22]},
             {0.040436894719351676, 0.005696214401411793, 0.0001822297192242749}, 1e-12);
}

TEST(RopeFrequenciesTest, YarnAttentionFactor) {
  RopeScaling scaling = Of(Type::kYarn, 40.0, 4096);
  double factor = 0;
  const auto expect = [&](double want) {
    Frequencies(64, 10000.0, scaling, &factor);
    EXPECT_NEAR(factor, want, 1e-14);
  };
  const double ln = std::log(40.0);
  expect(0.1 * ln + 1);
  scaling.mscale = 0.707;  // alone it counts for nothing
  expect(0.1 * ln + 1);
  scaling.mscale_all_dim = 1.0;
  expect((0.0707 * ln + 1) / (0.1 * ln + 1));
  scaling.mscale_all_dim = 0.707;  // DeepSeek-V2
  expect(1.0);
  scaling.attention_factor = 0.75;
  expect(0.75);
  scaling = Of(Type::kYarn, 0.5, 4096);
  expect(1.0);
}

// Both ends of the ramp at one pair: a step, no division by zero.
TEST(RopeFrequenciesTest, YarnWithoutARamp) {
  RopeScaling scaling = Of(Type::kYarn, 4.0, 6);
  const std::vector<double> got = Frequencies(8, 10000.0, scaling);
  const std::vector<double> plain = Frequencies(8, 10000.0);
  EXPECT_EQ(got[0], plain[0]);
  for (size_t i = 1; i < 4; ++i) EXPECT_NEAR(got[i], plain[i] / 4, 1e-16) << i;
}

TEST(RopeFrequenciesTest, IntoAStridedView) {
  std::vector<double> values(5, -7.0);
  ASSERT_TRUE(
      RopeInverseFrequencies(10000.0, {}, TensorView(values.data(), DType::kF64, {2}, {3})).ok());
  EXPECT_THAT(values, ::testing::ElementsAre(1.0, -7.0, -7.0, ::testing::DoubleEq(0.01), -7.0));
}

// ---- Tables

struct Table {
  Table(DType dtype, const RopeTableInputs& inputs, int64_t rows, const ExecOptions& options = {})
      : cos(OwnedTensor::Of({}, dtype, {rows, inputs.inv_freq.shape[0]})), sin(cos) {
    const Status status = RopeTable(inputs, {WritableView(&cos), WritableView(&sin)}, options);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  OwnedTensor cos, sin;
};

RopeTableInputs InputsOf(const std::vector<double>& frequencies) {
  RopeTableInputs inputs;
  inputs.inv_freq =
      ConstTensorView(frequencies.data(), DType::kF64, {static_cast<int64_t>(frequencies.size())});
  return inputs;
}

TEST(RopeTableTest, TheDocumentsExample) {
  const std::vector<double> frequencies = Frequencies(4, 10000.0);
  const Table table(DType::kF64, InputsOf(frequencies), 2);
  const std::vector<double> cos = {1.0, 1.0, std::cos(1.0), std::cos(0.01)};
  const std::vector<double> sin = {0.0, 0.0, std::sin(1.0), std::sin(0.01)};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(table.cos.Values()[i], cos[i], 1e-15);
    EXPECT_NEAR(table.sin.Values()[i], sin[i], 1e-15);
  }
}

// Against long double, whose product with the position has no error that F64 could see. F32 angles
// would be wrong in the first digit.
TEST(RopeTableTest, Position1000003) {
  const std::vector<double> frequencies = Frequencies(128, 10000.0);
  for (const int64_t position : {int64_t{1000003}, int64_t{-1000003}, int64_t{1} << 40}) {
    RopeTableInputs inputs = InputsOf(frequencies);
    inputs.start = position - 1;
    const Table wide(DType::kF64, inputs, 2), narrow(DType::kF32, inputs, 2);
    double worst_of_f32_angles = 0;
    for (int64_t i = 0; i < 64; ++i) {
      const double f = frequencies[static_cast<size_t>(i)];
      const long double angle = static_cast<long double>(position) * f;
      // Of the angle in long double, 2^40 leaves some 2^-24 / 2^11.
      const double slack = static_cast<double>(std::abs(angle)) * 0x1p-64 + 0x1p-52;
      const auto cos = static_cast<double>(std::cos(angle));
      const auto sin = static_cast<double>(std::sin(angle));
      EXPECT_NEAR(wide.cos.At({1, i}), cos, slack) << i;
      EXPECT_NEAR(wide.sin.At({1, i}), sin, slack) << i;
      EXPECT_NEAR(narrow.cos.At({1, i}), cos, 0x1p-24 + slack) << i;
      EXPECT_NEAR(narrow.sin.At({1, i}), sin, 0x1p-24 + slack) << i;
      const float rounded = static_cast<float>(position) * static_cast<float>(f);
      worst_of_f32_angles = std::max(worst_of_f32_angles, std::abs(std::cos(rounded) - cos));
    }
    EXPECT_GT(worst_of_f32_angles, 1e-2);
  }
}

// Positions of 11 bits and zeros, whose products long double holds exactly and F64 does not; up to
// where what F64 loses of an angle is half a radian.
TEST(RopeTableTest, FarOut) {
  const std::vector<double> frequencies = Frequencies(128, 10000.0);
  for (const int exponent : {0, 15, 30, 42}) {
    for (const int64_t sign : {1, -1}) {
      RopeTableInputs inputs = InputsOf(frequencies);
      inputs.start = sign * (int64_t{2047} << exponent);
      const Table table(DType::kF64, inputs, 1);
      for (int64_t i = 0; i < 64; ++i) {
        const long double angle =
            static_cast<long double>(inputs.start) * frequencies[static_cast<size_t>(i)];
        EXPECT_NEAR(table.cos.At({0, i}), static_cast<double>(std::cos(angle)), 0x1p-51) << i;
        EXPECT_NEAR(table.sin.At({0, i}), static_cast<double>(std::sin(angle)), 0x1p-51) << i;
      }
    }
  }
}

TEST(RopeTableTest, ListsOfPositionsAndTheFactor) {
  const std::vector<double> frequencies = Frequencies(6, 100.0);
  RopeTableInputs range = InputsOf(frequencies), list = range;
  range.start = 3;
  const std::vector<int64_t> positions = {5, 3, 5, 4};
  list.positions = ConstTensorView(positions.data(), DType::kI64, {4});
  const Table a(DType::kF64, range, 3), b(DType::kF64, list, 4);
  list.attention_factor = 0.5;
  const Table halves(DType::kF64, list, 4);
  const std::vector<int32_t> narrow = {5, -1, 3, -1, 5, -1, 4};
  list.positions = ConstTensorView(narrow.data(), DType::kI32, {4}, {2});
  const Table c(DType::kF64, list, 4);
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t from = positions[static_cast<size_t>(row)] - 3;
      EXPECT_EQ(b.cos.At({row, i}), a.cos.At({from, i}));
      EXPECT_EQ(b.sin.At({row, i}), a.sin.At({from, i}));
      EXPECT_EQ(halves.cos.At({row, i}), 0.5 * a.cos.At({from, i}));
      EXPECT_EQ(halves.sin.At({row, i}), 0.5 * a.sin.At({from, i}));
    }
  }
  EXPECT_EQ(c.cos.storage, halves.cos.storage);
  EXPECT_EQ(c.sin.storage, halves.sin.storage);
}

// Both as halves of one row, which is vLLM's cos_sin_cache, and ending where memory does.
TEST(RopeTableTest, HalvesOfOneRow) {
  const std::vector<double> frequencies = Frequencies(10, 10000.0);
  const Table apart(DType::kF32, InputsOf(frequencies), 7);
  GuardedBuffer memory(7 * 10 * sizeof(float), GuardedBuffer::Flush::kEnd);
  auto* data = static_cast<float*>(memory.data());
  RopeTableOutputs outputs;
  outputs.cos = TensorView(data, DType::kF32, {7, 5}, {10, 1});
  outputs.sin = TensorView(data + 5, DType::kF32, {7, 5}, {10, 1});
  ASSERT_TRUE(RopeTable(InputsOf(frequencies), outputs).ok());
  for (int64_t row = 0; row < 7; ++row) {
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(data[row * 10 + i], apart.cos.At({row, i}));
      EXPECT_EQ(data[row * 10 + 5 + i], apart.sin.At({row, i}));
    }
  }
}

TEST(RopeTableTest, ThreadsChangeNoByte) {
  const std::vector<double> frequencies = Frequencies(128, 10000.0);
  ExecOptions one;
  one.num_threads = 1;
  const Table a(DType::kF32, InputsOf(frequencies), 1000, one);
  const Table b(DType::kF32, InputsOf(frequencies), 1000);
  EXPECT_EQ(a.cos.storage, b.cos.storage);
  EXPECT_EQ(a.sin.storage, b.sin.storage);
}

TEST(RopeTableTest, EmptyIsLegal) {
  const std::vector<double> frequencies = Frequencies(4, 10000.0);
  Table(DType::kF32, InputsOf(frequencies), 0);
  RopeTableInputs none;
  none.inv_freq = ConstTensorView(nullptr, DType::kF64, {0});
  RopeTableOutputs outputs;
  outputs.cos = outputs.sin = TensorView(nullptr, DType::kF64, {5, 0});
  EXPECT_TRUE(RopeTable(none, outputs).ok());
}

}  // namespace
}  // namespace flashlane::testing
