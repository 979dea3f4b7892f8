// Every rule of dispatch/tolerance.h accepts what is right and refuses what is wrong. The errors
// planted are those that kernels make: a mask that is off by one key, a scale that is forgotten.

#include "dispatch/tolerance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

#include "dispatch/dtype.h"
#include "tests/support/compare.h"
#include "tests/support/numbers.h"
#include "tests/support/problem.h"

namespace flashlane::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A result as the reference would have it exactly, rounded to the dtypes of a call.
struct Exact {
  OwnedTensor out, lse;

  Exact(const ForwardReference& reference, DType dtype)
      : out(OwnedTensor::Of(
            reference.out, dtype,
            {reference.shape[0], reference.shape[1], reference.shape[2], reference.shape[3]})),
        lse(OwnedTensor::Of(reference.lse, dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                            {reference.shape[0], reference.shape[1], reference.shape[2]})) {}
};

ProblemSpec Spec(int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim) {
  ProblemSpec spec;
  spec.num_heads = 2;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_k = seqlen_k;
  spec.head_dim = spec.head_dim_v = head_dim;
  return spec;
}

class ToleranceTest : public ::testing::TestWithParam<DType> {
 protected:
  static Result Oracle(const Problem& problem) {
    ExecOptions options;
    options.kernel = Kernel::kNaive;
    options.accumulator = GetParam() == DType::kF64 ? Accumulator::kF64 : Accumulator::kF32;
    return problem.Run(options);
  }

  // The oracle's result of `wrong` must not pass for that of `right`, its own must.
  static void ExpectTold(const ProblemSpec& right, const ProblemSpec& wrong) {
    const Problem problem(right, GetParam());
    const ForwardReference reference = ReferenceOf(problem);
    EXPECT_TRUE(Agrees(reference, Oracle(problem))) << right.ToString();
    EXPECT_FALSE(Agrees(reference, Oracle(Problem(wrong, GetParam())))) << wrong.ToString();
  }
};

TEST_P(ToleranceTest, AcceptsTheRoundedTruth) {
  const Problem problem(Spec(9, 40, 16), GetParam());
  const ForwardReference reference = ReferenceOf(problem);
  const Exact exact(reference, GetParam());
  const Comparison out = CompareOut(reference, exact.out.View());
  EXPECT_TRUE(out.agrees) << out.message;
  EXPECT_LE(out.fraction, 1.0);
  EXPECT_TRUE(out.message.empty());
  const Comparison lse = CompareLse(reference, exact.lse.View());
  EXPECT_TRUE(lse.agrees) << lse.message;
}

TEST_P(ToleranceTest, TellsAMaskThatIsOffByOneKey) {
  ProblemSpec right = Spec(30, 1111, 16);
  right.params.k_len = 1111;
  ProblemSpec wrong = right;
  wrong.params.k_len = 1110;
  ExpectTold(right, wrong);

  right = Spec(600, 600, 16);
  right.params.causal = true;
  wrong = right;
  wrong.params.q_start = -1;
  ExpectTold(right, wrong);

  right = Spec(300, 300, 16);
  right.params.window_size_left = 200;
  wrong = right;
  wrong.params.window_size_left = 201;
  ExpectTold(right, wrong);
}

TEST_P(ToleranceTest, TellsAForgottenParameter) {
  const ProblemSpec plain = Spec(12, 90, 16);
  ProblemSpec spec = plain;
  spec.params.softmax_scale = 0.26;  // 0.25 by default
  ExpectTold(spec, plain);
  spec = plain;
  spec.params.softcap = 10.0;
  ExpectTold(spec, plain);
  spec = plain;
  spec.alibi = true;
  ExpectTold(spec, plain);
  spec = plain;
  spec.sinks = true;
  ExpectTold(spec, plain);
  spec = plain;
  spec.bias_dims = 8;
  ExpectTold(spec, plain);
  spec = plain;
  spec.mask_dims = 15;
  ExpectTold(spec, plain);
}

