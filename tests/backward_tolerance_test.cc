// The comparator of gradients accepts what is right and refuses what is wrong: mistakes that a
// backward makes, planted one at a time.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/dtype.h"
#include "dispatch/tolerance.h"
#include "tests/support/backward.h"
#include "tests/support/numbers.h"

namespace flashlane::testing {
namespace {

class BackwardToleranceTest : public ::testing::TestWithParam<DType> {
 protected:
  static BackwardResult Oracle(const BackwardProblem& problem) {
    ExecOptions options;
    options.kernel = Kernel::kNaive;
    options.accumulator = GetParam() == DType::kF64 ? Accumulator::kF64 : Accumulator::kF32;
    return problem.Run(options);
  }
  static ProblemSpec Spec() {
    ProblemSpec spec;
    spec.batch = 2;
    spec.num_heads = 4;
    spec.num_kv_heads = 2;
    spec.seqlen_q = 24;
    spec.seqlen_k = 40;
    spec.head_dim = spec.head_dim_v = 16;
    return spec;
  }
  // The gradients of another problem must not pass for those of this one, its own must.
  static void ExpectTold(const ProblemSpec& right, const ProblemSpec& wrong) {
    const BackwardProblem problem(right, GetParam());
    const BackwardReference reference = ReferenceOf(problem);
    EXPECT_TRUE(Agrees(reference, Oracle(problem))) << right.ToString();
    EXPECT_FALSE(Agrees(reference, Oracle(BackwardProblem(wrong, GetParam())))) << wrong.ToString();
  }
};

TEST_P(BackwardToleranceTest, ACallThatIsNotQuiteTheSame) {
  ProblemSpec causal = Spec();
  causal.params.causal = true;
  ProblemSpec shifted = causal;
  shifted.params.q_start = 1;
  ExpectTold(causal, shifted);
  ProblemSpec window = Spec();
  window.params.window_size_left = 7;
  ProblemSpec wider = window;
  wider.params.window_size_left = 8;
  ExpectTold(window, wider);
  ProblemSpec scaled = Spec();
  scaled.params.softmax_scale = 0.27;
  ExpectTold(Spec(), scaled);
  ProblemSpec capped = Spec();
  capped.params.softcap = 3.0;
  ProblemSpec otherwise = capped;
  otherwise.params.softcap = 3.5;
  ExpectTold(capped, otherwise);
  ProblemSpec short_keys = Spec();
  short_keys.params.k_len = 39;
  ExpectTold(Spec(), short_keys);
}

// Each gradient, each on its own.
TEST_P(BackwardToleranceTest, OneElementThatIsOff) {
  ProblemSpec spec = Spec();
  spec.sinks = true;
  spec.bias_dims = 14;
  const BackwardProblem problem(spec, GetParam());
  const BackwardReference reference = ReferenceOf(problem);
  const BackwardResult right = Oracle(problem);
  // Weights and dS may have been rounded to bf16.
  const double roundings = GetParam() == DType::kBF16 ? 60 : 10;
  const double relative = std::max(1e-4, roundings * UnitRoundoff(GetParam()));
  const struct {
    const GradientReference& truth;
    const OwnedTensor& tensor;
  } gradients[] = {{reference.dq, right.dq},
                   {reference.dk, right.dk},
                   {reference.dv, right.dv},
                   {reference.dbias, right.dbias},
                   {reference.dsinks, right.dsinks}};
  for (const auto& [truth, tensor] : gradients) {
    EXPECT_TRUE(CompareGradient(truth, tensor.View()).agrees) << truth.name;
    const std::vector<double>& values = truth.values;
    const auto largest = std::max_element(
        values.begin(), values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
    const auto at = static_cast<size_t>(largest - values.begin());
    // dsinks is a sum of both signs over all rows, each with the rounding of its out.
    const double off = truth.rank == 1 ? std::max(0.01, 50 * relative) : relative;
    for (const double wrong :
         {*largest * (1 + off), -*largest, 0.0, std::numeric_limits<double>::quiet_NaN(),
          std::numeric_limits<double>::infinity()}) {
      std::vector<double> changed = tensor.Values();
      changed[at] = wrong;
      OwnedTensor copy = tensor;
      ConstTensorView view = tensor.view;
      // Row-major tensors: the results of this layout are dense.
      std::vector<std::byte> bytes(copy.storage.size());
      ConvertElements(changed.data(), DType::kF64, bytes.data(), view.dtype,
                      static_cast<int64_t>(changed.size()));
      copy.storage = bytes;
      const Comparison comparison = CompareGradient(truth, copy.View());
      EXPECT_FALSE(comparison.agrees) << truth.name << " " << wrong;
      EXPECT_EQ(comparison.message.rfind(std::string(truth.name) + "[", 0), 0u)
          << comparison.message;
    }
    ConstTensorView other = tensor.View();
    other.shape[0] -= 1;
    EXPECT_FALSE(CompareGradient(truth, other).agrees);
    other = tensor.View();
    other.dtype = DType::kI32;
    EXPECT_FALSE(CompareGradient(truth, other).agrees);
  }
}

// Sums that miss a term: heads of a group not summed, delta left out.
TEST_P(BackwardToleranceTest, WhatABackwardForgets) {
  ProblemSpec spec = Spec();
  const BackwardProblem problem(spec, GetParam());
  const BackwardReference reference = ReferenceOf(problem);
  BackwardProblem one_head = problem;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < spec.seqlen_q; ++i) {
      for (int64_t d = 0; d < spec.head_dim_v; ++d) one_head.dout.Set({b, 1, i, d}, 0.0);
    }
  }
  const BackwardResult partial = Oracle(one_head);
  EXPECT_FALSE(CompareGradient(reference.dk, partial.dk.View()).agrees);
  EXPECT_FALSE(CompareGradient(reference.dv, partial.dv.View()).agrees);

