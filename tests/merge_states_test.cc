// MergeStates: the union of two parts is the whole, the neutral element is exact, sides may be
// exchanged.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "tests/support/compare.h"
#include "tests/support/numbers.h"
#include "tests/support/problem.h"

namespace flashlane::testing {
namespace {

using ::testing::HasSubstr;

struct MergeCase {
  DType dtype;
  std::string target;
};

std::vector<MergeCase> MergeCases() {
  std::vector<MergeCase> cases;
  for (const KernelRow& row : Registry()) {
    if (row.merge == nullptr) continue;
    for (const Target& target : SupportedTargetList()) cases.push_back({row.dtype, target.name});
  }
  return cases;
}

class MergeStatesTest : public ::testing::TestWithParam<MergeCase> {
 protected:
  DType LseType() const { return GetParam().dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

  Result Merge(const PartialAttention& a, const PartialAttention& b, int threads = 0) const {
    Result result;
    std::vector<double> nothing(
        static_cast<size_t>(a.out.shape[0] * a.out.shape[1] * a.out.shape[2] * a.out.shape[3]));
    result.out_tensor =
        OwnedTensor::Of(nothing, GetParam().dtype,
                        {a.out.shape[0], a.out.shape[1], a.out.shape[2], a.out.shape[3]});
    nothing.resize(nothing.size() / static_cast<size_t>(a.out.shape[3]));
    result.lse_tensor =
        OwnedTensor::Of(nothing, LseType(), {a.out.shape[0], a.out.shape[1], a.out.shape[2]});
    AttentionOutputs outputs;
    outputs.out = TensorView(result.out_tensor.storage.data(), GetParam().dtype,
                             {a.out.shape[0], a.out.shape[1], a.out.shape[2], a.out.shape[3]});
    outputs.lse = TensorView(result.lse_tensor.storage.data(), LseType(),
                             {a.out.shape[0], a.out.shape[1], a.out.shape[2]});
    ExecOptions options;
    options.target = GetParam().target.c_str();
    options.num_threads = threads;
    result.status = MergeStates(a, b, outputs, options);
    result.out = result.out_tensor.Values();
    result.lse = result.lse_tensor.Values();
    return result;
  }

  // One row [1, 1, 1, n] with its lse.
  struct Side {
    OwnedTensor out, lse;
    PartialAttention Partial() const { return {out.View(), lse.View()}; }
  };
  Side Row(const std::vector<double>& out, double lse) const {
    return {OwnedTensor::Of(out, GetParam().dtype, {1, 1, 1, static_cast<int64_t>(out.size())}),
            OwnedTensor::Of({lse}, LseType(), {1, 1, 1})};
  }
};

TEST_P(MergeStatesTest, TwoPartsMakeTheWhole) {
  for (const int64_t dim : {1, 7, 16, 130}) {
    ProblemSpec spec;
    spec.batch = 2;
    spec.num_heads = 3;
    spec.seqlen_q = 11;
    spec.seqlen_k = 60;
    spec.head_dim = spec.head_dim_v = dim;
    // F64 parts rounded to the dtype, so that only the merge is judged in it.
    const Problem whole(spec, DType::kF64);
    const ForwardReference reference = ReferenceOf(whole);
    Problem first = whole, second = whole;
    const auto keep = [&](Problem& part, int64_t begin, int64_t end) {
      part.mask = OwnedTensor::Of(std::vector<double>(60, 0.0), DType::kBool, {1, 1, 1, 60});
      for (int64_t j = begin; j < end; ++j) part.mask.Set({0, 0, 0, j}, 1);
    };
    keep(first, 0, 23);
    keep(second, 23, 60);
    ExecOptions exact;
    exact.kernel = Kernel::kNaive;
    const auto rounded = [&](const Result& result) {
      Side side;
      side.out = OwnedTensor::Of(result.out, GetParam().dtype, {2, 3, 11, dim});
      side.lse = OwnedTensor::Of(result.lse, LseType(), {2, 3, 11});
      return side;
    };
    const Side a = rounded(first.Run(exact));
    const Side b = rounded(second.Run(exact));
    const Result merged = Merge(a.Partial(), b.Partial());
    ASSERT_TRUE(merged.status.ok()) << merged.status.message();
    const double eps = GetParam().dtype == DType::kF64    ? 1e-15
                       : GetParam().dtype == DType::kF32  ? 1e-6
                       : GetParam().dtype == DType::kBF16 ? 8e-3
                                                          : 1e-3;
    for (size_t i = 0; i < merged.out.size(); ++i) {
      ASSERT_NEAR(merged.out[i], reference.out[i], 4 * eps) << dim << " " << i;
    }
    for (size_t i = 0; i < merged.lse.size(); ++i) {
      ASSERT_NEAR(merged.lse[i], reference.lse[i], GetParam().dtype == DType::kF64 ? 1e-14 : 4e-6);
    }
    const Result exchanged = Merge(b.Partial(), a.Partial());
    EXPECT_EQ(merged.out, exchanged.out);
    EXPECT_EQ(merged.lse, exchanged.lse);
    for (const int threads : {1, 2})
      EXPECT_EQ(Merge(a.Partial(), b.Partial(), threads).out, merged.out);
  }
}

TEST_P(MergeStatesTest, TheNeutralElementIsExactWhateverItHolds) {
  const std::vector<double> values = {1.0 / 3, -0.0, 1e-30, 7.25, -2.0, 0.1, 3.0, 9.0, 1.5};
  const Side live = Row(values, 0.7);
  for (const double poison : {kNan, kInf, 5.0}) {
    const Side empty = Row(std::vector<double>(values.size(), poison), -kInf);
    for (const Result& result :
         {Merge(live.Partial(), empty.Partial()), Merge(empty.Partial(), live.Partial())}) {
      EXPECT_EQ(result.out_tensor.storage, live.out.storage);
      EXPECT_EQ(result.lse_tensor.storage, live.lse.storage);
    }
    const Result nothing = Merge(empty.Partial(), empty.Partial());
    for (const double value : nothing.out) EXPECT_EQ(value, 0.0);
    EXPECT_EQ(nothing.lse[0], -kInf);
  }
}

TEST_P(MergeStatesTest, FarApartAndNotFinite) {
  const Side low = Row({1.0, 2.0}, -1e4);
  const Side high = Row({3.0, -4.0}, 1e4);
  const Result result = Merge(low.Partial(), high.Partial());
  EXPECT_EQ(result.out, (std::vector<double>{3.0, -4.0}));
  EXPECT_EQ(result.lse[0], 1e4);
  for (const double bad : {kNan, kInf}) {
    const Result broken = Merge(low.Partial(), Row({1.0, 1.0}, bad).Partial());
    for (const double value : broken.out) EXPECT_TRUE(std::isnan(value));
    EXPECT_TRUE(std::isnan(broken.lse[0]));
    // Whichever NaN it was: the same bits when the sides change places.
    const Side negative = Row({-bad, 1.0}, -bad == -kInf ? bad : -bad);
    const Side positive = Row({1.0, bad}, bad);
    const Result one = Merge(negative.Partial(), positive.Partial());
    const Result other = Merge(positive.Partial(), negative.Partial());
    EXPECT_EQ(one.out_tensor.storage, other.out_tensor.storage);
    EXPECT_EQ(one.lse_tensor.storage, other.lse_tensor.storage);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MergeStatesTest, ::testing::ValuesIn(MergeCases()),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param.dtype)) + "_" +
                                  info.param.target;
                         });

TEST(MergeStatesRuleTest, BadArgumentsAreRefused) {
  std::vector<float> out(6, 1.0f), lse(3, 0.0f), to(6, -7.0f), to_lse(3, -7.0f);
  PartialAttention a;
  a.out = ConstTensorView(out.data(), DType::kF32, {1, 1, 3, 2});
  a.lse = ConstTensorView(lse.data(), DType::kF32, {1, 1, 3});
  AttentionOutputs outputs;
  outputs.out = TensorView(to.data(), DType::kF32, {1, 1, 3, 2});
  outputs.lse = TensorView(to_lse.data(), DType::kF32, {1, 1, 3});
  const auto expect = [&](const PartialAttention& b, const AttentionOutputs& results,
                          const char* part) {
    const Status status = MergeStates(a, b, results);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(part));
    EXPECT_EQ(to, std::vector<float>(6, -7.0f));
  };
  PartialAttention b = a;
  b.out.shape[2] = 2;
  expect(b, outputs, "out_b: shape [1, 1, 2, 2] does not match out_a's [1, 1, 3, 2]");
  b = a;
  b.lse = {};
  expect(b, outputs, "lse_b: rank 0 is not 3");
  b = a;
  b.out.dtype = DType::kI32;
  expect(b, outputs, "out_b: dtype I32 is not F32");
  b = a;
  b.lse.dtype = DType::kF64;
  expect(b, outputs, "lse_b: dtype F64 is not F32");
  AttentionOutputs aliased = outputs;
  aliased.out.data = out.data();
  expect(a, aliased, "out: shares memory with out_a");
  aliased = outputs;
  aliased.lse.data = to.data();
  expect(a, aliased, "lse: shares memory with out");
  EXPECT_TRUE(MergeStates(a, a, outputs).ok());
}

