// AttentionBackward against the f64 oracle, on every kernel, dtype and target: shapes around
// vectors and blocks, every feature, subsets of the gradients, kept results.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/backward.h"
#include "tests/support/numbers.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"
#include "tests/support/specs.h"

namespace flashlane::testing {
namespace {

// The parameter is the dtype: the truth is computed once for all kernels and targets.
class BackwardTest : public ::testing::TestWithParam<DType> {
 protected:
  static void ExpectAgreesOnAllTargets(const ProblemSpec& spec) {
    ExpectAgreesOnAllTargets(BackwardProblem(spec, GetParam()));
  }
  static void ExpectAgreesOnAllTargets(const BackwardProblem& problem) {
    const BackwardReference reference = ReferenceOf(problem);
    int count = 0;
    for (const RunCase& run : BackwardRuns()) {
      if (run.dtype != GetParam()) continue;
      ++count;
      EXPECT_TRUE(Agrees(reference, problem.Run(run.Options())))
          << NameOf(run) << " " << problem.spec().ToString();
    }
    EXPECT_GT(count, 0);
  }
};

TEST_P(BackwardTest, HeadSizesAroundVectors) {
  for (const int64_t head_dim : {1,  2,  3,  4,  5,  7,  8,   9,   15,  16,  17,  31,
                                 32, 33, 63, 64, 65, 80, 127, 128, 129, 192, 256, 320}) {
    ExpectAgreesOnAllTargets(Shape(19, 37, head_dim));
  }
}

TEST_P(BackwardTest, QueriesAndKeysAroundBlocks) {
  for (const int64_t seqlen_q : {1, 2, 15, 16, 17, 31, 33, 47, 49, 63, 64, 65, 96, 127, 129}) {
    for (const int64_t seqlen_k : {1, 3, 16, 33, 64, 65, 129}) {
      ProblemSpec spec = Shape(seqlen_q, seqlen_k, 8);
      spec.params.causal = (seqlen_q + seqlen_k) % 3 == 0;
      ExpectAgreesOnAllTargets(spec);
    }
  }
}

TEST_P(BackwardTest, SeveralStripsAndBlocks) {
  for (const int64_t seqlen_q : {191, 192, 193, 257, 400}) {
    for (const int64_t seqlen_k : {192, 255, 257, 513}) {
      ProblemSpec spec = Shape(seqlen_q, seqlen_k, 16);
      spec.params.causal = seqlen_q % 2 == 0;
      ExpectAgreesOnAllTargets(spec);
    }
  }
}

// Pieces are of 256 query rows or 512 keys and more: several of both, of the one, of the other
// (with sums to add up), and dead keys in the last.
TEST_P(BackwardTest, SeveralPieces) {
  const int64_t lengths[][2] = {{1030, 1540}, {1540, 600}, {600, 1100}, {19, 2600}, {1100, 21}};
  for (const auto& [seqlen_q, seqlen_k] : lengths) {
    ProblemSpec spec = Shape(seqlen_q, seqlen_k, 5);
    spec.batch = 1;
    spec.num_heads = seqlen_q == 600 ? 2 : 1;
    spec.num_kv_heads = 1;
    spec.params.causal = seqlen_q == 1540;
    if (seqlen_q == 1030) spec.params.window_size_left = 700;
    if (seqlen_q == 600) spec.params.k_len = 1050;
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(BackwardTest, ValuesOfAnotherWidth) {
  for (const int64_t head_dim_v : {1, 5, 16, 31, 64, 100}) {
    ProblemSpec spec = Shape(33, 70, 24);
    spec.head_dim_v = head_dim_v;
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(BackwardTest, GroupedQueries) {
  for (const int64_t group : {1, 2, 3, 5, 8}) {
    ProblemSpec spec = Shape(21, 45, 16);
    spec.batch = 2;
    spec.num_kv_heads = 2;
    spec.num_heads = 2 * group;
    spec.params.causal = true;
    spec.params.q_start = QStart::BottomRight();
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(BackwardTest, OneByOne) {
  for (const bool sinks : {false, true}) {
    ProblemSpec spec = Shape(1, 1, 1);
    spec.sinks = sinks;
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(BackwardTest, MoreQueriesThanKeys) {
  for (const bool bottom_right : {false, true}) {
    ProblemSpec spec = Shape(150, 30, 8);
    spec.params.causal = true;
    if (bottom_right) spec.params.q_start = QStart::BottomRight();
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(BackwardTest, BiasOfEveryShape) {
  for (const bool f32 : {false, true}) {
    for (int dims = 0; dims < 16; ++dims) {
      ProblemSpec spec = Shape(18, 35, 8);
      spec.batch = 2;
      spec.num_heads = 4;
      spec.num_kv_heads = 2;
      spec.bias_dims = dims;
      spec.sinks = true;
      spec.f32_terms = f32;
      ExpectAgreesOnAllTargets(spec);
    }
  }
}

// Few elements that sum over much: units share the rows.
TEST_P(BackwardTest, BiasThatSumsOverMuch) {
  for (const int dims : {0, 2, 8}) {
    ProblemSpec spec = Shape(150, 40, 8);
    spec.batch = 3;
    spec.num_heads = 6;
    spec.num_kv_heads = 2;
    spec.bias_dims = dims;
    spec.sinks = true;  // else a bias that all keys share changes nothing
    spec.params.causal = true;
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(BackwardTest, Softcap) {
  for (const double softcap : {0.3, 5.0, 50.0}) {
    ProblemSpec spec = Shape(40, 70, 32);
    spec.params.softcap = softcap;
    spec.magnitude = 2.0;
    ExpectAgreesOnAllTargets(spec);
  }
}

// Sizes 0 do what the algebra says; outputs that have elements are zeros.
TEST_P(BackwardTest, ZeroSizes) {
  for (const auto& [seqlen_q, seqlen_k] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 0}, {0, 0}}) {
    for (const int64_t batch : {0, 2}) {
      ProblemSpec spec = Shape(seqlen_q, seqlen_k, 4);
      spec.batch = batch;
      spec.sinks = true;
      spec.bias_dims = 2;
      const BackwardProblem problem(spec, GetParam());
      for (const RunCase& run : BackwardRuns()) {
        if (run.dtype != GetParam()) continue;
        const BackwardResult result = problem.Run(run.Options());
        ASSERT_TRUE(result.status.ok()) << result.status.message();
        for (const OwnedTensor* tensor :
             {&result.dq, &result.dk, &result.dv, &result.dbias, &result.dsinks}) {
          for (const double value : tensor->Values()) {
            EXPECT_EQ(value, 0.0) << NameOf(run) << " " << spec.ToString();
          }
        }
      }
    }
  }
}

// Broadcast operands (stride 0) give the bits of the same values written out.
TEST_P(BackwardTest, BroadcastOperands) {
  ProblemSpec spec = Shape(20, 41, 12);
  spec.batch = 2;
  spec.num_heads = spec.num_kv_heads = 2;
  BackwardProblem written(spec, GetParam());
  const auto copy_first = [](OwnedTensor& tensor) {
    const int64_t* s = tensor.view.shape;
    for (int64_t b = 0; b < s[0]; ++b) {
      for (int64_t h = 0; h < s[1]; ++h) {
        for (int64_t i = 0; i < s[2]; ++i) {
          for (int64_t d = 0; d < s[3]; ++d) tensor.Set({b, h, i, d}, tensor.At({0, h, 0, d}));
        }
      }
    }
  };
  copy_first(written.dout);
  copy_first(written.problem.v);
  BackwardProblem broadcast = written;
  broadcast.dout.view.strides[0] = broadcast.dout.view.strides[2] = 0;
  broadcast.problem.v.view.strides[0] = broadcast.problem.v.view.strides[2] = 0;
  for (const RunCase& run : BackwardRuns()) {
    if (run.dtype != GetParam()) continue;
    const BackwardResult expected = written.Run(run.Options());
    ASSERT_TRUE(expected.status.ok()) << expected.status.message();
    EXPECT_EQ(broadcast.Run(run.Options()).bits(), expected.bits()) << NameOf(run);
  }
}

TEST_P(BackwardTest, RandomProblems) {
  std::mt19937_64 random(20261202);
  for (int i = 0; i < 60; ++i) ExpectAgreesOnAllTargets(RandomSpec(random, {2, 2, 3, 71, 201, 41}));
}

INSTANTIATE_TEST_SUITE_P(All, BackwardTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

class BackwardSubsetTest : public RunTest {};

ProblemSpec Everything() {
  ProblemSpec spec = Shape(45, 83, 20);
  spec.batch = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim_v = 12;
  spec.sinks = true;
  spec.bias_dims = 14;
  spec.params.causal = true;
  spec.params.q_start = QStart::BottomRight();
  return spec;
}

TEST_P(BackwardSubsetTest, ASubsetHasTheBitsOfTheBundle) {
  const BackwardProblem problem(Everything(), GetParam().dtype);
  const BackwardResult all = problem.Run(GetParam().Options());
  ASSERT_TRUE(all.status.ok()) << all.status.message();
  for (unsigned subset = 1; subset < kAllGradients; ++subset) {
    const BackwardResult some = problem.Run(GetParam().Options(), subset);
    ASSERT_TRUE(some.status.ok()) << some.status.message();
    const auto expect_same = [&](unsigned bit, const OwnedTensor& a, const OwnedTensor& b) {
      if ((subset & bit) != 0) {
        EXPECT_EQ(a.storage, b.storage) << subset;
      } else {
        EXPECT_FALSE(a.view.present());
      }
    };
    expect_same(kDq, some.dq, all.dq);
    expect_same(kDk, some.dk, all.dk);
    expect_same(kDv, some.dv, all.dv);
    expect_same(kDbias, some.dbias, all.dbias);
    expect_same(kDsinks, some.dsinks, all.dsinks);
  }
}

TEST_P(BackwardSubsetTest, KeptResultsOrNot) {
  for (const bool padded : {false, true}) {
    ProblemSpec spec = Everything();
    if (padded) spec.layout = Layout::kPadded;
    spec.per_sequence_k_len = true;
    const BackwardProblem problem(spec, GetParam().dtype);
    const Result forward = problem.problem.Run(GetParam().Options());
    ASSERT_TRUE(forward.status.ok()) << forward.status.message();
    const BackwardResult kept = problem.RunKept(GetParam().Options(), forward);
    EXPECT_TRUE(Agrees(ReferenceOf(problem), kept));
    if (GetParam().target != "scalar") {  // the oracle never uses them
      EXPECT_EQ(kept.bits(), problem.Run(GetParam().Options()).bits());
    }
    // Inputs stay as they are.
    EXPECT_EQ(problem.problem.Run(GetParam().Options()).bits, forward.bits);
  }
}

TEST_P(BackwardSubsetTest, RowsWithoutAVisibleKeyContributeNothing) {
  ProblemSpec spec = Shape(30, 12, 8);
  spec.num_heads = 2;
  spec.params.window_size_left = 4;  // rows from 16 on see nothing
  spec.sinks = true;
  BackwardProblem problem(spec, GetParam().dtype);
  const BackwardResult before = problem.Run(GetParam().Options());
  ASSERT_TRUE(before.status.ok()) << before.status.message();
  const std::vector<double> dq = before.dq.Values();
  for (int64_t row = 0; row < 60; ++row) {
    for (int64_t d = 0; d < 8; ++d) {
      if (row % 30 > 15) {
        EXPECT_EQ(dq[static_cast<size_t>(row * 8 + d)], 0.0) << row;
      }
    }
  }
  for (int64_t i = 16; i < 30; ++i) {
    for (int64_t d = 0; d < 8; ++d) {
      problem.dout.Set({0, 1, i, d}, kNan);
      problem.problem.q.Set({0, 0, i, d}, kNan);
    }
  }
  EXPECT_EQ(problem.Run(GetParam().Options()).bits(), before.bits());
  EXPECT_TRUE(Agrees(ReferenceOf(problem), before));
}

// Everything masked, by length and by the mask.
TEST_P(BackwardSubsetTest, NothingIsVisible) {
  for (const bool by_mask : {false, true}) {
    ProblemSpec spec = Everything();
    if (by_mask) {
      spec.mask_dims = 0;
    } else {
      spec.params.k_len = 0;
    }
    BackwardProblem problem(spec, GetParam().dtype);
    if (by_mask) problem.problem.mask.Set({0, 0, 0, 0}, 0);
    const BackwardResult result = problem.Run(GetParam().Options());
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    for (const OwnedTensor* tensor :
         {&result.dq, &result.dk, &result.dv, &result.dbias, &result.dsinks}) {
      for (const double value : tensor->Values()) EXPECT_EQ(value, 0.0) << by_mask;
    }
  }
}

FLASHLANE_INSTANTIATE_RUNS(BackwardSubsetTest, BackwardRuns());

}  // namespace
}  // namespace flashlane::testing