// One element that is off by a little more than it may, in a tensor that is otherwise exact.
TEST_P(ToleranceTest, TellsOneElementAndSaysWhich) {
  const Problem problem(Spec(5, 33, 8), GetParam());
  const ForwardReference reference = ReferenceOf(problem);
  Exact exact(reference, GetParam());
  const std::size_t row = 5 + 3;  // head 1, query 3
  const double value = exact.out.At({0, 1, 3, 6});
  const double allowed = reference.out_row_tolerance[row] + RoundingError(GetParam(), value);
  exact.out.Set({0, 1, 3, 6}, value + 2.5 * allowed + 2 * RoundingError(GetParam(), value));
  const Comparison out = CompareOut(reference, exact.out.View());
  EXPECT_FALSE(out.agrees);
  EXPECT_GT(out.fraction, 1.0);
  EXPECT_EQ(out.worst_error, out.max_error);
  EXPECT_EQ(std::vector<std::int64_t>(out.index, out.index + 4),
            (std::vector<std::int64_t>{0, 1, 3, 6}));
  EXPECT_NE(out.message.find("out[0,1,3,6] is "), std::string::npos) << out.message;

  exact.lse.Set({0, 1, 3}, exact.lse.At({0, 1, 3}) + 1e-3);
  const Comparison lse = CompareLse(reference, exact.lse.View());
  EXPECT_FALSE(lse.agrees);
  EXPECT_NE(lse.message.find("lse[0,1,3] is "), std::string::npos) << lse.message;
}

TEST_P(ToleranceTest, NonFiniteValuesStandExactlyWhereTheTruthHasThem) {
  Problem problem(Spec(3, 4, 8), GetParam());
  problem.v.Set({0, 0, 2, 1}, kInf);
  problem.v.Set({0, 0, 2, 2}, kNaN);
  problem.q.Set({0, 1, 2, 0}, kNaN);
  const ForwardReference reference = ReferenceOf(problem);
  EXPECT_TRUE(Agrees(reference, Oracle(problem)));
  const Exact exact(reference, GetParam());
  ASSERT_TRUE(CompareOut(reference, exact.out.View()).agrees);

  const auto refuses = [&](std::initializer_list<int64_t> at, double value) {
    Exact changed(reference, GetParam());
    changed.out.Set(at, value);
    const Comparison out = CompareOut(reference, changed.out.View());
    EXPECT_EQ(out.fraction, kInf) << out.message;
    EXPECT_FALSE(out.agrees);
  };
  refuses({0, 0, 0, 0}, kNaN);   // for a number
  refuses({0, 0, 0, 0}, kInf);   // for a number
  refuses({0, 0, 0, 1}, 1.0);    // for +inf
  refuses({0, 0, 0, 1}, -kInf);  // for +inf
  refuses({0, 0, 0, 1}, kNaN);   // for +inf
  refuses({0, 0, 0, 2}, 1.0);    // for NaN
  refuses({0, 1, 2, 0}, 0.0);    // for a NaN row
}

TEST_P(ToleranceTest, RowsWithoutKeysAreExactlyZero) {
  ProblemSpec spec = Spec(3, 4, 8);
  spec.params.k_len = 0;
  const Problem problem(spec, GetParam());
  const ForwardReference reference = ReferenceOf(problem);
  EXPECT_TRUE(Agrees(reference, Oracle(problem)));
  Exact exact(reference, GetParam());
  exact.out.Set({0, 1, 1, 7}, 1e-7);
  EXPECT_FALSE(CompareOut(reference, exact.out.View()).agrees);
  exact.lse.Set({0, 0, 0}, -1e30);
  EXPECT_FALSE(CompareLse(reference, exact.lse.View()).agrees);
}

// What is masked may hold anything, and must not loosen the tolerance of what is not.
TEST_P(ToleranceTest, MaskedValuesDoNotCount) {
  ProblemSpec spec = Spec(4, 50, 8);
  spec.params.causal = true;
  Problem problem(spec, GetParam());
  const std::vector<double> before = ReferenceOf(problem).out_row_tolerance;
  for (int64_t d = 0; d < 8; ++d) {
    problem.k.Set({0, 0, 20, d}, 60000.0);
    problem.v.Set({0, 0, 21, d}, 60000.0);
    problem.v.Set({0, 0, 22, d}, kNaN);
  }
  EXPECT_EQ(ReferenceOf(problem).out_row_tolerance, before);
}

// The answers of a file take the oracle's place, and an oracle that is wrong excuses nothing.
TEST_P(ToleranceTest, AnswersRuleAndABrokenOracleExcusesNothing) {
  const Problem problem(Spec(6, 64, 16), GetParam());
  ForwardReference reference = ReferenceOf(problem);
  const Exact truth(reference, DType::kF64);
  const ForwardAnswers answers{truth.out.View(), truth.lse.View()};
  ASSERT_TRUE(MakeForwardReference(problem.Inputs(), {}, answers, 0, &reference).ok());
  EXPECT_TRUE(Agrees(reference, Oracle(problem)));

  // Answers of another problem: the oracle's error against them is large, and is not believed.
  ProblemSpec other = problem.spec();
  other.params.k_len = 60;
  const Exact wrong(ReferenceOf(Problem(other, GetParam())), DType::kF64);
  const ForwardAnswers wrong_answers{wrong.out.View(), wrong.lse.View()};
  ASSERT_TRUE(MakeForwardReference(problem.Inputs(), {}, wrong_answers, 0, &reference).ok());
  EXPECT_FALSE(Agrees(reference, Oracle(problem)));

  const ForwardAnswers misshapen{truth.lse.View(), {}};
  EXPECT_FALSE(MakeForwardReference(problem.Inputs(), {}, misshapen, 0, &reference).ok());
}

