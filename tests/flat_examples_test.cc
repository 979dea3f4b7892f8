// Every worked example of the attnk specification, with the digits it prints: to 1e-12 of what
// correctly rounded functions give, except where the document's own are further off, as said there.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "flashlane/flat.h"
#include "tests/support/flat.h"

namespace flashlane::testing {
namespace {

using flat::AttnStatus;

constexpr double kDigits = 1e-12;
// The document's exp and log are off by 1.3e-12 and 1.6e-10 in the numbers that it prints.
constexpr double kDocumentOut = 2e-12;
constexpr double kDocumentLse = 2e-10;

void ExpectDigits(const std::vector<double>& got, const std::vector<double>& wanted,
                  double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], tolerance) << i;
}

TEST(FlatExamples, DimensionsOfTwoQueryHeadsAndOneKvHead) {
  const AttnStatus status = flat::AttnDimsCheck(1, 2, 1, 4, 4, 8);
  EXPECT_EQ(static_cast<int>(status), 360);
  EXPECT_STREQ(flat::AttnStatusName(360), "ATTN_OK");
  EXPECT_EQ(flat::AttnStatusFromName("ATTN_OK"), 360);
}

TEST(FlatExamples, InverseFrequencies) {
  std::vector<double> inv_freq(2);
  ASSERT_EQ(flat::RopeInvFreqFlat(4, 10000.0, flat::Buffer(inv_freq)), AttnStatus::kOk);
  ExpectDigits(inv_freq, {1.0, 0.01}, kDigits);
}

TEST(FlatExamples, MaterialisedReference) {
  FlatProblem problem({2, 2, 1, 1, 2});
  MakeExample(&problem);
  FlatResult result(problem);
  ASSERT_EQ(flat::SdpaForwardFlat(problem.in, result.Outputs()), AttnStatus::kOk);
  ExpectDigits(result.out,
               {17.550813375961578, 27.550813375961578, 22.449186624038415, 32.44918662403842},
               kDocumentOut);
  ExpectDigits(result.lse, {0.9740769843439637, 0.9740769843439637}, kDocumentLse);
  // What they are: weights e^0.5 and 1.
  const double sum = std::exp(0.5) + 1, near = std::exp(0.5) / sum, far = 1 / sum;
  ExpectDigits(
      result.out,
      {10 * near + 30 * far, 20 * near + 40 * far, 10 * far + 30 * near, 20 * far + 40 * near},
      1e-14);
  ExpectDigits(result.lse, {std::log(sum), std::log(sum)}, 1e-15);
}

TEST(FlatExamples, FlashAgreesWithTheReference) {
  FlatProblem problem({2, 2, 1, 1, 2});
  MakeExample(&problem);
  const flat::Agreement agreement = flat::FlashAgreesWithSdpa(problem.in, 1);
  // The document's difference is one last place of its own functions; ours may be less.
  EXPECT_LE(agreement.max_out_difference, 3.552713678800501e-15 * 2);
  EXPECT_LE(agreement.max_lse_difference, 2.3e-16);
  EXPECT_TRUE(agreement.agrees);
  EXPECT_EQ(agreement.elements, 4);
  EXPECT_EQ(static_cast<int>(agreement.status), 360);
  // 1e-12 + 8 n_tok_k eps times the row's own magnitude, which the document prints of element 0.
  const double per_unit = 8 * 2 * 2.220446049250313e-16;
  EXPECT_NEAR(1e-12 + per_unit * 17.550813375961578, 1.0623530147548535e-12, 1e-27);
  EXPECT_GE(agreement.tolerance, 1.0623530147548535e-12 * (1 - 1e-12));
  EXPECT_LE(agreement.tolerance, 1e-12 + per_unit * 32.5);
}

TEST(FlatExamples, CausalMaskIsABias) {
  std::vector<double> bias(9, kUntouched);
  ASSERT_EQ(flat::MaskCausalFlat(3, 3, 0, flat::Buffer(bias)), AttnStatus::kOk);
  const double x = -1000000000.0;
  EXPECT_EQ(bias, (std::vector<double>{0, x, x, 0, 0, x, 0, 0, 0}));
}

TEST(FlatExamples, RotationAndItsInverse) {
  std::vector<double> cos(4), sin(4);
  ASSERT_EQ(flat::RopeTableFlat(4, 2, 10000.0, {flat::Buffer(cos), flat::Buffer(sin)}),
            AttnStatus::kOk);
  const std::vector<double> x = {1.0, 2.0, 3.0, 4.0};
  const std::vector<std::int64_t> position = {1};
  flat::FlatRope rope;
  rope.x = flat::ConstBuffer(x);
  rope.cos = flat::ConstBuffer(cos);
  rope.sin = flat::ConstBuffer(sin);
  rope.n_tok = rope.n_heads = 1;
  rope.head_dim = 4;
  rope.position = flat::ConstIndices(position);
  std::vector<double> rotated(4), back(4);
  ASSERT_EQ(flat::RopeApplyFlat(rope, flat::Buffer(rotated)), AttnStatus::kOk);
  // The document's cos and sin are off by up to 4e-12: its inverse, which is exact for right ones,
  // comes back to x + 6e-12 only.
  const double kDocument = 2e-11;
  ExpectDigits(rotated,
               {-1.9841106485555495, 1.959900667493101, 2.4623779024123156, 4.019799668336732},
               kDocument);
  // What they are.
  ExpectDigits(rotated,
               {std::cos(1.0) - 3 * std::sin(1.0), 2 * std::cos(0.01) - 4 * std::sin(0.01),
                std::sin(1.0) + 3 * std::cos(1.0), 2 * std::sin(0.01) + 4 * std::cos(0.01)},
               4e-15);
  rope.x = flat::ConstBuffer(rotated);
  ASSERT_EQ(flat::RopeApplyInverseFlat(rope, flat::Buffer(back)), AttnStatus::kOk);
  ExpectDigits(back, {1.0000000000062432, 1.999999999990699, 2.9999999999940625, 4.000000000003489},
               kDocument);
  ExpectDigits(back, x, 4e-15);
}

TEST(FlatExamples, GradientsCheckThemselves) {
  FlatProblem problem({2, 2, 1, 1, 2});
  MakeExample(&problem);
  const flat::Gradcheck check = flat::AttnBwdGradcheckFlat(problem.in, 0.0001);
  // The error is that of the difference, whose last digits are the functions' roundings.
  EXPECT_NEAR(check.max_error, 9.135439071883411e-10, 1e-8);
  EXPECT_NEAR(check.tolerance, 1.140014848623605e-07, kDocumentLse * 1.14e-7);
  EXPECT_TRUE(check.agrees);
  EXPECT_EQ(check.elements, 4);
  EXPECT_EQ(static_cast<int>(check.status), 360);
}

}  // namespace
}  // namespace flashlane::testing
