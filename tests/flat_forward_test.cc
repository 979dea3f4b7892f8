// Forwards and gradients of the flat modules: every way agrees with the reference where it should,
// and the ways of telling so can fail.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "flashlane/flat.h"
#include "tests/support/flat.h"

namespace flashlane::testing {
namespace {

using flat::AttnStatus;
using flat::Backend;

constexpr FlatShape kShapes[] = {
    {1, 1, 1, 1, 1}, {5, 7, 4, 2, 3}, {19, 40, 6, 1, 8}, {65, 33, 3, 3, 17}, {3, 130, 2, 2, 64}};

std::string NameOf(const FlatShape& s) {
  return std::to_string(s.n_tok_q) + "x" + std::to_string(s.n_tok_k) + " heads " +
         std::to_string(s.h_q) + "/" + std::to_string(s.h_kv) + " dim " +
         std::to_string(s.head_dim);
}

// Attention as its definition says, of one element: independent of the library.
double ByHand(const FlatProblem& of, std::int64_t i, std::int64_t h, std::int64_t d) {
  const flat::FlatAttention& in = of.in;
  const std::int64_t kv = h / (in.h_q / in.h_kv);
  double sum = 0, weighted = 0;
  for (std::int64_t j = 0; j < in.n_tok_k; ++j) {
    if (in.causal && j > i) continue;
    double score = 0;
    for (std::int64_t e = 0; e < in.head_dim; ++e) {
      score += of.q[static_cast<std::size_t>((i * in.h_q + h) * in.head_dim + e)] *
               of.k[static_cast<std::size_t>((j * in.h_kv + kv) * in.head_dim + e)];
    }
    score *= in.scale;
    if (!of.bias.empty()) score += of.bias[static_cast<std::size_t>(i * in.n_tok_k + j)];
    const double weight = std::exp(score);
    sum += weight;
    weighted += weight * of.v[static_cast<std::size_t>((j * in.h_kv + kv) * in.head_dim + d)];
  }
  return weighted / sum;
}

TEST(FlatForward, ReferenceIsTheDefinitionOnTokenMajorBuffers) {
  for (const FlatShape& shape : kShapes) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(NameOf(shape));
      FlatProblem problem(shape, /*with_bias=*/causal);
      problem.in.causal = causal;
      FlatResult result(problem);
      ASSERT_EQ(flat::SdpaForwardFlat(problem.in, result.Outputs()), AttnStatus::kOk);
      std::size_t at = 0;
      for (std::int64_t i = 0; i < shape.n_tok_q; ++i) {
        for (std::int64_t h = 0; h < shape.h_q; ++h) {
          for (std::int64_t d = 0; d < shape.head_dim; ++d) {
            EXPECT_NEAR(result.out[at++], ByHand(problem, i, h, d), 1e-12);
          }
        }
      }
    }
  }
}

TEST(FlatForward, EveryBackendAgreesForEveryTile) {
  for (const FlatShape& shape : kShapes) {
    for (const Backend backend :
         {Backend::kSdpa, Backend::kFlash, Backend::kTiled, Backend::kDirect, Backend::kUnstable}) {
      for (const std::int64_t tile : {std::int64_t{1}, std::int64_t{7}, INT64_MAX}) {
        for (const bool causal : {false, true}) {
          SCOPED_TRACE(NameOf(shape) + " " + flat::BackendName(static_cast<int>(backend)));
          FlatProblem problem(shape, /*with_bias=*/true);
          problem.in.causal = causal;
          const flat::Agreement agreement = flat::ReferenceDeltaFlat(backend, problem.in, tile);
          EXPECT_EQ(agreement.status, AttnStatus::kOk);
          EXPECT_TRUE(agreement.agrees)
              << agreement.max_out_difference << " of " << agreement.tolerance;
          EXPECT_EQ(agreement.elements, static_cast<std::int64_t>(problem.q.size()));
          EXPECT_LT(agreement.tolerance, 1e-9);
        }
      }
    }
  }
}

// Scores beyond 709: what the maximum is subtracted for. The comparison must notice.
TEST(FlatForward, UnstableOverflowsAndTheDeltaSaysSo) {
  FlatProblem problem({4, 6, 1, 1, 2}, false, 1, 60.0);
  FlatResult result(problem);
  ASSERT_EQ(flat::UnstableForwardFlat(problem.in, result.Outputs()), AttnStatus::kOk);
  bool any_lost = false;
  for (const double x : result.out) any_lost = any_lost || !std::isfinite(x);
  EXPECT_TRUE(any_lost);
  EXPECT_FALSE(flat::ReferenceDeltaFlat(Backend::kUnstable, problem.in, 1).agrees);
  for (const Backend backend : {Backend::kFlash, Backend::kDirect}) {
    EXPECT_TRUE(flat::ReferenceDeltaFlat(backend, problem.in, 2).agrees);
  }
}

