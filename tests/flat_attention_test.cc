// attnk.sdpa, flash, tiled: against a plain loop, in every tile; the diagnostics can fail.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dispatch/flat/compare.h"
#include "flashlane/attention.h"
#include "flashlane/flat.h"
#include "tests/support/flat.h"
#include "tests/support/numbers.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

const FlatDims kShapes[] = {
    {1, 1, 1, 1, 1},  {5, 7, 1, 1, 3},    {7, 5, 4, 2, 8},     {9, 33, 6, 1, 16},
    {33, 9, 2, 2, 5}, {17, 65, 3, 3, 64}, {40, 200, 8, 2, 32}, {200, 40, 1, 1, 7},
};

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                double tolerance = 1e-12) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

FlatResult RunBackend(int32_t backend, const FlatProblem& problem, const FlatParams& params,
                      int64_t tile) {
  FlatResult result(problem.dims);
  const FlatInputs in = problem.Inputs();
  AttnStatus status = ATTN_UNKNOWN;
  switch (backend) {
    case ATTN_BACKEND_SDPA:
      status = sdpa_forward_flat(in, problem.dims, params, result.Outputs());
      break;
    case ATTN_BACKEND_FLASH:
      status = flash_forward_flat(in, problem.dims, params, tile, result.Outputs());
      break;
    case ATTN_BACKEND_TILED:
      status = tiled_forward_flat(in, problem.dims, params, tile, result.Outputs());
      break;
    case ATTN_BACKEND_DIRECT:
      status = direct_forward_flat(in, problem.dims, params, result.Outputs());
      break;
    default:
      status = unstable_forward_flat(in, problem.dims, params, result.Outputs());
  }
  EXPECT_EQ(status, ATTN_OK) << attn_status_name(status);
  return result;
}

TEST(FlatAttentionTest, EveryPathComputesAttention) {
  for (const FlatDims& dims : kShapes) {
    for (const bool causal : {false, true}) {
      for (const bool bias : {false, true}) {
        FlatProblem problem(dims);
        if (bias) problem.AddBias(9);
        const FlatParams params = {0.4, causal};
        const FlatResult want = PlainAttention(problem, params);
        for (int32_t backend = ATTN_BACKEND_SDPA; backend <= ATTN_BACKEND_UNSTABLE; ++backend) {
          SCOPED_TRACE(attn_backend_name(backend));
          const FlatResult got = RunBackend(backend, problem, params, 16);
          ExpectNear(got.out, want.out);
          ExpectNear(got.lse, want.lse);
        }
      }
    }
  }
}

TEST(FlatAttentionTest, EveryTileGivesTheSame) {
  for (const FlatDims& dims : {FlatDims{7, 5, 4, 2, 8}, FlatDims{9, 33, 6, 1, 16}}) {
    for (const bool causal : {false, true}) {
      FlatProblem problem(dims);
      problem.AddBias(3);
      const FlatParams params = {0.4, causal};
      const FlatResult want = PlainAttention(problem, params);
      for (const int64_t tile : {int64_t{1}, int64_t{2}, int64_t{3}, dims.n_tok_k - 1, dims.n_tok_k,
                                 dims.n_tok_k + 1, kMax}) {
        SCOPED_TRACE(tile);
        const FlatResult got = RunBackend(ATTN_BACKEND_FLASH, problem, params, tile);
        ExpectNear(got.out, want.out);
        ExpectNear(got.lse, want.lse);
      }
    }
  }
}

TEST(FlatAttentionTest, DirectHasTheBitsOfTheMainCallAndTilesThoseOfTheirNumber) {
  const FlatProblem problem({40, 200, 8, 2, 32});
  const FlatResult direct = RunBackend(ATTN_BACKEND_DIRECT, problem, {0.4, true}, 1);
  EXPECT_EQ(RunBackend(ATTN_BACKEND_FLASH, problem, {0.4, true}, 200).out, direct.out);
  EXPECT_NE(RunBackend(ATTN_BACKEND_FLASH, problem, {0.4, true}, 7).out, direct.out);
  FlatResult core(problem.dims);
  AttentionInputs inputs;
  AttentionOutputs outputs;
  ASSERT_EQ(attention_views_flat(problem.Inputs(), problem.dims, &inputs), ATTN_OK);
  ASSERT_EQ(attention_views_flat(core.Outputs(), problem.dims, &outputs), ATTN_OK);
  AttentionParams params;
  params.softmax_scale = 0.4;
  params.causal = true;
  ASSERT_TRUE(Attention(inputs, params, outputs).ok());
  EXPECT_EQ(core.out, direct.out);
  EXPECT_EQ(core.lse, direct.lse);
}

