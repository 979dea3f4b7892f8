// The masks of the flat modules: their numbers, and that the core's own masks give the same
// attention.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "flashlane/attention.h"
#include "flashlane/flat.h"
#include "tests/support/flat.h"

namespace flashlane::testing {
namespace {

using flat::AttnStatus;

constexpr FlatShape kShape{7, 9, 4, 2, 3};

// The core with a mask of its own, on the operands of `problem`.
FlatResult Native(const FlatProblem& problem, AttentionParams params) {
  const flat::FlatAttention& in = problem.in;
  AttentionInputs inputs;
  inputs.q =
      ConstTensorView::FromBshd(problem.q.data(), DType::kF64, 1, in.n_tok_q, in.h_q, in.head_dim);
  inputs.k =
      ConstTensorView::FromBshd(problem.k.data(), DType::kF64, 1, in.n_tok_k, in.h_kv, in.head_dim);
  inputs.v =
      ConstTensorView::FromBshd(problem.v.data(), DType::kF64, 1, in.n_tok_k, in.h_kv, in.head_dim);
  FlatResult result(problem);
  AttentionOutputs outputs;
  outputs.out =
      TensorView::FromBshd(result.out.data(), DType::kF64, 1, in.n_tok_q, in.h_q, in.head_dim);
  outputs.lse = TensorView(result.lse.data(), DType::kF64, {1, in.h_q, in.n_tok_q});
  params.softmax_scale = in.scale;
  const Status status = Attention(inputs, params, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

// Rows that see no key differ by definition and are left out: native lse is -inf there.
void ExpectSame(const FlatProblem& problem, const FlatResult& biased, const FlatResult& native) {
  std::int64_t rows = 0;
  for (std::int64_t h = 0; h < problem.in.h_q; ++h) {
    for (std::int64_t i = 0; i < problem.in.n_tok_q; ++i) {
      const auto row = static_cast<std::size_t>(h * problem.in.n_tok_q + i);
      if (std::isinf(native.lse[row])) continue;
      ++rows;
      EXPECT_NEAR(biased.lse[row], native.lse[row], 1e-12);
      for (std::int64_t d = 0; d < problem.in.head_dim; ++d) {
        const auto at =
            static_cast<std::size_t>((i * problem.in.h_q + h) * problem.in.head_dim + d);
        EXPECT_NEAR(biased.out[at], native.out[at], 1e-12) << h << " " << i << " " << d;
      }
    }
  }
  EXPECT_GT(rows, 0);
}

// SdpaForwardFlat with a bias that `fill` makes.
template <class Fill>
FlatResult Biased(FlatProblem* problem, const Fill& fill) {
  problem->bias.assign(static_cast<std::size_t>(problem->in.n_tok_q * problem->in.n_tok_k),
                       kUntouched);
  EXPECT_EQ(fill(flat::Buffer(problem->bias)), AttnStatus::kOk);
  problem->Attach();
  FlatResult result(*problem);
  EXPECT_EQ(flat::SdpaForwardFlat(problem->in, result.Outputs()), AttnStatus::kOk);
  return result;
}

TEST(FlatMask, CausalIsTheCoresForEveryOffset) {
  for (const std::int64_t offset : {-20, -3, 0, 2, 5, 100}) {
    SCOPED_TRACE(offset);
    FlatProblem problem(kShape);
    const FlatResult biased = Biased(&problem, [&](const flat::Buffer& to) {
      return flat::MaskCausalFlat(kShape.n_tok_q, kShape.n_tok_k, offset, to);
    });
    AttentionParams params;
    ASSERT_EQ(flat::MaskCausalNative(offset, &params), AttnStatus::kOk);
    const FlatResult native = Native(problem, params);
    if (offset != -20) ExpectSame(problem, biased, native);
    // The parameter `causal` is the mask with offset 0.
    if (offset != 0) continue;
    FlatProblem causal(kShape);
    causal.in.causal = true;
    FlatResult of_causal(causal);
    ASSERT_EQ(flat::SdpaForwardFlat(causal.in, of_causal.Outputs()), AttnStatus::kOk);
    ExpectSame(problem, of_causal, native);
  }
}

TEST(FlatMask, SlidingWindowIsTheCores) {
  for (const std::int64_t window : {1, 2, 4, 1000}) {
    for (const std::int64_t offset : {-2, 0, 3}) {
      FlatProblem problem(kShape);
      const FlatResult biased = Biased(&problem, [&](const flat::Buffer& to) {
        return flat::MaskSlidingWindowFlat(kShape.n_tok_q, kShape.n_tok_k, window, offset, to);
      });
      AttentionParams params;
      ASSERT_EQ(flat::MaskSlidingWindowNative(window, offset, &params), AttnStatus::kOk);
      ExpectSame(problem, biased, Native(problem, params));
    }
  }
}

TEST(FlatMask, SlidingWindowHasAsManyKeysAsItSays) {
  std::vector<double> bias(16);
  ASSERT_EQ(flat::MaskSlidingWindowFlat(4, 4, 2, 0, flat::Buffer(bias)), AttnStatus::kOk);
  const double x = flat::kMaskedBias;
  EXPECT_EQ(bias, (std::vector<double>{0, x, x, x, 0, 0, x, x, x, 0, 0, x, x, x, 0, 0}));
  const std::int64_t most = std::int64_t{1} << 61;
  for (const std::int64_t window : {std::int64_t{1}, INT64_MAX}) {
    EXPECT_EQ(flat::MaskSlidingWindowFlat(4, 4, window, most, flat::Buffer(bias)), AttnStatus::kOk);
    EXPECT_EQ(bias[0], window == 1 ? x : 0.0);
    EXPECT_EQ(flat::MaskSlidingWindowFlat(4, 4, window, -most, flat::Buffer(bias)),
              AttnStatus::kOk);
    EXPECT_EQ(bias[15], x);
  }
}

TEST(FlatMask, PaddingIsTheCoresKLen) {
  for (const std::int64_t n_valid : {1, 4, 9}) {
    FlatProblem problem(kShape);
    const FlatResult biased = Biased(&problem, [&](const flat::Buffer& to) {
      return flat::MaskPaddingFlat(kShape.n_tok_q, kShape.n_tok_k, n_valid, to);
    });
    AttentionParams params;
    ASSERT_EQ(flat::MaskPaddingNative(n_valid, &params), AttnStatus::kOk);
    ExpectSame(problem, biased, Native(problem, params));
  }
}

TEST(FlatMask, BlockDiagonalIsTheCoresPackedBatch) {
  const std::vector<std::int64_t> lengths = {3, 0, 1, 5};
  FlatProblem problem({9, 9, 4, 2, 3});
  const FlatResult biased = Biased(&problem, [&](const flat::Buffer& to) {
    return flat::MaskBlockDiagonalFlat(flat::ConstIndices(lengths), to);
  });
  std::vector<std::int64_t> cu_seqlens(5);
  ASSERT_EQ(flat::MaskBlockDiagonalNative(flat::ConstIndices(lengths), cu_seqlens),
            AttnStatus::kOk);
  EXPECT_EQ(cu_seqlens, (std::vector<std::int64_t>{0, 3, 3, 4, 9}));
  VarlenInputs inputs;
  inputs.q = ConstTensorView(problem.q.data(), DType::kF64, {9, 4, 3});
  inputs.k = ConstTensorView(problem.k.data(), DType::kF64, {9, 2, 3});
  inputs.v = ConstTensorView(problem.v.data(), DType::kF64, {9, 2, 3});
  inputs.cu_seqlens_q = ConstTensorView(cu_seqlens.data(), DType::kI64, {5});
  inputs.cu_seqlens_k = inputs.cu_seqlens_q;
  FlatResult native(problem);
  AttentionOutputs outputs;
  outputs.out = TensorView(native.out.data(), DType::kF64, {9, 4, 3});
  outputs.lse = TensorView(native.lse.data(), DType::kF64, {4, 9});
  AttentionParams params;
  params.softmax_scale = problem.in.scale;
  const Status status = AttentionVarlen(inputs, params, outputs);
  ASSERT_TRUE(status.ok()) << status.message();
  ExpectSame(problem, biased, native);
}

}  // namespace
}  // namespace flashlane::testing
