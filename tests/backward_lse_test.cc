// Gradients of rows whose lse is so large that its rounding would show in P, and what an lse that
// the caller kept may be.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dispatch/dtype.h"
#include "tests/support/backward.h"
#include "tests/support/numbers.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

constexpr double kLowestF32 = std::numeric_limits<float>::lowest();

// Sizes that several panels, blocks of keys and vectors share.
ProblemSpec Middling() {
  ProblemSpec spec;
  spec.batch = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.seqlen_q = 37;
  spec.seqlen_k = 150;
  spec.head_dim = 8;
  spec.head_dim_v = 5;
  return spec;
}

// One bias for all.
ProblemSpec Biased() {
  ProblemSpec spec = Middling();
  spec.f32_terms = true;
  spec.bias_dims = 4 | 8;
  return spec;
}

void FillBias(BackwardProblem& of, double bias) {
  for (int64_t i = 0; i < of.spec().seqlen_q; ++i) {
    for (int64_t j = 0; j < of.spec().seqlen_k; ++j) of.problem.bias.Set({0, 0, i, j}, bias);
  }
}

double GradientRounding(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:  // accumulation is in f32 at least
      return 0x1p-20;
  }
}

class BackwardLseTest : public RunTest {
 protected:
  // Sums over rows of `width` numbers, and of their sizes.
  struct Sums {
    std::vector<double> of, sizes;
  };
  static Sums OverRows(const std::vector<double>& values, int64_t width) {
    Sums sums{std::vector<double>(static_cast<size_t>(width)),
              std::vector<double>(static_cast<size_t>(width))};
    for (size_t at = 0; at < values.size(); ++at) {
      sums.of[at % static_cast<size_t>(width)] += values[at];
      sums.sizes[at % static_cast<size_t>(width)] += std::fabs(values[at]);
    }
    return sums;
  }

  // As the weights of a row sum to 1, dv summed over keys is dout summed over rows.
  void ExpectWeightsSumToOne(const BackwardProblem& of, const BackwardResult& result) const {
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    const int64_t width = of.spec().head_dim_v;
    const Sums dv = OverRows(result.dv.Values(), width);
    const Sums dout = OverRows(of.dout.Values(), width);
    for (size_t d = 0; d < dv.of.size(); ++d) {
      const double tolerance =
          2 * GradientRounding(GetParam().dtype) * (dv.sizes[d] + dout.sizes[d]);
      EXPECT_NEAR(dv.of[d], dout.of[d], tolerance) << d;
    }
  }
  Result Forward(const BackwardProblem& of) const {
    ExecOptions options = GetParam().Options();
    options.kernel = GetParam().kernel == Kernel::kNaive ? Kernel::kNaive : Kernel::kFlash;
    return of.problem.Run(options);
  }
};

TEST_P(BackwardLseTest, WeightsSumToOneHoweverLargeScoresAre) {
  for (const double bias : {0.0, 200.0, 300.0, -3000.0, -1e5, 1e7, -1e7, -1e8, -1e30, kLowestF32}) {
    SCOPED_TRACE(bias);
    BackwardProblem of(Biased(), GetParam().dtype);
    FillBias(of, bias);
    ExpectWeightsSumToOne(of, of.Run(GetParam().Options(), kDq | kDk | kDv));
    ExpectWeightsSumToOne(of, of.RunKept(GetParam().Options(), Forward(of)));
  }
}

// dS of a row sums to 0, and so does dbias of it.
TEST_P(BackwardLseTest, DbiasOfARowSumsToZeroHoweverLargeScoresAre) {
  for (const double bias : {-3000.0, -1e7, -1e8, kLowestF32}) {
    SCOPED_TRACE(bias);
    BackwardProblem of(Biased(), GetParam().dtype);
    FillBias(of, bias);
    const BackwardResult result = of.Run(GetParam().Options());
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    const int64_t keys = of.spec().seqlen_k;
    const std::vector<double> dbias = result.dbias.Values();
    for (int64_t i = 0; i < of.spec().seqlen_q; ++i) {
      const auto row = dbias.begin() + static_cast<std::ptrdiff_t>(i * keys);
      const Sums sums = OverRows({row, row + static_cast<std::ptrdiff_t>(keys)}, 1);
      // What out lost when it was rounded is in delta.
      EXPECT_NEAR(sums.of[0], 0, 4 * GradientRounding(GetParam().dtype) * (1 + sums.sizes[0])) << i;
    }
  }
}

TEST_P(BackwardLseTest, QueriesFarBehindTheirKeysWithAlibi) {
  ProblemSpec spec = Middling();
  spec.alibi = true;
  for (const int64_t q_start : {int64_t{1} << 20, int64_t{1} << 26, int64_t{1} << 30}) {
    SCOPED_TRACE(q_start);
    spec.params.q_start = q_start;
    const BackwardProblem of(spec, GetParam().dtype);
    ExpectWeightsSumToOne(of, of.Run(GetParam().Options()));
    ExpectWeightsSumToOne(of, of.RunKept(GetParam().Options(), Forward(of)));
  }
}