TEST(FlatAttentionTest, LseMayBeLeftOutAndBuffersMayBeLonger) {
  FlatProblem problem({5, 7, 2, 1, 3});
  const FlatResult want = PlainAttention(problem, {0.4, false});
  for (std::vector<double>* operand : {&problem.q, &problem.k, &problem.v}) {
    operand->push_back(std::nan(""));
  }
  FlatResult got(problem.dims);
  got.out.push_back(-77.0);
  for (const int64_t tile : {2, 100}) {
    const FlatOutputs outputs = {got.out, {}};
    EXPECT_EQ(flash_forward_flat(problem.Inputs(), problem.dims, {0.4, false}, tile, outputs),
              ATTN_OK);
    EXPECT_EQ(got.out.back(), -77.0);
    ExpectNear({got.out.begin(), got.out.end() - 1}, want.out);
  }
}

TEST(FlatAttentionTest, NoKeysAndNoQueries) {
  for (int32_t backend = ATTN_BACKEND_SDPA; backend <= ATTN_BACKEND_UNSTABLE; ++backend) {
    SCOPED_TRACE(attn_backend_name(backend));
    const FlatResult none = RunBackend(backend, FlatProblem({3, 0, 2, 1, 4}), {0.4, false}, 1);
    EXPECT_EQ(none.out, std::vector<double>(24, 0.0));
    EXPECT_EQ(none.lse, std::vector<double>(6, -kInf));
    RunBackend(backend, FlatProblem({0, 3, 2, 1, 4}), {0.4, false}, 1);
    RunBackend(backend, FlatProblem({0, 0, 2, 1, 4}), {0.4, true}, 1);
    // A bias of -inf hides a key whatever it holds; so it does all keys of a tile.
    FlatProblem hidden({2, 3, 1, 1, 1});
    hidden.bias = {-kInf, -kInf, -kInf, 0.0, -kInf, -kInf};
    hidden.v[1] = std::nan("");
    hidden.v[2] = kInf;
    const FlatResult got = RunBackend(backend, hidden, {0.4, false}, 1);
    EXPECT_EQ(got.out, (std::vector<double>{0.0, hidden.v[0]}));
    EXPECT_EQ(got.lse[0], -kInf);
    EXPECT_NEAR(got.lse[1], 0.4 * hidden.q[1] * hidden.k[0], 1e-15);
  }
}

TEST(FlatAttentionTest, OnlyTheUnstablePathIsUnstable) {
  FlatProblem problem({2, 2, 1, 1, 1});
  problem.v = {1.0, 3.0};
  for (const double shift : {800.0, -800.0, 1e6, -1e9}) {
    problem.q = {1.0, 1.0};
    problem.k = {0.0, 0.0};
    problem.bias = {shift, shift, shift, shift};
    for (int32_t backend = ATTN_BACKEND_SDPA; backend <= ATTN_BACKEND_DIRECT; ++backend) {
      const FlatResult got = RunBackend(backend, problem, {1.0, false}, 1);
      EXPECT_EQ(got.out, (std::vector<double>{2.0, 2.0})) << attn_backend_name(backend) << shift;
      EXPECT_NEAR(got.lse[0], shift + std::log(2.0), 1e-7) << attn_backend_name(backend) << shift;
    }
    const FlatResult unstable = RunBackend(ATTN_BACKEND_UNSTABLE, problem, {1.0, false}, 1);
    EXPECT_TRUE(std::isnan(unstable.out[0])) << shift;
    EXPECT_EQ(unstable.lse[0], shift > 0 ? kInf : -kInf);
  }
}

TEST(FlatAttentionTest, ReferenceDelta) {
  FlatProblem problem({9, 33, 6, 1, 16});
  const FlatParams params = {0.4, true};
  for (int32_t backend = ATTN_BACKEND_SDPA; backend <= ATTN_BACKEND_UNSTABLE; ++backend) {
    const ReferenceDelta delta = attn_reference_delta_flat(
        static_cast<AttnBackend>(backend), problem.Inputs(), problem.dims, params, 5);
    EXPECT_EQ(delta.status, ATTN_OK);
    EXPECT_EQ(delta.elements, 9 * 6 * 16);
    EXPECT_LE(delta.max_out_diff, 1e-13);
    EXPECT_LE(delta.max_lse_diff, 1e-13);
    EXPECT_TRUE(backend != ATTN_BACKEND_SDPA || delta.max_out_diff == 0.0);
    const FlatResult path = RunBackend(backend, problem, params, 5);
    const FlatResult reference = RunBackend(ATTN_BACKEND_SDPA, problem, params, 5);
    EXPECT_EQ(delta.max_out_diff, MaxDifference(path.out, reference.out));
    EXPECT_EQ(delta.max_lse_diff, MaxDifference(path.lse, reference.lse));
  }
  problem.bias.assign(9 * 33, 1000.0);
  const ReferenceDelta overflow =
      attn_reference_delta_flat(ATTN_BACKEND_UNSTABLE, problem.Inputs(), problem.dims, params, 5);
  EXPECT_EQ(overflow.status, ATTN_OK);
  EXPECT_EQ(overflow.max_out_diff, kInf);
  EXPECT_EQ(overflow.max_lse_diff, kInf);
}

