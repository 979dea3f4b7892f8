// The worked examples of the modules' specification, with its printed digits: to 1e-12 where they
// are that good. Where they are not, the true value is here, and the digits to what they are worth.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "flashlane/flat.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

const std::vector<double> kQ = {1.0, 0.0, 0.0, 1.0};  // 2 tokens x 1 head x 2 dims
const std::vector<double> kK = {1.0, 0.0, 0.0, 1.0};
const std::vector<double> kV = {10.0, 20.0, 30.0, 40.0};
const FlatDims kDims = {2, 2, 1, 1, 2};
const FlatParams kParams = {0.5, false};

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                double tolerance = 1e-12) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
}

// attn_dims_check [1, 2, 1, 4, 4, 8] -> 360.
TEST(FlatExamplesTest, DimsCheck) {
  EXPECT_EQ(attn_dims_check(1, 2, 1, 4, 4, 8), 360);
  EXPECT_EQ(attn_dims_check(1, 2, 1, 4, 4, 8), ATTN_OK);
}

// rope_inv_freq [4, 10000.0] -> [1.0, 0.01].
TEST(FlatExamplesTest, RopeInvFreq) {
  std::vector<double> inv_freq(2);
  EXPECT_EQ(rope_inv_freq(4, 10000.0, inv_freq), ATTN_OK);
  ExpectNear(inv_freq, {1.0, 0.01});
}

// The document's exponentials and logarithms are good to 1e-10 or so: its lse is 1.6e-10 off, its
// out 7.6e-14 of itself.
TEST(FlatExamplesTest, SdpaForward) {
  std::vector<double> out(4), lse(2);
  EXPECT_EQ(sdpa_forward_flat({kQ, kK, kV, {}}, kDims, kParams, {out, lse}), ATTN_OK);
  const std::vector<double> printed = {17.550813375961578, 27.550813375961578, 22.449186624038415,
                                       32.44918662403842};
  for (size_t i = 0; i < printed.size(); ++i) EXPECT_NEAR(out[i] / printed[i], 1.0, 1e-12) << i;
  ExpectNear(lse, {0.9740769843439637, 0.9740769843439637}, 2e-10);
  // "raw scores before softmax [0.5, 0.0], weights [0.6224593312, 0.3775406688]".
  const double sum = std::exp(0.5) + 1.0, p = std::exp(0.5) / sum;
  EXPECT_NEAR(p, 0.6224593312, 1e-10);
  ExpectNear(
      out,
      {10 * p + 30 * (1 - p), 20 * p + 40 * (1 - p), 10 * (1 - p) + 30 * p, 20 * (1 - p) + 40 * p},
      1e-14);
  ExpectNear(lse, {std::log(sum), std::log(sum)}, 1e-15);
}

// [3.552713678800501e-15, 0.0, 1.0623530147548535e-12, True, 4, 360]: the differences are one or no
// unit in the last place of 17.55 and of 0.97.
TEST(FlatExamplesTest, FlashAgreesWithSdpa) {
  const FlashAgreement agreement = flash_agrees_with_sdpa({kQ, kK, kV, {}}, kDims, kParams, 1);
  EXPECT_LE(agreement.max_out_diff, 2 * 3.552713678800501e-15);
  EXPECT_LE(agreement.max_lse_diff, 2.3e-16);
  EXPECT_NEAR(agreement.tolerance, 1.0623530147548535e-12, 1e-24);
  EXPECT_TRUE(agreement.agrees);
  EXPECT_EQ(agreement.elements, 4);
  EXPECT_EQ(agreement.status, 360);
}

TEST(FlatExamplesTest, MaskCausal) {
  std::vector<double> mask(9);
  EXPECT_EQ(mask_causal_flat(3, 3, 0, mask), ATTN_OK);
  EXPECT_EQ(mask, (std::vector<double>{0.0, -1000000000.0, -1000000000.0,  //
                                       0.0, 0.0, -1000000000.0,            //
                                       0.0, 0.0, 0.0}));
}

// The document's sines and cosines are good to 1e-11: its own inverse brings back
// 1.0000000000062432. So its digits are compared to 2e-11, and to 1e-14 what they stand for.
TEST(FlatExamplesTest, RopeApplyAndInverse) {
  std::vector<double> cos_t(4), sin_t(4);
  EXPECT_EQ(rope_table(4, 2, 10000.0, {cos_t, sin_t}), ATTN_OK);
  ExpectNear(cos_t, {1.0, 1.0, std::cos(1.0), std::cos(0.01)}, 1e-15);
  ExpectNear(sin_t, {0.0, 0.0, std::sin(1.0), std::sin(0.01)}, 1e-15);

  const std::vector<double> x = {1.0, 2.0, 3.0, 4.0};  // 1 token x 1 head x 4 dims
  const std::vector<int64_t> position = {1};
  std::vector<double> rotated(4), back(4);
  EXPECT_EQ(rope_apply_flat({x, cos_t, sin_t, position}, {1, 1, 4}, false, rotated), ATTN_OK);
  ExpectNear(rotated,
             {-1.9841106485555495, 1.959900667493101, 2.4623779024123156, 4.019799668336732},
             2e-11);
  ExpectNear(rotated,
             {std::cos(1.0) - 3 * std::sin(1.0), 2 * std::cos(0.01) - 4 * std::sin(0.01),
              3 * std::cos(1.0) + std::sin(1.0), 4 * std::cos(0.01) + 2 * std::sin(0.01)},
             1e-14);
  EXPECT_EQ(rope_apply_inverse_flat({rotated, cos_t, sin_t, position}, {1, 1, 4}, false, back),
            ATTN_OK);
  ExpectNear(back, {1.0000000000062432, 1.999999999990699, 2.9999999999940625, 4.000000000003489},
             2e-11);
  ExpectNear(back, x, 1e-14);
}

// [9.135439071883411e-10, 1.140014848623605e-07, True, 4, 360]. The largest error is that of the
// quotient, 8.03e-10 (step^2 / 6 times the third derivative), and its rounding, 1e-10 or so; the
// tolerance holds the quotient, and so that error times 2e-8.
TEST(FlatExamplesTest, Gradcheck) {
  const GradcheckResult grad = attn_bwd_gradcheck_flat({kQ, kK, kV, {}}, kDims, kParams, 0.0001);
  EXPECT_NEAR(grad.max_error, 9.135439071883411e-10, 3e-10);
  EXPECT_NEAR(grad.tolerance, 1.140014848623605e-07, 1e-17);
  EXPECT_TRUE(grad.agrees);
  EXPECT_EQ(grad.elements, 4);
  EXPECT_EQ(grad.status, 360);
}

}  // namespace
}  // namespace flashlane::testing
