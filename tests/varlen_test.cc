// Packed batches: each sequence has the bits of a call of its own, and what the rules refuse is
// refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/problem.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 12, kDimV = 10;

// Packed tensors of random values, and the bytes of out and lse.
struct Packed {
  std::vector<int64_t> cu_q, cu_k;
  OwnedTensor q, k, v, slopes;
  std::vector<std::byte> out, lse;
  DType dtype;

  Packed(const std::vector<int64_t>& lengths_q, const std::vector<int64_t>& lengths_k, DType type)
      : cu_q{0}, cu_k{0}, dtype(type) {
    for (const int64_t length : lengths_q) cu_q.push_back(cu_q.back() + length);
    for (const int64_t length : lengths_k) cu_k.push_back(cu_k.back() + length);
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    const auto make = [&](int64_t rows, int64_t heads, int64_t width) {
      std::vector<double> values(static_cast<size_t>(rows * heads * width));
      for (double& value : values) value = normal(random);
      return OwnedTensor::Of(values, dtype, {rows, heads, width});
    };
    q = make(cu_q.back(), kHeads, kDim);
    k = make(cu_k.back(), kKvHeads, kDim);
    v = make(cu_k.back(), kKvHeads, kDimV);
    slopes = OwnedTensor::Of({0.1, -0.2, 0.3, 0.05}, dtype, {kHeads});
    out.assign(static_cast<size_t>(cu_q.back() * kHeads * kDimV) * DTypeSize(dtype),
               std::byte{0x5A});
    lse.assign(static_cast<size_t>(cu_q.back() * kHeads) * LseSize(), std::byte{0x5A});
  }

  DType LseType() const { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
  size_t LseSize() const { return DTypeSize(LseType()); }
  int64_t size() const { return static_cast<int64_t>(cu_q.size()) - 1; }

  VarlenInputs Inputs() const {
    VarlenInputs inputs;
    inputs.q = q.View();
    inputs.k = k.View();
    inputs.v = v.View();
    inputs.cu_seqlens_q = ConstTensorView(cu_q.data(), DType::kI64, {size() + 1});
    inputs.cu_seqlens_k = ConstTensorView(cu_k.data(), DType::kI64, {size() + 1});
    inputs.alibi_slopes = slopes.View();
    return inputs;
  }
  AttentionOutputs Outputs() {
    AttentionOutputs outputs;
    outputs.out = TensorView(out.data(), dtype, {q.view.shape[0], kHeads, kDimV});
    outputs.lse = TensorView(lse.data(), LseType(), {kHeads, q.view.shape[0]});
    return outputs;
  }

  // Sequence b alone, through Attention, into the same places of `into`.
  Status RunAlone(int64_t b, const AttentionParams& params, const ExecOptions& options,
                  Packed* into) {
    const size_t size = DTypeSize(dtype);
    const int64_t nq = cu_q[b + 1] - cu_q[b], nk = cu_k[b + 1] - cu_k[b];
    const auto rows = [&](const OwnedTensor& tensor, int64_t begin, int64_t n, int64_t heads,
                          int64_t width) {
      return ConstTensorView(
          tensor.storage.data() + static_cast<size_t>(begin * heads * width) * size, dtype,
          {1, heads, n, width}, {0, width, heads * width, 1});
    };
    AttentionInputs inputs;
    inputs.q = rows(q, cu_q[b], nq, kHeads, kDim);
    inputs.k = rows(k, cu_k[b], nk, kKvHeads, kDim);
    inputs.v = rows(v, cu_k[b], nk, kKvHeads, kDimV);
    inputs.alibi_slopes = slopes.View();
    AttentionOutputs outputs;
    outputs.out =
        TensorView(into->out.data() + static_cast<size_t>(cu_q[b] * kHeads * kDimV) * size, dtype,
                   {1, kHeads, nq, kDimV}, {0, kDimV, kHeads * kDimV, 1});
    outputs.lse = TensorView(into->lse.data() + static_cast<size_t>(cu_q[b]) * LseSize(), LseType(),
                             {1, kHeads, nq}, {0, cu_q.back(), 1});
    return Attention(inputs, params, outputs, options);
  }
};

class VarlenTest : public RunTest {};

TEST_P(VarlenTest, SameBitsAsEachSequenceAlone) {
  const std::vector<std::vector<int64_t>> lengths = {
      {0}, {1}, {5, 0, 0, 70, 1}, {300, 2, 0, 17, 64, 65}, {0, 0}, {1, 1, 1, 1, 1, 1, 1, 1}};
  AttentionParams params[3];
  params[1].causal = true;
  params[1].q_start = QStart::BottomRight();
  params[2].window_size_left = 20;
  params[2].softcap = 3.0;
  for (const auto& lengths_q : lengths) {
    std::vector<int64_t> lengths_k = lengths_q;
    for (size_t i = 0; i < lengths_k.size(); ++i) lengths_k[i] += static_cast<int64_t>(i % 3) * 9;
    for (const AttentionParams& param : params) {
      for (const int threads : {1, 2}) {
        Packed together(lengths_q, lengths_k, GetParam().dtype);
        Packed alone(lengths_q, lengths_k, GetParam().dtype);
        const ExecOptions options = GetParam().Options(threads);
        const Status status =
            AttentionVarlen(together.Inputs(), param, together.Outputs(), options);
        ASSERT_TRUE(status.ok()) << status.message();
        for (int64_t b = 0; b < together.size(); ++b) {
          ASSERT_TRUE(together.RunAlone(b, param, options, &alone).ok());
        }
        EXPECT_EQ(together.out, alone.out);
        EXPECT_EQ(together.lse, alone.lse);
      }
    }
  }
}

TEST_P(VarlenTest, LengthsAndPositionsPerSequence) {
  Packed together({9, 4, 30}, {50, 8, 40}, GetParam().dtype);
  Packed alone = together;
  const std::vector<int32_t> k_len = {50, 0, 33};
  const std::vector<int64_t> q_start = {41, -2, 3};
  VarlenInputs inputs = together.Inputs();
  inputs.k_len = ConstTensorView(k_len.data(), DType::kI32, {3});
  inputs.q_start = ConstTensorView(q_start.data(), DType::kI64, {3});
  AttentionParams params;
  params.causal = true;
  const Status status = AttentionVarlen(inputs, params, together.Outputs(), GetParam().Options());
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t b = 0; b < 3; ++b) {
    params.k_len = k_len[b];
    params.q_start = q_start[b];
    ASSERT_TRUE(together.RunAlone(b, params, GetParam().Options(), &alone).ok());
  }
  EXPECT_EQ(together.out, alone.out);
  EXPECT_EQ(together.lse, alone.lse);
}

