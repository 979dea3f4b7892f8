// The ends of the range: sums that leave it on the way, sinks, caps and values near the largest
// number, and what is not finite in an order that must not matter.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/numbers.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"
#include "tests/support/specs.h"

namespace flashlane::testing {
namespace {

constexpr double kLargestF32 = std::numeric_limits<float>::max();

class RangeTest : public RunTest {
 protected:
  Problem Make(const ProblemSpec& spec) const { return Problem(spec, GetParam().dtype); }
  Result Run(const Problem& problem) const { return problem.Run(GetParam().Options()); }
  // Whether `count` queries from `first` on give, in a call of their own, the bits they have in
  // `all`; of a problem with one head.
  bool SameRows(const Problem& problem, const Result& all, int64_t first, int64_t count) const {
    ProblemSpec spec = problem.spec();
    spec.seqlen_q = count;
    spec.params.q_start = spec.params.q_start.value + first;
    Problem alone = Make(spec);
    alone.k = problem.k;
    alone.v = problem.v;
    alone.alibi_slopes = problem.alibi_slopes;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t d = 0; d < spec.head_dim; ++d) {
        alone.q.Set({0, 0, i, d}, problem.q.At({0, 0, first + i, d}));
      }
    }
    const Result result = Run(alone);
    const double* want = all.out.data() + first * spec.head_dim_v;
    return std::memcmp(result.out.data(), want, result.out.size() * sizeof(double)) == 0;
  }
  void ExpectTrue(const Problem& problem) const {
    EXPECT_TRUE(Agrees(ReferenceOf(problem), Run(problem))) << problem.spec().ToString();
  }
  bool HasRangeOfF32() const {
    return GetParam().dtype == DType::kF32 || GetParam().dtype == DType::kBF16;
  }
};

// Halves of a dot product that cancel: times log2(e) the first would be -inf, and look like a mask.
TEST_P(RangeTest, APartialSumNearTheLargestNumber) {
  if (!HasRangeOfF32()) return;
  for (const double scale : {1.0, -1.0, 4.0}) {
    ProblemSpec spec = Shape(1, 2, 2);
    spec.params.softmax_scale = scale;
    Problem problem = Make(spec);
    const double big = std::ldexp(1.0, 64);
    for (int64_t d = 0; d < 2; ++d) {
      problem.q.Set({0, 0, 0, d}, big);
      problem.k.Set({0, 0, 0, d}, (d == 0 ? -0.9375 : 0.9375) * big);
      problem.k.Set({0, 0, 1, d}, 0.0);
      problem.v.Set({0, 0, 0, d}, 2.0);
      problem.v.Set({0, 0, 1, d}, 0.0);
    }
    const Result result = Run(problem);
    EXPECT_EQ(result.out[0], 1.0) << scale;
    EXPECT_NEAR(result.lse[0], std::log(2.0), 1e-6) << scale;
  }
}

TEST_P(RangeTest, SinksOfAnySize) {
  for (const double sink : {-kLargestF32, -1e4, 0.0, 1e4, kLargestF32, -kInf}) {
    ProblemSpec spec = Shape(3, 20, 4);
    spec.sinks = spec.f32_terms = true;
    Problem problem = Make(spec);
    problem.sinks.Set({0}, sink);
    const Result result = Run(problem);
    for (const double lse : result.lse) EXPECT_TRUE(std::isfinite(lse)) << sink;
    ExpectTrue(problem);
  }
}

TEST_P(RangeTest, ASinkDoesNotFillARowWithoutWeight) {
  ProblemSpec spec = Shape(2, 5, 1);
  spec.params.softmax_scale = 1.0;
  spec.sinks = true;
  Problem problem = Make(spec);
  for (int64_t i = 0; i < 2; ++i) problem.q.Set({0, 0, i, 0}, 1.0);
  for (int64_t j = 0; j < 5; ++j) problem.k.Set({0, 0, j, 0}, -kInf);
  const Result result = Run(problem);
  for (const double lse : result.lse) EXPECT_EQ(lse, -kInf);
  for (const double out : result.out) EXPECT_EQ(out, 0.0);
}

TEST_P(RangeTest, SoftcapsOfAnySize) {
  for (const double softcap : {1e-39, 1e-30, 1e-3, 1e4, 1e30, kLargestF32}) {
    ProblemSpec spec = Shape(4, 30, 6);
    spec.params.softcap = softcap;
    Problem problem = Make(spec);
    ExpectTrue(problem);
    for (int64_t d = 0; d < 6; ++d) problem.q.Set({0, 0, 0, d}, 0.0);
    ExpectTrue(problem);
    problem.q.Set({0, 0, 1, 2}, kNan);
    EXPECT_TRUE(std::isnan(Run(problem).out[6])) << softcap;
    ExpectTrue(problem);
  }
}

