// What other attention libraries get wrong, by kind: bytes behind a mask, sums that start at
// nothing, scores beyond every floor, windows at their edges. Each on every kernel, dtype and
// target.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/numbers.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"
#include "tests/support/specs.h"

namespace flashlane::testing {
namespace {

class HygieneTest : public RunTest {
 protected:
  Problem Make(const ProblemSpec& spec) const { return Problem(spec, GetParam().dtype); }
  Result Run(const Problem& problem) const { return problem.Run(GetParam().Options()); }
  void ExpectTrue(const Problem& problem) const {
    EXPECT_TRUE(Agrees(ReferenceOf(problem), Run(problem))) << problem.spec().ToString();
  }
  // Largest finite number of the dtype.
  double Largest() const {
    switch (GetParam().dtype) {
      case DType::kF64:
        return std::numeric_limits<double>::max();
      case DType::kF32:
        return std::numeric_limits<float>::max();
      case DType::kBF16:
        return std::ldexp(255.0, 120);
      default:
        return 65504.0;
    }
  }
};

ProblemSpec Small(int64_t seqlen_q = 70, int64_t seqlen_k = 250, int64_t head_dim = 8) {
  ProblemSpec spec = Shape(seqlen_q, seqlen_k, head_dim);
  spec.num_heads = 2;
  return spec;
}

// Masked keys hold NaN or Inf: bits of every row that does not see them are those with zeros there.
TEST_P(HygieneTest, MaskedKeysContributeNothingWhateverTheyHold) {
  for (const double poison : {kNan, kInf, -kInf}) {
    for (const HidingWay& way : HidingWays(250)) {
      ProblemSpec spec = Small();
      way.hide(spec);
      Problem clean = Make(spec);
      Problem dirty = Make(spec);
      for (int64_t j = way.first_hidden; j <= way.last_hidden; ++j) {
        FillKey(clean, j, 0.0, 0.0);
        FillKey(dirty, j, poison, poison);
      }
      EXPECT_EQ(Run(clean).bits, Run(dirty).bits) << way.name << " " << poison;
    }
  }
}

// A key that some rows of a tile see and others do not: only those that see it may change.
TEST_P(HygieneTest, APoisonedKeyReachesOnlyTheRowsThatSeeIt) {
  for (const double poison : {kNan, kInf}) {
    for (const bool in_value_only : {false, true}) {
      ProblemSpec spec = Small(90, 90);
      spec.params.causal = true;
      const Problem clean = Make(spec);
      Problem dirty = Make(spec);
      const int64_t key = 41;
      FillKey(dirty, key, in_value_only ? 0.5 : poison, poison);
      const Result before = Run(clean);
      const Result after = Run(dirty);
      for (int64_t row = 0; row < 2 * 90; ++row) {
        const bool sees = row % 90 >= key;
        for (int64_t d = 0; d < 8; ++d) {
          if (sees) {
            EXPECT_FALSE(std::isfinite(after.out[row * 8 + d])) << row;
          } else {
            EXPECT_EQ(before.out[row * 8 + d], after.out[row * 8 + d]) << row;
          }
        }
        if (!sees) {
          EXPECT_EQ(before.lse[row], after.lse[row]) << row;
        } else if (!in_value_only) {
          EXPECT_TRUE(std::isnan(after.lse[row])) << row;
        }
      }
    }
  }
}

TEST_P(HygieneTest, KeysHiddenByTheBooleanMaskOrByAnInfiniteBias) {
  for (const bool by_bias : {false, true}) {
    ProblemSpec spec = Small(20, 210);
    (by_bias ? spec.bias_dims : spec.mask_dims) = 12;
    Problem clean = Make(spec);
    for (int64_t i = 0; i < 20; ++i) {
      for (const int64_t j : {0, 7, 100, 209}) {
        if (by_bias) {
          clean.bias.Set({0, 0, i, j}, -kInf);
        } else {
          clean.mask.Set({0, 0, i, j}, 0);
        }
      }
    }
    Problem dirty = clean;
    for (const int64_t j : {0, 7, 100, 209}) FillKey(dirty, j, kNan, kNan);
    EXPECT_EQ(Run(clean).bits, Run(dirty).bits) << by_bias;
    ExpectTrue(clean);
  }
}

// Bias and mask with one value per row, per key and per both. Whatever the shapes, the mask hides
// key 5 from row 40, or more; the bias is poisoned wherever all it is added to is hidden.
TEST_P(HygieneTest, AMaskedKeyIsHiddenWhateverItsBias) {
  for (const int bias_dims : {4, 8, 12}) {
    for (const int mask_dims : {4, 8, 12}) {
      if ((mask_dims & ~bias_dims) != 0) continue;  // hides only some of what the bias is added to
      ProblemSpec spec = Small(70, 37);
      spec.bias_dims = bias_dims;
      spec.mask_dims = mask_dims;
      Problem clean = Make(spec);
      const int64_t row = (mask_dims & 4) != 0 ? 40 : 0;
      const int64_t key = (mask_dims & 8) != 0 ? 5 : 0;
      clean.mask.Set({0, 0, row, key}, 0);
      for (const double poison : {kInf, kNan}) {
        Problem dirty = clean;
        dirty.bias.Set({0, 0, (bias_dims & 4) != 0 ? 40 : 0, (bias_dims & 8) != 0 ? 5 : 0}, poison);
        EXPECT_EQ(Run(clean).bits, Run(dirty).bits) << bias_dims << " " << mask_dims;
      }
      ExpectTrue(clean);
    }
  }
}

TEST_P(HygieneTest, ANanInQStaysInItsRow) {
  for (const double poison : {kNan, kInf}) {
    const ProblemSpec spec = Small(40, 60);
    const Problem clean = Make(spec);
    Problem dirty = Make(spec);
    dirty.q.Set({0, 1, 17, 3}, poison);
    const Result before = Run(clean);
    const Result after = Run(dirty);
    for (int64_t row = 0; row < 80; ++row) {
      for (int64_t d = 0; d < 8; ++d) {
        if (row == 40 + 17) {
          EXPECT_TRUE(std::isnan(after.out[row * 8 + d]));
        } else {
          EXPECT_EQ(before.out[row * 8 + d], after.out[row * 8 + d]) << row;
        }
      }
    }
    EXPECT_TRUE(std::isnan(after.lse[40 + 17]));
  }
}

TEST_P(HygieneTest, RowsWithoutAVisibleKeyAreZeroWithLseMinusInfinity) {
  for (const bool sinks : {false, true}) {
    ProblemSpec spec = Small(30, 12);
    spec.params.window_size_left = 4;  // rows from 16 on see nothing
    spec.sinks = sinks;
    const Result result = Run(Make(spec));
    ASSERT_TRUE(result.status.ok());
    for (int64_t row = 0; row < 60; ++row) {
      const bool empty = row % 30 > 15;
      EXPECT_EQ(result.lse[row] == -kInf, empty) << row;
      for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(result.out[row * 8 + d] == 0.0, empty) << row;
    }
    ExpectTrue(Make(spec));
  }
}

// The first key blocks of these rows are masked whole: the running maximum starts late.
TEST_P(HygieneTest, FirstKeyBlocksFullyMasked) {
  ProblemSpec spec = Small(9, 600);
  spec.params.window_size_left = 20;
  spec.params.q_start = 580;
  ExpectTrue(Make(spec));
  spec = Small(9, 600);
  spec.mask_dims = 12;
  Problem masked = Make(spec);
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 0; j < 600; ++j) masked.mask.Set({0, 0, i, j}, j >= 400 + i ? 1 : 0);
  }
  ExpectTrue(masked);
}