// The fast domain: no terms, and products of thousands.
TEST_P(BackwardLseTest, LargeProducts) {
  ProblemSpec spec = Middling();
  spec.magnitude = 50;
  const BackwardProblem of(spec, GetParam().dtype);
  ExpectWeightsSumToOne(of, of.Run(GetParam().Options()));
  ExpectWeightsSumToOne(of, of.RunKept(GetParam().Options(), Forward(of)));
}

// With scores all alike, v = 1 and dout = 1, n keys and a sink that is 1 larger: the sink weighs
// e / (n + e), and every delta is Dv n / (n + e).
TEST_P(BackwardLseTest, SinksBesideLargeScores) {
  for (const double bias : {-500.0, -1e5, 1e5}) {
    SCOPED_TRACE(bias);
    ProblemSpec spec = Biased();
    spec.sinks = true;
    BackwardProblem of(spec, GetParam().dtype);
    FillBias(of, bias);
    const auto fill = [](OwnedTensor& tensor, double value) {
      const ConstTensorView view = tensor.view;
      const std::vector<double> values(tensor.Values().size(), value);
      tensor = OwnedTensor::Of(values, view.dtype,
                               {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
    };
    fill(of.problem.q, 0);
    fill(of.problem.v, 1);
    fill(of.dout, 1);
    for (int64_t h = 0; h < spec.num_heads; ++h) of.problem.sinks.Set({h}, bias + 1);
    const BackwardResult result = of.Run(GetParam().Options());
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    const auto n = static_cast<double>(spec.seqlen_k);
    const double sink = std::exp(1.0) / (n + std::exp(1.0));
    const double rows = static_cast<double>(spec.batch * spec.seqlen_q);
    const double wanted = -rows * sink * static_cast<double>(spec.head_dim_v) * (1 - sink);
    const double tolerance = 4 * GradientRounding(GetParam().dtype);
    for (const double dsink : result.dsinks.Values()) {
      EXPECT_NEAR(dsink / wanted, 1, tolerance);
    }
    const double dv = static_cast<double>(spec.num_heads / spec.num_kv_heads * spec.seqlen_q) /
                      (n + std::exp(1.0));
    for (const double value : result.dv.Values()) EXPECT_NEAR(value / dv, 1, tolerance);
  }
}

// Keys sharded over two calls, each with out and lse of all of them: as one call, key by key.
TEST_P(BackwardLseTest, KeptResultsMayBeOfMoreKeys) {
  if (GetParam().kernel == Kernel::kNaive) GTEST_SKIP() << "the oracle uses no kept results";
  for (const double bias : {0.0, -1000.0}) {
    SCOPED_TRACE(bias);
    BackwardProblem of(Biased(), GetParam().dtype);
    FillBias(of, bias);
    const Result forward = Forward(of);
    const BackwardResult whole = of.RunKept(GetParam().Options(), forward);
    ASSERT_TRUE(whole.status.ok()) << whole.status.message();
    constexpr int64_t kFirst = 64;
    BackwardResult first = MakeBackwardResult(of.problem, kDv);
    BackwardInputs inputs = of.Inputs();
    inputs.out = forward.out_tensor.View();
    inputs.lse = forward.lse_tensor.View();
    AttentionParams params = of.spec().params;
    params.k_len = kFirst;
    const Status status = AttentionBackward(inputs, params, first.Outputs(), GetParam().Options());
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t j = 0; j < kFirst; ++j) {
      for (int64_t d = 0; d < of.spec().head_dim_v; ++d) {
        const double wanted = whole.dv.At({1, 1, j, d});
        EXPECT_NEAR(first.dv.At({1, 1, j, d}), wanted, 1e-3 * (1 + std::fabs(wanted))) << j;
      }
    }
  }
}

// An infinite dout leaves no gradient of q or k a number.
TEST_P(BackwardLseTest, InfiniteDout) {
  for (const double value : {kInf, -kInf, kNan}) {
    ProblemSpec spec = Middling();
    BackwardProblem of(spec, GetParam().dtype);
    of.dout.Set({1, 2, 5, 3}, value);
    const BackwardResult result = of.Run(GetParam().Options());
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    for (int64_t i = 0; i < spec.seqlen_q; ++i) {
      for (int64_t d = 0; d < spec.head_dim; ++d) {
        EXPECT_EQ(std::isnan(result.dq.At({1, 2, i, d})), i == 5) << i;
      }
    }
    for (int64_t j = 0; j < spec.seqlen_k; ++j) {
      EXPECT_TRUE(std::isnan(result.dk.At({1, 1, j, 0}))) << j;
      EXPECT_TRUE(std::isfinite(result.dk.At({1, 0, j, 0}))) << j;
      EXPECT_EQ(std::isfinite(result.dv.At({1, 1, j, 2})), true) << j;
      EXPECT_FALSE(std::isfinite(result.dv.At({1, 1, j, 3}))) << j;
    }
  }
}

FLASHLANE_INSTANTIATE_RUNS(BackwardLseTest, BackwardRuns());

}  // namespace
}  // namespace flashlane::testing
