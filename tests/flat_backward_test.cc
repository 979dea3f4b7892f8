// attnk.backward: gradients of small problems against finite differences; the check can fail.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dispatch/flat/gradcheck.h"
#include "flashlane/flat.h"
#include "tests/support/flat.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

const FlatDims kShapes[] = {{1, 1, 1, 1, 1}, {3, 5, 2, 1, 4}, {5, 3, 4, 2, 2}, {2, 9, 3, 3, 5}};

struct Gradients {
  explicit Gradients(const FlatProblem& problem)
      : dq(problem.q.size(), -77.0), dk(problem.k.size(), -77.0), dv(problem.v.size(), -77.0) {}
  FlatGradients All() { return {dq, dk, dv}; }
  std::vector<double> dq, dk, dv;
};

TEST(FlatBackwardTest, AgreesWithFiniteDifferences) {
  for (const FlatDims& dims : kShapes) {
    for (const double step : {1e-3, 1e-4, 1e-5, 1e-6}) {
      for (const bool causal : {false, true}) {
        FlatProblem problem(dims, 11);
        problem.AddBias(3);
        const GradcheckResult grad =
            attn_bwd_gradcheck_flat(problem.Inputs(), dims, {0.7, causal}, step);
        EXPECT_EQ(grad.status, ATTN_OK);
        EXPECT_TRUE(grad.agrees) << step << " " << grad.max_error << " " << grad.tolerance;
        EXPECT_LE(grad.max_error, 1e-5);
        EXPECT_EQ(grad.elements, dims.n_tok_q * dims.h_q * dims.head_dim);
      }
    }
  }
}

TEST(FlatBackwardTest, AgreesWhereInputsAreLarge) {
  FlatProblem problem({3, 5, 2, 1, 4}, 5);
  for (double& x : problem.q) x *= 20.0;
  for (double& x : problem.v) x *= 1000.0;
  for (const double step : {1e-3, 1e-5}) {
    const GradcheckResult grad =
        attn_bwd_gradcheck_flat(problem.Inputs(), problem.dims, {0.7, false}, step);
    EXPECT_EQ(grad.status, ATTN_OK);
    EXPECT_TRUE(grad.agrees) << step << " " << grad.max_error << " " << grad.tolerance;
  }
}

TEST(FlatBackwardTest, AnyDoutAndAnySubset) {
  const FlatProblem problem({3, 5, 2, 1, 4}, 21);
  const std::vector<double> dout = RandomDoubles(24, 8);
  const FlatBackwardInputs inputs = {problem.Inputs(), dout};
  const FlatParams params = {0.7, true};
  Gradients all(problem);
  ASSERT_EQ(sdpa_bwd_flat(inputs, problem.dims, params, all.All()), ATTN_OK);
  // One direction of all operands at once: d sum(dout out) along (dq, dk, dv) is its square length.
  const auto loss = [&](double t) {
    FlatProblem moved = problem;
    for (size_t i = 0; i < moved.q.size(); ++i) moved.q[i] += t * all.dq[i];
    for (size_t i = 0; i < moved.k.size(); ++i) moved.k[i] += t * all.dk[i];
    for (size_t i = 0; i < moved.v.size(); ++i) moved.v[i] += t * all.dv[i];
    const FlatResult result = PlainAttention(moved, params);
    double sum = 0;
    for (size_t i = 0; i < dout.size(); ++i) sum += dout[i] * result.out[i];
    return sum;
  };
  double length = 0;
  for (const auto* gradient : {&all.dq, &all.dk, &all.dv}) {
    for (const double x : *gradient) length += x * x;
  }
  EXPECT_NEAR((loss(1e-5) - loss(-1e-5)) / 2e-5 / length, 1.0, 1e-8);

  for (int which = 1; which < 8; ++which) {
    Gradients some(problem);
    FlatGradients asked = some.All();
    if (!(which & 1)) asked.dq = {};
    if (!(which & 2)) asked.dk = {};
    if (!(which & 4)) asked.dv = {};
    ASSERT_EQ(sdpa_bwd_flat(inputs, problem.dims, params, asked), ATTN_OK);
    EXPECT_EQ(some.dq, which & 1 ? all.dq : Gradients(problem).dq);
    EXPECT_EQ(some.dk, which & 2 ? all.dk : Gradients(problem).dk);
    EXPECT_EQ(some.dv, which & 4 ? all.dv : Gradients(problem).dv);
  }
  EXPECT_EQ(sdpa_bwd_flat(inputs, problem.dims, params, {}), ATTN_NO_OUTPUT);
}