TEST_P(HygieneTest, LogitsFarBelowAnyFloor) {
  for (const double level : {-200.0, -1e4}) {
    ProblemSpec spec = Small(5, 300);
    spec.bias_dims = 0;
    spec.f32_terms = true;
    Problem problem = Make(spec);
    problem.bias.Set({0, 0, 0, 0}, level);
    ExpectTrue(problem);
    // The same by the scores themselves.
    ProblemSpec plain = Small(5, 300, 1);
    plain.params.softmax_scale = 1.0;
    Problem scores = Make(plain);
    for (int64_t i = 0; i < 5; ++i) {
      scores.q.Set({0, 0, i, 0}, 100.0);
      scores.q.Set({0, 1, i, 0}, 100.0);
    }
    for (int64_t j = 0; j < 300; ++j) scores.k.Set({0, 0, j, 0}, level / 100.0 - 0.0625 * (j % 4));
    ExpectTrue(scores);
  }
}

TEST_P(HygieneTest, ALowestFiniteBiasIsAnOrdinaryNumber) {
  ProblemSpec spec = Small(3, 250);
  spec.bias_dims = 8;
  Problem problem = Make(spec);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 8; ++d) problem.q.Set({0, h, i, d}, 0.0);
    }
  }
  double mean = 0;
  for (int64_t j = 0; j < 250; ++j) {
    problem.bias.Set({0, 0, 0, j}, -Largest());
    problem.v.Set({0, 0, j, 0}, j % 5);
    mean += static_cast<double>(j % 5) / 250;
  }
  const Result result = Run(problem);
  ASSERT_TRUE(result.status.ok());
  EXPECT_NEAR(result.out[0], mean, 0.02);
  ExpectTrue(problem);
}

// Scores near the end of the range: the fast domain multiplies by log2(e), which overflows first.
TEST_P(HygieneTest, ScoresNearTheLargestFiniteNumber) {
  if (GetParam().dtype == DType::kF16 || GetParam().dtype == DType::kF64) return;
  for (const double sign : {1.0, -1.0}) {
    ProblemSpec spec = Small(4, 200, 1);
    spec.params.softmax_scale = 1.0;
    Problem problem = Make(spec);
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t h = 0; h < 2; ++h)
        problem.q.Set({0, h, i, 0}, i == 1 ? std::ldexp(sign, 64) : 0.5);
    }
    for (int64_t j = 0; j < 200; ++j) problem.k.Set({0, 0, j, 0}, std::ldexp(0.9375, 64));
    const Result result = Run(problem);
    for (const double value : result.out) EXPECT_TRUE(std::isfinite(value)) << sign;
    ExpectTrue(problem);
  }
}