  Result forward = problem.problem.Run({});
  for (std::byte& byte : forward.out_tensor.storage) byte = std::byte{0};  // so that delta is 0
  const BackwardResult no_delta = problem.RunKept({}, forward);
  ASSERT_TRUE(no_delta.status.ok()) << no_delta.status.message();
  EXPECT_FALSE(CompareGradient(reference.dq, no_delta.dq.View()).agrees);
  EXPECT_FALSE(CompareGradient(reference.dk, no_delta.dk.View()).agrees);
  EXPECT_TRUE(CompareGradient(reference.dv, no_delta.dv.View()).agrees);
}

// What nothing contributes to is exactly zero.
TEST_P(BackwardToleranceTest, AlmostZeroIsNotZero) {
  ProblemSpec spec = Spec();
  spec.params.k_len = 30;
  spec.params.window_size_left = 2;
  spec.params.q_start = 20;  // rows from 12 on see nothing
  const BackwardProblem problem(spec, GetParam());
  const BackwardReference reference = ReferenceOf(problem);
  BackwardResult result = Oracle(problem);
  EXPECT_TRUE(Agrees(reference, result));
  const double least = GetParam() == DType::kF16 ? 6e-8 : 1e-38;
  BackwardResult wrong = result;
  wrong.dk.Set({1, 1, 30, 3}, least);
  EXPECT_FALSE(Agrees(reference, wrong));
  wrong = result;
  wrong.dv.Set({0, 1, 39, 0}, least);
  EXPECT_FALSE(Agrees(reference, wrong));
  wrong = result;
  wrong.dq.Set({0, 3, 20, 5}, -least);
  EXPECT_FALSE(Agrees(reference, wrong));
}

// A row that is NaN throughout in the truth is not one that nothing contributes to.
TEST_P(BackwardToleranceTest, RowsOfNaN) {
  BackwardProblem problem(Spec(), GetParam());
  problem.problem.q.Set({1, 2, 7, 3}, kNan);
  const BackwardReference reference = ReferenceOf(problem);
  BackwardResult result = Oracle(problem);
  EXPECT_TRUE(std::isnan(result.dq.At({1, 2, 7, 0})));
  EXPECT_TRUE(Agrees(reference, result));
  for (const double wrong : {0.0, 1.0}) {
    result.dq.Set({1, 2, 7, 0}, wrong);
    EXPECT_FALSE(Agrees(reference, result)) << wrong;
  }
}

// A sum that may be off by enough to leave the numbers of its dtype.
TEST_P(BackwardToleranceTest, InfinityWithinTheTolerance) {
  const double largest = GetParam() == DType::kF16    ? 65504.0
                         : GetParam() == DType::kF64  ? std::numeric_limits<double>::max()
                         : GetParam() == DType::kBF16 ? 0x1.FEp127
                                                      : 0x1.FFFFFEp127;
  GradientReference reference;
  reference.name = "dq";
  reference.rank = 4;
  reference.shape[0] = reference.shape[1] = 1;
  reference.shape[2] = 3;
  reference.shape[3] = 1;
  reference.values = {largest, -largest, largest / 2};
  reference.row_tolerance = {largest / 64, largest / 64, largest / 64};
  const auto agrees = [&](const std::vector<double>& values) {
    const OwnedTensor tensor = OwnedTensor::Of(values, GetParam(), {1, 1, 3, 1});
    return CompareGradient(reference, tensor.View()).agrees;
  };
  EXPECT_TRUE(agrees(reference.values));
  EXPECT_TRUE(agrees({kInf, -largest, largest / 2}));
  EXPECT_TRUE(agrees({largest, -kInf, largest / 2}));
  EXPECT_FALSE(agrees({-kInf, -largest, largest / 2}));
  EXPECT_FALSE(agrees({largest, -largest, kInf}));
  reference.row_tolerance[0] = largest * 0x1p-60;  // less than a rounding
  EXPECT_FALSE(agrees({kInf, -largest, largest / 2}));
}

// The slope of the cap left out: dq = scale dS k and dk = scale dS^T q, with dS = dbias.
TEST_P(BackwardToleranceTest, TheSlopeOfTheCapIsMissed) {
  ProblemSpec spec = Spec();
  spec.bias_dims = 15;
  const auto without_slope = [&](bool of_keys) {
    const BackwardProblem problem(spec, GetParam());
    const BackwardReference reference = ReferenceOf(problem);
    const GradientReference& truth = of_keys ? reference.dk : reference.dq;
    std::vector<double> sums(truth.values.size());
    for (int64_t at = 0; at < std::ssize(reference.dbias.values); ++at) {
      const int64_t j = at % 40, i = at / 40 % 24, head = at / 40 / 24 % 4, b = at / 40 / 24 / 4;
      const double ds = reference.dbias.values[static_cast<size_t>(at)] / 4;  // scale
      for (int64_t d = 0; d < 16; ++d) {
        if (of_keys) {
          sums[static_cast<size_t>(((b * 2 + head / 2) * 40 + j) * 16 + d)] +=
              ds * problem.problem.q.At({b, head, i, d});
        } else {
          sums[static_cast<size_t>(((b * 4 + head) * 24 + i) * 16 + d)] +=
              ds * problem.problem.k.At({b, head / 2, j, d});
        }
      }
    }
    const int64_t* s = truth.shape;
    const OwnedTensor tensor = OwnedTensor::Of(sums, GetParam(), {s[0], s[1], s[2], s[3]});
    return CompareGradient(truth, tensor.View()).agrees;
  };
  for (const bool of_keys : {false, true}) {
    spec.params.softcap.reset();
    EXPECT_TRUE(without_slope(of_keys));  // where nothing is capped
    for (const double softcap : {1.0, 6.0}) {
      spec.params.softcap = softcap;
      EXPECT_FALSE(without_slope(of_keys)) << softcap;
    }
  }
}

TEST_P(BackwardToleranceTest, TakesAnswersFromElsewhere) {
  const BackwardProblem problem(Spec(), GetParam());
  BackwardReference reference = ReferenceOf(problem);
  std::vector<double> dk = reference.dk.values;
  BackwardAnswers answers;
  answers.dk = ConstTensorView(dk.data(), DType::kF64, {2, 2, 40, 16});
  const AttentionParams& params = problem.spec().params;
  ASSERT_TRUE(MakeBackwardReference(problem.Inputs(), params, answers, 0, &reference).ok());
  EXPECT_TRUE(Agrees(reference, Oracle(problem)));
  dk[7] += 0.5;
  ASSERT_TRUE(MakeBackwardReference(problem.Inputs(), params, answers, 0, &reference).ok());
  EXPECT_FALSE(Agrees(reference, Oracle(problem)));
  answers.dk.shape[3] = 15;
  EXPECT_FALSE(MakeBackwardReference(problem.Inputs(), params, answers, 0, &reference).ok());
  answers.dk = ConstTensorView(dk.data(), DType::kF32, {2, 2, 40, 16});
  EXPECT_FALSE(MakeBackwardReference(problem.Inputs(), params, answers, 0, &reference).ok());
}

TEST_P(BackwardToleranceTest, PassesErrorsOn) {
  const BackwardProblem problem(Spec(), GetParam());
  BackwardReference reference;
  BackwardInputs inputs = problem.Inputs();
  inputs.dout.shape[2] = 23;
  EXPECT_EQ(MakeBackwardReference(inputs, {}, {}, 0, &reference).code(),
            StatusCode::kInvalidArgument);
  inputs.dout = {};
  EXPECT_EQ(MakeBackwardReference(inputs, {}, {}, 0, &reference).code(),
            StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(All, BackwardToleranceTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

}  // namespace
}  // namespace flashlane::testing