TEST_P(VarlenTest, RowsPastTheLastSequenceAreLeftAlone) {
  Packed packed({9, 4, 30}, {9, 4, 30}, GetParam().dtype);
  VarlenInputs inputs = packed.Inputs();
  inputs.cu_seqlens_q.shape[0] = inputs.cu_seqlens_k.shape[0] = 3;  // the first two sequences
  const Status status = AttentionVarlen(inputs, {}, packed.Outputs(), GetParam().Options());
  ASSERT_TRUE(status.ok()) << status.message();
  const size_t row = static_cast<size_t>(kHeads * kDimV) * DTypeSize(GetParam().dtype);
  EXPECT_NE(packed.out[12 * row], std::byte{0x5A});
  for (size_t i = 13 * row; i < packed.out.size(); ++i) ASSERT_EQ(packed.out[i], std::byte{0x5A});
}

FLASHLANE_INSTANTIATE_RUNS(VarlenTest, AllRuns());

struct Broken {
  const char* name;
  const char* message;
  std::function<void(Packed&, VarlenInputs&)> break_it;
};

class VarlenRuleTest : public ::testing::TestWithParam<Broken> {};

TEST_P(VarlenRuleTest, IsRefusedAndNothingIsWritten) {
  Packed packed({5, 3}, {6, 7}, DType::kF32);
  VarlenInputs inputs = packed.Inputs();
  GetParam().break_it(packed, inputs);
  const std::vector<std::byte> before = packed.out;
  const Status status = AttentionVarlen(inputs, {}, packed.Outputs());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
  EXPECT_EQ(packed.out, before);
}

std::vector<Broken> VarlenRules() {
  return {
      {"QRank", "q: rank 2 is not 3", [](Packed&, VarlenInputs& in) { in.q.rank = 2; }},
      {"CuAbsent", "cu_seqlens_q: rank 0 is not 1",
       [](Packed&, VarlenInputs& in) { in.cu_seqlens_q = {}; }},
      {"CuEmpty", "cu_seqlens_q: length 0 is below 1",
       [](Packed&, VarlenInputs& in) { in.cu_seqlens_q.shape[0] = 0; }},
      {"CuLengths", "cu_seqlens_k: length 2 is not 3",
       [](Packed&, VarlenInputs& in) { in.cu_seqlens_k.shape[0] = 2; }},
      {"CuDType", "cu_seqlens_q: dtype F32",
       [](Packed&, VarlenInputs& in) { in.cu_seqlens_q.dtype = DType::kF32; }},
      {"CuFirst", "cu_seqlens_q: value 1 at 0 is not 0",
       [](Packed& p, VarlenInputs&) { p.cu_q[0] = 1; }},
      {"CuMiddleBeyond", "cu_seqlens_k: value 14 at 1 is not within",
       [](Packed& p, VarlenInputs&) { p.cu_k[1] = 14; }},
      {"CuDescends", "cu_seqlens_k: value 4 at 2 is below the one before it, 6",
       [](Packed& p, VarlenInputs&) { p.cu_k[2] = 4; }},
      {"CuBeyond", "cu_seqlens_q: value 9 at 2 is not within [0, 8]",
       [](Packed& p, VarlenInputs&) { p.cu_q[2] = 9; }},
      {"CuNegative", "cu_seqlens_q: value -1 at 1",
       [](Packed& p, VarlenInputs&) { p.cu_q[1] = -1; }},
      {"KLenAboveItsKeys", "k_len: value 7 of sequence 0 is above its 6 keys",
       [](Packed&, VarlenInputs& in) {
         static const int64_t kLens[] = {7, 2};
         in.k_len = ConstTensorView(kLens, DType::kI64, {2});
       }},
      {"OutIsCu", "out: shares memory with cu_seqlens_q",
       [](Packed& p, VarlenInputs& in) {
         in.cu_seqlens_q.data = p.out.data();
         std::fill(p.out.begin(), p.out.end(), std::byte{0});
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(All, VarlenRuleTest, ::testing::ValuesIn(VarlenRules()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace flashlane::testing