// A gradient with one wrong element of one operand, and with a wrong sign, scale or head.
TEST(FlatBackwardTest, GradcheckCanFail) {
  const FlatProblem problem({3, 5, 2, 1, 4}, 21);
  const std::vector<double> dout(24, 1.0);
  const FlatInputs in = problem.Inputs();
  const FlatParams params = {0.7, false};
  Gradients right(problem);
  ASSERT_EQ(sdpa_bwd_flat({in, dout}, problem.dims, params, right.All()), ATTN_OK);
  const auto agrees = [&](Gradients gradients) {
    GradcheckResult result;
    EXPECT_EQ(CheckGradients({in, problem.dims, params, 1e-4, {}}, gradients.All(), &result),
              ATTN_OK);
    return result.agrees;
  };
  EXPECT_TRUE(agrees(right));
  for (std::vector<double> Gradients::*operand : {&Gradients::dq, &Gradients::dk, &Gradients::dv}) {
    for (size_t i = 0; i < (right.*operand).size(); ++i) {
      for (const double error : {1e-5, -1e-5, std::nan("")}) {
        Gradients wrong = right;
        (wrong.*operand)[i] += error;
        EXPECT_FALSE(agrees(wrong)) << i;
      }
    }
    Gradients wrong = right;
    for (double& x : wrong.*operand) x = -x;
    EXPECT_FALSE(agrees(wrong));
    wrong = right;
    for (double& x : wrong.*operand) x *= 0.5;
    EXPECT_FALSE(agrees(wrong));
  }
}

// Scores of -1e9 have little left of what a step changes: in their own row, and in no other.
TEST(FlatBackwardTest, ARowThatIsMaskedAwayHidesNoMistakeOfOthers) {
  FlatProblem problem({3, 3, 1, 1, 2}, 5);
  problem.bias.assign(9, 0.0);
  std::fill_n(problem.bias.begin(), 3, kMaskedBias);
  const std::vector<double> dout(6, 1.0);
  const FlatInputs in = problem.Inputs();
  Gradients right(problem);
  ASSERT_EQ(sdpa_bwd_flat({in, dout}, problem.dims, {0.7, false}, right.All()), ATTN_OK);
  const auto agrees = [&](Gradients gradients) {
    GradcheckResult result;
    EXPECT_EQ(CheckGradients({in, problem.dims, {0.7, false}, 1e-4, {}}, gradients.All(), &result),
              ATTN_OK);
    return result.agrees;
  };
  EXPECT_TRUE(agrees(right));
  for (size_t i = 2; i < 6; ++i) {  // of queries 1 and 2
    Gradients wrong = right;
    wrong.dq[i] += 1e-5;
    EXPECT_FALSE(agrees(wrong)) << i;
  }
  for (size_t i = 0; i < 6; ++i) {  // linear: scores do not move
    Gradients wrong = right;
    wrong.dv[i] += 1e-5;
    EXPECT_FALSE(agrees(wrong)) << i;
  }
}

TEST(FlatBackwardTest, NoTokensTakeNoTimeHoweverManyTheHeads) {
  double gradient = -77.0;
  const FlatGradients gradients{{&gradient, 0}};
  EXPECT_EQ(sdpa_bwd_flat({}, {0, 0, int64_t{1} << 50, int64_t{1} << 50, 8}, {}, gradients),
            ATTN_OK);
  EXPECT_EQ(gradient, -77.0);
}

TEST(FlatBackwardTest, StepsThatRoundingSwallows) {
  FlatProblem problem({2, 2, 1, 1, 2}, 3);
  problem.k[3] = 1e20;
  const GradcheckResult grad =
      attn_bwd_gradcheck_flat(problem.Inputs(), problem.dims, {1e-20, false}, 1e-4);
  EXPECT_EQ(grad.status, ATTN_BAD_STEP);
  EXPECT_FALSE(grad.agrees);
  EXPECT_EQ(grad.elements, 0);
}

TEST(FlatBackwardTest, WhatIsNotFiniteDoesNotAgree) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (std::vector<double> FlatProblem::*operand :
         {&FlatProblem::q, &FlatProblem::k, &FlatProblem::v}) {
      FlatProblem problem({2, 2, 1, 1, 2}, 3);
      (problem.*operand)[1] = bad;
      const GradcheckResult grad =
          attn_bwd_gradcheck_flat(problem.Inputs(), problem.dims, {1.0, false}, 1e-4);
      EXPECT_EQ(grad.status, ATTN_OK);
      EXPECT_FALSE(grad.agrees) << bad;
      EXPECT_EQ(grad.max_error, HUGE_VAL) << bad;
    }
  }
}

TEST(FlatBackwardTest, NothingToDo) {
  Gradients none(FlatProblem({0, 0, 1, 1, 2}));
  EXPECT_EQ(sdpa_bwd_flat({}, {0, 0, 1, 1, 2}, {1.0, false}, none.All()), ATTN_OK);
  const GradcheckResult nothing = attn_bwd_gradcheck_flat({}, {0, 0, 1, 1, 2}, {1.0, false}, 0.1);
  EXPECT_EQ(nothing.status, ATTN_OK);
  EXPECT_TRUE(nothing.agrees);
  const FlatProblem keys({0, 3, 1, 1, 2});
  Gradients gradients(keys);
  EXPECT_EQ(sdpa_bwd_flat({keys.Inputs(), {}}, keys.dims, {1.0, false}, gradients.All()), ATTN_OK);
  EXPECT_EQ(gradients.dk, std::vector<double>(6, 0.0));
  EXPECT_EQ(gradients.dv, std::vector<double>(6, 0.0));
  const GradcheckResult grad = attn_bwd_gradcheck_flat(keys.Inputs(), keys.dims, {1.0, false}, 0.1);
  EXPECT_EQ(grad.status, ATTN_OK);
  EXPECT_TRUE(grad.agrees);
  EXPECT_EQ(grad.elements, 0);
}

}  // namespace
}  // namespace flashlane::testing