TEST_P(ToleranceTest, RefusesOtherShapes) {
  const Problem problem(Spec(3, 4, 8), GetParam());
  const ForwardReference reference = ReferenceOf(problem);
  const Exact exact(reference, GetParam());
  EXPECT_FALSE(CompareOut(reference, exact.lse.View()).agrees);
  EXPECT_FALSE(CompareLse(reference, exact.out.View()).agrees);
  ConstTensorView longer = exact.out.View();
  longer.shape[2] = 2;
  EXPECT_FALSE(CompareOut(reference, longer).agrees);
  EXPECT_FALSE(CompareOut(reference, {}).agrees);
}

INSTANTIATE_TEST_SUITE_P(All, ToleranceTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

// A relative error of 2^-20 in every weight: half of f32's digits lost, far from visible to the
// eye.
TEST(ToleranceF32, TellsAnInexactExponential) {
  const Problem problem(Spec(20, 100, 32), DType::kF32);
  const ForwardReference reference = ReferenceOf(problem);
  std::vector<double> lse = reference.lse;
  for (double& value : lse) value += 0x1p-17;
  const OwnedTensor wrong = OwnedTensor::Of(lse, DType::kF32, {1, 2, 20});
  EXPECT_FALSE(CompareLse(reference, wrong.View()).agrees);
}

// Scores that f32 cannot resolve (a bias of -1e30 on every key): the tolerance stays finite and
// useful.
TEST(ToleranceF32, HugeScoresDoNotMakeItBlind) {
  ProblemSpec spec = Spec(4, 16, 8);
  spec.bias_dims = 8;
  Problem problem(spec, DType::kF32);
  for (int64_t j = 0; j < 16; ++j) problem.bias.Set({0, 0, 0, j}, -1e30);
  const ForwardReference reference = ReferenceOf(problem);
  Exact exact(reference, DType::kF32);
  ASSERT_TRUE(CompareOut(reference, exact.out.View()).agrees);
  // The uniform mean over 16 keys, less one of them.
  exact.out.Set({0, 0, 0, 0}, exact.out.At({0, 0, 0, 0}) + 0.05);
  EXPECT_FALSE(CompareOut(reference, exact.out.View()).agrees);
}

// A score that overflows f32 on the way says nothing about the kernel; the rows beside it are
// judged.
TEST(ToleranceF32, RowsThatOverflowAreNotJudged) {
  ProblemSpec spec = Spec(3, 5, 8);
  spec.params.softmax_scale = 1e-30;
  Problem problem(spec, DType::kF32);
  for (int64_t d = 0; d < 8; ++d) {
    problem.q.Set({0, 0, 1, d}, 1e38);
    for (int64_t j = 0; j < 5; ++j) problem.k.Set({0, 0, j, d}, 1e2);
  }
  const ForwardReference reference = ReferenceOf(problem);
  Exact exact(reference, DType::kF32);
  exact.out.Set({0, 0, 1, 0}, kNaN);
  exact.lse.Set({0, 0, 1}, kInf);
  EXPECT_TRUE(CompareOut(reference, exact.out.View()).agrees);
  EXPECT_TRUE(CompareLse(reference, exact.lse.View()).agrees);
  exact.out.Set({0, 0, 2, 0}, kNaN);
  EXPECT_FALSE(CompareOut(reference, exact.out.View()).agrees);
}

// An lse that f32 cannot hold is rounded to infinity, and a large one to its neighbour.
TEST(ToleranceF32, LargeValuesAreRoundedAsTheDTypeDoes) {
  ForwardReference reference;
  reference.shape[0] = reference.shape[1] = reference.shape[3] = 1;
  reference.shape[2] = 2;
  reference.out = {1e39, 1e38};
  reference.lse = {0.0, 0.0};
  reference.out_row_tolerance = reference.lse_row_tolerance = {0.0, 0.0};
  const auto agrees = [&](double first, double second) {
    const OwnedTensor out = OwnedTensor::Of({first, second}, DType::kF32, {1, 1, 2, 1});
    return CompareOut(reference, out.View()).agrees;
  };
  EXPECT_TRUE(agrees(kInf, 1e38));
  EXPECT_FALSE(agrees(-kInf, 1e38));
  EXPECT_FALSE(agrees(kInf, kInf));
  EXPECT_FALSE(agrees(3e38, 1e38));
}

}  // namespace
}  // namespace flashlane::testing