TEST(FlashAgreementTest, AgreesOnEveryShapeAndSize) {
  for (const FlatDims& dims : kShapes) {
    for (const double magnitude : {1e-150, 1e-3, 1.0, 30.0, 1e4}) {
      for (const bool causal : {false, true}) {
        FlatProblem problem(dims, 7);
        problem.AddBias(5);
        for (double& x : problem.q) x *= magnitude;
        for (double& x : problem.v) x *= magnitude;
        const FlashAgreement agreement =
            flash_agrees_with_sdpa(problem.Inputs(), dims, {0.3, causal}, 4);
        EXPECT_EQ(agreement.status, ATTN_OK);
        EXPECT_TRUE(agreement.agrees) << magnitude << " " << agreement.max_out_diff << " "
                                      << agreement.max_lse_diff << " " << agreement.tolerance;
        EXPECT_EQ(agreement.elements, dims.n_tok_q * dims.h_q * dims.head_dim);
        EXPECT_GE(agreement.tolerance, 1e-12);
      }
    }
  }
}

// A query that sees no key under biases of -1e9: an average of all, at the precision of such
// scores.
TEST(FlashAgreementTest, AgreesUnderMasks) {
  for (const int64_t offset : {-40, -3, 0, 7}) {
    FlatProblem problem({17, 65, 4, 2, 8}, 3);
    problem.bias.resize(17 * 65);
    ASSERT_EQ(mask_causal_flat(17, 65, offset, problem.bias), ATTN_OK);
    for (const int64_t tile : {1, 16, 65}) {
      const FlashAgreement agreement =
          flash_agrees_with_sdpa(problem.Inputs(), problem.dims, {0.4, false}, tile);
      EXPECT_EQ(agreement.status, ATTN_OK);
      EXPECT_TRUE(agreement.agrees) << agreement.max_out_diff << " " << agreement.max_lse_diff;
    }
  }
}

TEST(FlashAgreementTest, AgreesAboutWhatIsNotFinite) {
  FlatProblem problem({4, 6, 2, 1, 3});
  problem.q[0] = std::nan("");
  problem.v[4] = kInf;
  problem.k[10] = -kInf;
  FlashAgreement agreement = flash_agrees_with_sdpa(problem.Inputs(), problem.dims, {1.0, true}, 2);
  EXPECT_EQ(agreement.status, ATTN_OK);
  EXPECT_TRUE(agreement.agrees);
  agreement = flash_agrees_with_sdpa({}, {0, 0, 1, 1, 1}, {1.0, true}, 2);
  EXPECT_EQ(agreement.status, ATTN_OK);
  EXPECT_TRUE(agreement.agrees);
  EXPECT_EQ(agreement.elements, 0);
}

// The judge, with errors planted one at a time.
TEST(FlashAgreementTest, CanFail) {
  const FlatProblem problem({4, 6, 2, 1, 3});
  const FlatInputs in = problem.Inputs();
  OwnOutputs reference(problem.dims), magnitude(problem.dims);
  ASSERT_EQ(sdpa_forward_flat(in, problem.dims, {0.5, false}, reference), ATTN_OK);
  FlatInputs positive = in;
  const std::vector<double> magnitudes = Magnitudes(in, problem.dims);
  positive.v = magnitudes;
  ASSERT_EQ(sdpa_forward_flat(positive, problem.dims, {0.5, false}, magnitude), ATTN_OK);
  const Tolerances allowed(problem.dims, RowGrowth(in, problem.dims, 0.5, reference.lse),
                           magnitude.out);
  const auto agrees = [&](const OwnOutputs& flash) {
    FlashAgreement result;
    JudgeAgreement(flash, reference, allowed, &result);
    return result.agrees;
  };
  EXPECT_TRUE(agrees(reference));
  for (const double error : {1e-11, -1e-11, 1.0, kInf, std::nan("")}) {
    for (size_t e = 0; e < reference.out.size(); ++e) {
      OwnOutputs flash = reference;
      flash.out[e] += error;
      EXPECT_FALSE(agrees(flash)) << error;
    }
    for (size_t row = 0; row < reference.lse.size(); ++row) {
      OwnOutputs flash = reference;
      flash.lse[row] += error;
      EXPECT_FALSE(agrees(flash)) << error;
    }
  }
  OwnOutputs flash = reference;
  flash.out[0] += 1e-13;
  EXPECT_TRUE(agrees(flash));
}

}  // namespace
}  // namespace flashlane::testing