TEST(MergeStatesRuleTest, EmptyOfLargeSizesIsLegal) {
  PartialAttention a;
  a.out = ConstTensorView(nullptr, DType::kF32, {int64_t{1} << 20, int64_t{1} << 20, 0, 4});
  a.lse = ConstTensorView(nullptr, DType::kF32, {int64_t{1} << 20, int64_t{1} << 20, 0});
  AttentionOutputs outputs;
  outputs.out = TensorView(nullptr, DType::kF32, {int64_t{1} << 20, int64_t{1} << 20, 0, 4});
  const Status status = MergeStates(a, a, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(MergeStatesRuleTest, ASideMayBeItsOwnOutput) {
  std::vector<float> a_out = {1, 2, 3, 4}, b_out = {5, 6, 7, 8}, apart(4);
  std::vector<float> a_lse = {0.5f, -1.0f}, b_lse = {1.5f, -2.0f}, apart_lse(2);
  const auto partial = [](std::vector<float>& out, std::vector<float>& lse) {
    return PartialAttention{ConstTensorView(out.data(), DType::kF32, {1, 1, 2, 2}),
                            ConstTensorView(lse.data(), DType::kF32, {1, 1, 2})};
  };
  const auto outputs = [](std::vector<float>& out, std::vector<float>& lse) {
    AttentionOutputs results;
    results.out = TensorView(out.data(), DType::kF32, {1, 1, 2, 2});
    results.lse = TensorView(lse.data(), DType::kF32, {1, 1, 2});
    return results;
  };
  const PartialAttention a = partial(a_out, a_lse), b = partial(b_out, b_lse);
  ASSERT_TRUE(MergeStates(a, b, outputs(apart, apart_lse)).ok());
  // out over a, but lse elsewhere: the rule speaks of both.
  const Status half = MergeStates(a, b, outputs(a_out, apart_lse));
  EXPECT_THAT(half.message(), HasSubstr("out: shares memory with out_a"));
  ASSERT_TRUE(MergeStates(a, b, outputs(a_out, a_lse)).ok());
  EXPECT_EQ(a_out, apart);
  EXPECT_EQ(a_lse, apart_lse);
}

}  // namespace
}  // namespace flashlane::testing