// The oracle of a half type rounds to it after every operation, but takes the parameters as they
// are.
TEST_P(RangeTest, ParametersBeyondTheHalfTypesInItsOracle) {
  if (GetParam().kernel != Kernel::kNaive) return;
  for (const double softcap : {1e-9, 1e5, 1e30}) {
    ProblemSpec spec = Shape(2, 10, 4);
    spec.params.softcap = softcap;
    ExecOptions options = GetParam().Options();
    options.accumulator = Accumulator::kInput;
    for (const double out : Make(spec).Run(options).out) EXPECT_TRUE(std::isfinite(out)) << softcap;
  }
}

// The sum of weights times values is within range although the weights may exceed 1 for a while.
TEST_P(RangeTest, LargeFiniteValues) {
  if (!HasRangeOfF32()) return;
  ProblemSpec spec = Shape(2, 400, 1);
  spec.params.softmax_scale = 0.5;
  Problem problem = Make(spec);
  for (int64_t i = 0; i < 2; ++i) problem.q.Set({0, 0, i, 0}, 1.0);
  for (int64_t j = 0; j < 400; ++j) {
    problem.k.Set({0, 0, j, 0}, j < 192 ? 0.0 : 10.0);
    problem.v.Set({0, 0, j, 0}, 3e35);
  }
  for (const double value : Run(problem).out) EXPECT_TRUE(std::isfinite(value));
  ExpectTrue(problem);
}

// A visible value that is not finite reaches its rows wherever it stands, however little it weighs.
TEST_P(RangeTest, AVisibleNanValueCountsInAnyOrder) {
  for (const int64_t where : {0, 150, 399}) {
    ProblemSpec spec = Shape(2, 400, 1);
    spec.params.softmax_scale = 1.0;
    Problem problem = Make(spec);
    for (int64_t i = 0; i < 2; ++i) problem.q.Set({0, 0, i, 0}, 1.0);
    for (int64_t j = 0; j < 400; ++j) problem.k.Set({0, 0, j, 0}, j == where ? -200.0 : 0.0);
    problem.v.Set({0, 0, where, 0}, kNan);
    for (const double value : Run(problem).out) EXPECT_TRUE(std::isnan(value)) << where;
  }
}

// One tile or several: a NaN value that other rows see must not change even the sign of a zero.
TEST_P(RangeTest, BitsDoNotDependOnTheCutBesideANan) {
  ProblemSpec spec = Shape(200, 200, 3);
  spec.num_kv_heads = 1;
  spec.num_heads = 1;
  spec.params.causal = true;
  Problem problem = Make(spec);
  for (int64_t j = 0; j < 200; ++j) {
    for (int64_t d = 0; d < 3; ++d) {
      problem.v.Set({0, 0, j, d}, j % 3 == 0 ? -1e-45 : j % 3 == 1 ? -0.0 : 0.0);
    }
  }
  problem.v.Set({0, 0, 100, 1}, kNan);
  problem.k.Set({0, 0, 120, 0}, -kNan);
  const Result one = problem.Run(GetParam().Options(1));
  const Result two = problem.Run(GetParam().Options(2));
  EXPECT_EQ(one.bits, two.bits);
  // Some rows as a call of their own; 33, because 32 and fewer stream.
  for (int64_t i = 0; i < 100; i += 33) EXPECT_TRUE(SameRows(problem, one, i, 33)) << i;
}

// A key that only a neighbour sees is added to the row as 0 * v: a sum that had underflowed to -0
// must not become +0 by that.
TEST_P(RangeTest, TheSignOfAZeroDoesNotDependOnTheCut) {
  ProblemSpec spec = Shape(2, 3, 1);
  spec.params.causal = true;
  spec.params.q_start = 1;
  spec.params.softmax_scale = 0.5;
  // One for types whose products keep denormals, one for those that flush them.
  const double keys[2][3] = {{0.0, -3.0, 0.0}, {-3.0, 0.0, 0.0}};
  const double values[2][3] = {{0.0, -1e-45, 1.0}, {-1.2e-38, 0.0, 1.0}};
  for (int test = 0; test < 2; ++test) {
    Problem problem = Make(spec);
    for (int64_t i = 0; i < 2; ++i) problem.q.Set({0, 0, i, 0}, 1.0);
    for (int64_t j = 0; j < 3; ++j) {
      problem.k.Set({0, 0, j, 0}, keys[test][j]);
      problem.v.Set({0, 0, j, 0}, values[test][j]);
    }
    EXPECT_TRUE(SameRows(problem, Run(problem), 0, 1)) << test;
  }
}

// Beyond 2^24 a position is no number of F32, and what it is rounded to must not depend on the
// tile.
TEST_P(RangeTest, AlibiFarFromTheKeysDoesNotDependOnTheCut) {
  constexpr int64_t kFar = (int64_t{1} << 24) + 5;
  ProblemSpec spec = Shape(40, 63, 1);
  spec.params.q_start = kFar;
  spec.alibi = true;
  Problem problem = Make(spec);
  problem.alibi_slopes.Set({0}, 0.5);
  const Result together = Run(problem);
  for (int64_t i = 0; i < 40; ++i) EXPECT_TRUE(SameRows(problem, together, i, 1)) << i;
}

FLASHLANE_INSTANTIATE_RUNS(RangeTest, AllRuns());

}  // namespace
}  // namespace flashlane::testing
