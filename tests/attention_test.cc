// Every kernel, dtype and target against the truth: shapes around vector widths and block edges,
// and random combinations of every parameter.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"
#include "tests/support/specs.h"

namespace flashlane::testing {
namespace {

// Problems are costly (the oracle runs twice for each), so that one test holds for all targets of a
// dtype. A failure names its target.
class AttentionTest : public ::testing::TestWithParam<DType> {
 protected:
  static void ExpectAgreesOnAllTargets(const ProblemSpec& spec) {
    ExpectAgreesOnAllTargets(Problem(spec, GetParam()));
  }

  static void ExpectAgreesOnAllTargets(const Problem& problem) {
    const ForwardReference reference = ReferenceOf(problem);
    int runs = 0;
    for (const RunCase& run : AllRuns()) {
      if (run.dtype != GetParam()) continue;
      ++runs;
      EXPECT_TRUE(Agrees(reference, problem.Run(run.Options())))
          << problem.spec().ToString() << " on " << KernelName(run.kernel) << " " << run.target;
    }
    EXPECT_GT(runs, 0);
  }
};

// Vector widths are 2 to 16 lanes, panels 4 to 64 rows.
TEST_P(AttentionTest, HeadSizesAroundVectorWidths) {
  for (const int64_t width : {2, 4, 8, 16, 32, 64, 128}) {
    for (const int64_t head_dim : {width - 1, width, width + 1}) {
      ProblemSpec spec = Shape(5, 21, head_dim);
      ExpectAgreesOnAllTargets(spec);
      spec.head_dim_v = 2 * head_dim + 1;
      ExpectAgreesOnAllTargets(spec);
    }
  }
}

TEST_P(AttentionTest, QueriesAroundPanelsAndTiles) {
  for (const int64_t edge : {4, 8, 16, 32, 48, 64, 128, 512}) {
    for (const int64_t seqlen_q : {edge - 1, edge, edge + 1}) {
      ExpectAgreesOnAllTargets(Shape(seqlen_q, 9, 4));
    }
  }
}

TEST_P(AttentionTest, KeysAroundRegisterTilesAndBlocks) {
  for (const int64_t edge : {6, 12, 192, 384, 576}) {
    for (int64_t seqlen_k = edge - 2; seqlen_k <= edge + 5; ++seqlen_k) {
      ExpectAgreesOnAllTargets(Shape(3, seqlen_k, 8));
    }
  }
}

TEST_P(AttentionTest, CausalEdgesAroundBlocks) {
  for (const int64_t seqlen : {1, 2, 63, 64, 65, 191, 192, 193, 400}) {
    ProblemSpec spec = Shape(seqlen, seqlen, 8);
    spec.params.causal = true;
    ExpectAgreesOnAllTargets(spec);
    spec.seqlen_k = seqlen + 37;
    ExpectAgreesOnAllTargets(spec);
    spec.params.q_start = QStart::BottomRight();
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(AttentionTest, EveryGroupSize) {
  for (const int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 71}) {
    ProblemSpec spec = Shape(7, 50, 12);
    spec.num_kv_heads = 2;
    spec.num_heads = 2 * group;
    spec.params.causal = true;
    spec.params.q_start = 20;
    ExpectAgreesOnAllTargets(spec);
  }
}

TEST_P(AttentionTest, EveryBroadcastOfBiasAndMask) {
  for (int bits = 0; bits < 16; ++bits) {
    ProblemSpec spec = Shape(21, 205, 6);
    spec.batch = 2;
    spec.num_heads = 4;
    spec.num_kv_heads = 2;
    spec.bias_dims = bits;
    spec.mask_dims = 15 - bits;
    ExpectAgreesOnAllTargets(spec);
    spec.f32_terms = true;
    spec.mask_dims = -1;
    ExpectAgreesOnAllTargets(spec);
  }
}

// Rows of the operand further apart than they are long.
OwnedTensor Padded(const OwnedTensor& dense) {
  const int64_t* shape = dense.view.shape;
  const int64_t row = shape[3] + 7, head = shape[2] * row + 3, batch = shape[1] * head + 5;
  return dense.WithStrides({batch, head, row, 1});
}

// Groups that do and do not divide the lanes, so that query heads share rows of bias and mask
// within and across vectors; key ranges that begin and end within a block and a vector.
TEST_P(AttentionTest, BiasAndMaskOfEveryGroupInPaddedRows) {
  int variant = 0;
  for (const int64_t group : {1, 2, 3, 5, 8, 17}) {
    for (const int bias_dims : {12, 13, 14, 10}) {
      for (const bool windows : {false, true}) {
        ProblemSpec spec = Shape(27, 205, 5);
        spec.batch = 2;
        spec.num_kv_heads = 2;
        spec.num_heads = 2 * group;
        spec.bias_dims = bias_dims;
        spec.mask_dims = variant % 3 == 0 ? -1 : 12 + variant % 4;
        spec.f32_terms = variant % 2 == 0;
        if (windows) {
          spec.params.window_size_left = 37;
          spec.params.window_size_right = 11;
          spec.params.q_start = 170;
        }
        Problem problem(spec, GetParam());
        problem.bias = Padded(problem.bias);
        if (spec.mask_dims >= 0) problem.mask = Padded(problem.mask);
        ExpectAgreesOnAllTargets(problem);
        ++variant;
      }
    }
  }
}

// A vector of keys, a few keys less, and a few more; each of bias and mask alone and both.
TEST_P(AttentionTest, BiasAndMaskAroundVectorsOfKeys) {
  for (const int64_t edge : {2, 4, 8, 16, 192}) {
    for (const int64_t seqlen_k : {edge - 1, edge, edge + 1}) {
      for (const int operands : {1, 2, 3}) {
        ProblemSpec spec = Shape(70, seqlen_k, 3);
        if ((operands & 1) != 0) spec.bias_dims = 12;
        if ((operands & 2) != 0) spec.mask_dims = 12;
        ExpectAgreesOnAllTargets(spec);
      }
    }
  }
}

// Inputs broadcast by stride 0 are what they would be written out.
TEST_P(AttentionTest, BroadcastInputs) {
  ProblemSpec spec = Shape(9, 40, 12);
  spec.batch = 3;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  Problem written(spec, GetParam());
  Problem broadcast = written;
  const auto copy_first = [&](OwnedTensor& tensor, bool heads) {
    for (int64_t b = 0; b < tensor.view.shape[0]; ++b) {
      for (int64_t h = 0; h < tensor.view.shape[1]; ++h) {
        for (int64_t row = 0; row < tensor.view.shape[2]; ++row) {
          for (int64_t d = 0; d < tensor.view.shape[3]; ++d) {
            tensor.Set({b, h, row, d}, tensor.At({0, heads ? 0 : h, row, d}));
          }
        }
      }
    }
  };
  copy_first(written.q, true);
  copy_first(written.k, false);
  copy_first(written.v, true);
  broadcast.q.view.strides[0] = broadcast.q.view.strides[1] = 0;
  broadcast.k.view.strides[0] = 0;
  broadcast.v.view.strides[0] = broadcast.v.view.strides[1] = 0;
  for (const RunCase& run : AllRuns()) {
    if (run.dtype != GetParam()) continue;
    const Result expected = written.Run(run.Options());
    ASSERT_TRUE(expected.status.ok()) << expected.status.message();
    EXPECT_EQ(broadcast.Run(run.Options()).bits, expected.bits) << NameOf(run);
  }
}

TEST_P(AttentionTest, RandomProblems) {
  std::mt19937_64 random(20261201);
  for (int i = 0; i < 150; ++i)
    ExpectAgreesOnAllTargets(RandomSpec(random, {3, 3, 5, 91, 421, 71}));
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return DTypeName(info.param); });

}  // namespace
}  // namespace flashlane::testing