TEST_P(HygieneTest, VisibleMinusInfinityWeighsNothing) {
  ProblemSpec spec = Small(6, 230, 1);
  spec.params.softmax_scale = 1.0;
  Problem problem = Make(spec);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t h = 0; h < 2; ++h) problem.q.Set({0, h, i, 0}, 1.0);
  }
  for (const int64_t j : {0, 3, 100}) FillKey(problem, j, -kInf, j == 3 ? kNan : 1.0);
  const Result result = Run(problem);
  for (const double value : result.out) EXPECT_TRUE(std::isfinite(value));
  for (int64_t j = 0; j < 230; ++j) FillKey(problem, j, -kInf, 1.0);
  const Result nothing = Run(problem);
  for (const double value : nothing.out) EXPECT_EQ(value, 0.0);
  for (const double value : nothing.lse) EXPECT_EQ(value, -kInf);
}

TEST_P(HygieneTest, WindowsAtTheirEdges) {
  const std::optional<int64_t> sizes[] = {
      std::nullopt, 0, 1, 69, 70, 71, int64_t{1} << 62, std::numeric_limits<int64_t>::max()};
  for (const auto& left : sizes) {
    for (const auto& right : sizes) {
      ProblemSpec spec = Small(70, 70, 2);
      spec.num_heads = 1;
      spec.params.window_size_left = left;
      spec.params.window_size_right = right;
      ExpectTrue(Make(spec));
    }
  }
}

// Positions far outside the keys, where sums with a window leave int64.
TEST_P(HygieneTest, QStartFarAway) {
  constexpr int64_t kFar = int64_t{1} << 61;
  for (const int64_t start : {-kFar, -100L, -5L, 5L, 100L, kFar}) {
    for (const bool causal : {false, true}) {
      ProblemSpec spec = Small(12, 40, 3);
      spec.params.q_start = start;
      spec.params.causal = causal;
      ExpectTrue(Make(spec));
      spec.params.window_size_left = std::numeric_limits<int64_t>::max();
      ExpectTrue(Make(spec));
      spec.params.window_size_left = kFar;
      spec.params.window_size_right = kFar;
      ExpectTrue(Make(spec));
    }
  }
}

TEST_P(HygieneTest, MoreQueriesThanKeys) {
  for (const bool bottom_right : {false, true}) {
    ProblemSpec spec = Small(200, 30);
    spec.params.causal = true;
    if (bottom_right) spec.params.q_start = QStart::BottomRight();
    ExpectTrue(Make(spec));
  }
}

TEST_P(HygieneTest, SoftcapWithHugeScores) {
  ProblemSpec spec = Small(10, 100);
  spec.params.softcap = 20.0;
  spec.magnitude = 100.0;
  ExpectTrue(Make(spec));
  spec.params.softmax_scale = 1e6;
  ExpectTrue(Make(spec));
}

TEST_P(HygieneTest, AlibiForHeadCountsThatAreNoPowerOfTwo) {
  for (const int64_t heads : {3, 5, 12, 71}) {
    ProblemSpec spec = Small(9, 40);
    spec.num_heads = heads;
    spec.alibi = true;
    ExpectTrue(Make(spec));
  }
}

TEST_P(HygieneTest, ScoresBeyondTheRangeOfF16) {
  ProblemSpec spec = Small(8, 64, 64);
  spec.magnitude = 60.0;
  spec.params.softmax_scale = 4.0;
  ExpectTrue(Make(spec));
}

// Sums are in the order and with the rounding of the products, so that V = 1 gives 1.
TEST_P(HygieneTest, ConstantValuesComeBack) {
  ProblemSpec spec = Small(65, 1000);
  Problem problem = Make(spec);
  for (int64_t j = 0; j < 1000; ++j) {
    for (int64_t d = 0; d < 8; ++d) problem.v.Set({0, 0, j, d}, 1.0);
  }
  const Result result = Run(problem);
  for (const double value : result.out) EXPECT_EQ(value, 1.0);
}

TEST_P(HygieneTest, DenormalsKeepTheirValue) {
  if (GetParam().dtype != DType::kF32 && GetParam().dtype != DType::kF64) return;
  ProblemSpec spec = Small(5, 64);
  Problem problem = Make(spec);
  const double tiny = GetParam().dtype == DType::kF32 ? 0x1p-140 : 0x1p-1060;
  for (int64_t j = 0; j < 64; ++j) {
    for (int64_t d = 0; d < 8; ++d) problem.v.Set({0, 0, j, d}, tiny * static_cast<double>(1 + d));
  }
  const Result result = Run(problem);
  for (int64_t row = 0; row < 10; ++row) {
    for (int64_t d = 0; d < 8; ++d) {
      EXPECT_NEAR(result.out[row * 8 + d] / tiny, 1.0 + static_cast<double>(d), 0.02);
    }
  }
}

FLASHLANE_INSTANTIATE_RUNS(HygieneTest, AllRuns());

}  // namespace
}  // namespace flashlane::testing
