// RoPE of the flat modules: the inverse restores, and a wrong pairing, sign, index or position does
// not.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "flashlane/flat.h"
#include "tests/support/flat.h"

namespace flashlane::testing {
namespace {

using flat::AttnStatus;

struct RopeProblem {
  static constexpr std::int64_t kTokens = 5, kHeads = 3, kDim = 8, kPositions = 40;
  std::vector<double> x, cos, sin;
  std::vector<std::int64_t> position = {0, 1, 2, 0, 39};  // two documents
  flat::FlatRope in;

  explicit RopeProblem(const RopeScaling& scaling = {}) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    x.resize(kTokens * kHeads * kDim);
    for (double& value : x) value = normal(random);
    cos.resize(kPositions * kDim / 2);
    sin = cos;
    EXPECT_EQ(flat::RopeTableFlat(kDim, kPositions, 10000.0, {flat::Buffer(cos), flat::Buffer(sin)},
                                  scaling),
              AttnStatus::kOk);
    in.x = flat::ConstBuffer(x);
    in.cos = flat::ConstBuffer(cos);
    in.sin = flat::ConstBuffer(sin);
    in.n_tok = kTokens;
    in.n_heads = kHeads;
    in.head_dim = kDim;
    in.position = flat::ConstIndices(position);
  }
  RopeProblem(const RopeProblem&) = delete;

  std::vector<double> Apply() const {
    std::vector<double> out(x.size());
    EXPECT_EQ(flat::RopeApplyFlat(in, flat::Buffer(out)), AttnStatus::kOk);
    return out;
  }
  std::vector<double> Inverse(const std::vector<double>& of) const {
    flat::FlatRope back = in;
    back.x = flat::ConstBuffer(of);
    std::vector<double> out(x.size());
    EXPECT_EQ(flat::RopeApplyInverseFlat(back, flat::Buffer(out)), AttnStatus::kOk);
    return out;
  }
};

double Largest(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

TEST(FlatRope, InverseRestores) {
  for (const bool interleaved : {false, true}) {
    RopeProblem problem;
    problem.in.interleaved = interleaved;
    const std::vector<double> rotated = problem.Apply();
    EXPECT_GT(Largest(rotated, problem.x), 0.1);
    EXPECT_LT(Largest(problem.Inverse(rotated), problem.x), 1e-14);
  }
}

// Every number against the definition.
TEST(FlatRope, IsTheDefinition) {
  for (const bool interleaved : {false, true}) {
    RopeProblem problem;
    problem.in.interleaved = interleaved;
    const std::vector<double> rotated = problem.Apply();
    for (std::int64_t row = 0; row < RopeProblem::kTokens * RopeProblem::kHeads; ++row) {
      const auto position =
          static_cast<double>(problem.position[static_cast<std::size_t>(row / 3)]);
      for (std::int64_t i = 0; i < 4; ++i) {
        const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
        const auto first = static_cast<std::size_t>(row * 8 + (interleaved ? 2 * i : i));
        const std::size_t second = first + (interleaved ? 1 : 4);
        const double a = problem.x[first], b = problem.x[second];
        EXPECT_NEAR(rotated[first], a * std::cos(angle) - b * std::sin(angle), 1e-13);
        EXPECT_NEAR(rotated[second], a * std::sin(angle) + b * std::cos(angle), 1e-13);
      }
    }
  }
}

// What the inverse catches, one mistake at a time.
TEST(FlatRope, MistakesDoNotRestore) {
  RopeProblem problem;
  const std::vector<double> rotated = problem.Apply();
  const auto off = [&] { return Largest(problem.Inverse(rotated), problem.x); };
  ASSERT_LT(off(), 1e-14);
  problem.in.interleaved = true;  // pairing
  EXPECT_GT(off(), 0.01);
  problem.in.interleaved = false;
  for (double& s : problem.sin) s = -s;  // sign
  EXPECT_GT(off(), 0.01);
  for (double& s : problem.sin) s = -s;
  std::swap(problem.cos[4 + 1], problem.cos[4 + 2]);  // index of the table
  EXPECT_GT(off(), 0.001);
  std::swap(problem.cos[4 + 1], problem.cos[4 + 2]);
  problem.position[3] = 3;  // a packed document that does not restart
  EXPECT_GT(off(), 0.01);
  problem.position[3] = 0;
  EXPECT_LT(off(), 1e-14);
}

TEST(FlatRope, InPlace) {
  RopeProblem problem;
  const std::vector<double> wanted = problem.Apply();
  ASSERT_EQ(flat::RopeApplyFlat(problem.in, flat::Buffer(problem.x)), AttnStatus::kOk);
  EXPECT_EQ(problem.x, wanted);
}

// Llama 3: short waves as they are, long ones stretched by the factor.
TEST(FlatRope, LlamaScaling) {
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::kLlama3;
  scaling.factor = 8;
  scaling.low_freq_factor = 1;
  scaling.high_freq_factor = 4;
  scaling.original_max_position = 8192;
  std::vector<double> plain(64), scaled(64);
  ASSERT_EQ(flat::RopeInvFreqFlat(128, 500000.0, flat::Buffer(plain)), AttnStatus::kOk);
  ASSERT_EQ(flat::RopeInvFreqFlat(128, 500000.0, flat::Buffer(scaled), scaling), AttnStatus::kOk);
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_NEAR(scaled[63] / plain[63], 1.0 / 8, 1e-15);
  scaling.factor = NAN;
  EXPECT_EQ(flat::RopeInvFreqFlat(128, 500000.0, flat::Buffer(scaled), scaling),
            AttnStatus::kBadScaling);
}

}  // namespace
}  // namespace flashlane::testing