TEST(FlatForward, FlopsOfVisiblePairs) {
  EXPECT_EQ(flat::AttnFlops(3, 5, 2, 8, false), 4u * 8 * 2 * 15);
  EXPECT_EQ(flat::AttnFlops(3, 5, 2, 8, true), 4u * 8 * 2 * 6);
  EXPECT_EQ(flat::AttnFlops(6, 4, 1, 1, true), 4u * (10 + 8));
  EXPECT_EQ(flat::AttnFlops(INT64_MAX, INT64_MAX, 1, 1, true), UINT64_MAX);
  EXPECT_EQ(flat::AttnFlops(0, 5, 2, 8, false), 0u);
}

TEST(FlatBackward, GradientsAgreeWithDifferences) {
  for (const FlatShape& shape : {FlatShape{1, 1, 1, 1, 1}, FlatShape{3, 5, 4, 2, 3}}) {
    for (const bool causal : {false, true}) {
      FlatProblem problem(shape, /*with_bias=*/true);
      problem.in.causal = causal;
      const flat::Gradcheck check = flat::AttnBwdGradcheckFlat(problem.in, 1e-4);
      EXPECT_EQ(check.status, AttnStatus::kOk);
      EXPECT_TRUE(check.agrees) << check.max_error << " of " << check.tolerance;
    }
  }
}

// Two rows of v swapped, where the gradient does not know of it.
TEST(FlatBackward, WrongGradientsAreOffByMoreThanTheTolerance) {
  FlatProblem problem({3, 5, 2, 1, 3});
  std::vector<double> dq(problem.q.size()), dk(problem.k.size()), dv(problem.v.size());
  std::vector<double> wrong_dq(dq), wrong_dk(dk), wrong_dv(dv);
  const std::vector<double> dout(problem.q.size(), 1.0);
  ASSERT_EQ(flat::SdpaBwdFlat(problem.in, flat::ConstBuffer(dout),
                              {flat::Buffer(dq), flat::Buffer(dk), flat::Buffer(dv)}),
            AttnStatus::kOk);
  std::swap(problem.v[0], problem.v[3]);
  ASSERT_EQ(
      flat::SdpaBwdFlat(problem.in, flat::ConstBuffer(dout),
                        {flat::Buffer(wrong_dq), flat::Buffer(wrong_dk), flat::Buffer(wrong_dv)}),
      AttnStatus::kOk);
  const double tolerance = flat::AttnBwdGradcheckFlat(problem.in, 1e-4).tolerance;
  double largest = 0;
  for (std::size_t i = 0; i < dq.size(); ++i) {
    largest = std::max(largest, std::fabs(dq[i] - wrong_dq[i]));
  }
  EXPECT_GT(largest, 100 * tolerance);
  EXPECT_EQ(dv, wrong_dv);  // dv does not depend on v
}

// A step that is lost and gradients without bound are no agreement either; small steps are.
TEST(FlatBackward, LostStepsAndInfiniteGradients) {
  FlatProblem lost({1, 2, 1, 1, 1});
  lost.q = {1e20};
  lost.k = {0, 0.5};
  lost.in.scale = 1e-20;
  lost.Attach();
  EXPECT_FALSE(flat::AttnBwdGradcheckFlat(lost.in, 1e-4).agrees);
  FlatProblem infinite({1, 2, 1, 1, 1});
  infinite.q = {1e300};
  infinite.k = {0, 0};
  infinite.v = {1, 2};
  infinite.in.scale = 1e10;
  infinite.Attach();
  EXPECT_FALSE(flat::AttnBwdGradcheckFlat(infinite.in, 1e-4).agrees);
  EXPECT_FALSE(flat::AttnBwdGradcheckFlat(infinite.in, 1e200).agrees);
}

// An infinite q gives NaN, which no comparison may take for agreement of the gradients.
TEST(FlatBackward, NanIsNoAgreement) {
  FlatProblem problem({2, 3, 1, 1, 2});
  problem.q[1] = INFINITY;
  const flat::Gradcheck check = flat::AttnBwdGradcheckFlat(problem.in, 1e-4);
  EXPECT_EQ(check.status, AttnStatus::kOk);
  EXPECT_FALSE(check.agrees);
}

}  // namespace
}  // namespace flashlane::testing
