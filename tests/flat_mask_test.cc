// attnk.mask: every mask element by element, and each as a bias against the kernels' own.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "flashlane/attention.h"
#include "flashlane/flat.h"
#include "tests/support/flat.h"
#include "tests/support/numbers.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

const struct {
  int64_t n_tok_q, n_tok_k;
} kSizes[] = {{1, 1}, {3, 3}, {5, 9}, {9, 5}, {16, 70}, {0, 4}, {4, 0}};
const int64_t kOffsets[] = {0, 1, 4, -1, -4, 100, -100, int64_t{1} << 61, -(int64_t{1} << 61)};

std::vector<double> MaskOf(int64_t n_tok_q, int64_t n_tok_k,
                           const std::function<bool(int64_t, int64_t)>& sees) {
  std::vector<double> mask;
  for (int64_t i = 0; i < n_tok_q; ++i) {
    for (int64_t j = 0; j < n_tok_k; ++j) mask.push_back(sees(i, j) ? 0.0 : -1e9);
  }
  return mask;
}

std::vector<double> Buffer(int64_t n_tok_q, int64_t n_tok_k) {
  return std::vector<double>(static_cast<size_t>(n_tok_q * n_tok_k), -77.0);
}

TEST(FlatMaskTest, Causal) {
  for (const auto& size : kSizes) {
    for (const int64_t offset : kOffsets) {
      std::vector<double> mask = Buffer(size.n_tok_q, size.n_tok_k);
      EXPECT_EQ(mask_causal_flat(size.n_tok_q, size.n_tok_k, offset, mask), ATTN_OK);
      EXPECT_EQ(mask, MaskOf(size.n_tok_q, size.n_tok_k,
                             [&](int64_t i, int64_t j) { return j <= i + offset; }))
          << offset;
    }
  }
}

TEST(FlatMaskTest, AnyNumberOfQueriesWithoutAKey) {
  const int64_t many = INT64_MAX;
  const int64_t cu_q[] = {0, many}, cu_k[] = {0, 0};
  EXPECT_EQ(mask_causal_flat(many, 0, 0, {}), ATTN_OK);
  EXPECT_EQ(mask_sliding_window_flat(many, 0, {2, 3, 0}, {}), ATTN_OK);
  EXPECT_EQ(mask_padding_flat(many, 0, 0, {}), ATTN_OK);
  EXPECT_EQ(mask_block_diagonal_flat(many, 0, {{cu_q, 2}, {cu_k, 2}}, {}), ATTN_OK);
}

TEST(FlatMaskTest, SlidingWindow) {
  const std::optional<int64_t> sizes[] = {std::nullopt, 0, 1, 3, 1000, INT64_MAX};
  for (const auto& size : kSizes) {
    for (const int64_t offset : {0, 3, -2}) {
      for (const auto& left : sizes) {
        for (const auto& right : sizes) {
          std::vector<double> mask = Buffer(size.n_tok_q, size.n_tok_k);
          EXPECT_EQ(
              mask_sliding_window_flat(size.n_tok_q, size.n_tok_k, {left, right, offset}, mask),
              ATTN_OK);
          EXPECT_EQ(mask, MaskOf(size.n_tok_q, size.n_tok_k, [&](int64_t i, int64_t j) {
                      const int64_t ahead = j - (i + offset);
                      return (!left || -ahead <= *left) && (!right || ahead <= *right);
                    }));
        }
      }
    }
  }
}

TEST(FlatMaskTest, Padding) {
  for (const auto& size : kSizes) {
    for (int64_t k_len = 0; k_len <= size.n_tok_k; ++k_len) {
      std::vector<double> mask = Buffer(size.n_tok_q, size.n_tok_k);
      EXPECT_EQ(mask_padding_flat(size.n_tok_q, size.n_tok_k, k_len, mask), ATTN_OK);
      EXPECT_EQ(mask,
                MaskOf(size.n_tok_q, size.n_tok_k, [&](int64_t, int64_t j) { return j < k_len; }));
    }
  }
}

TEST(FlatMaskTest, BlockDiagonal) {
  const std::vector<int64_t> cu_q = {0, 2, 2, 5}, cu_k = {0, 3, 4, 6};
  std::vector<double> mask = Buffer(5, 6);
  EXPECT_EQ(mask_block_diagonal_flat(5, 6, {cu_q, cu_k}, mask), ATTN_OK);
  const auto sequence_q = [](int64_t i) { return i < 2 ? 0 : 2; };
  const auto sequence_k = [](int64_t j) { return j < 3 ? 0 : j < 4 ? 1 : 2; };
  EXPECT_EQ(mask,
            MaskOf(5, 6, [&](int64_t i, int64_t j) { return sequence_q(i) == sequence_k(j); }));
  const std::vector<int64_t> none = {0};
  EXPECT_EQ(mask_block_diagonal_flat(0, 0, {none, none}, {}), ATTN_OK);
}

TEST(FlatMaskTest, BlockDiagonalRefusesWhatDoesNotRiseToTheTokens) {
  const std::vector<int64_t> good = {0, 2, 5};
  const std::vector<int64_t> bad[] = {{0, 2, 4},  {0, 2, 6}, {1, 2, 5}, {0, 6, 5},
                                      {0, -1, 5}, {5},       {0},       {0, 1, 2, 5}};
  std::vector<double> mask = Buffer(5, 5);
  const FlatProblem problem({5, 5, 1, 1, 2});
  VarlenInputs views;
  for (const std::vector<int64_t>& cu_seqlens : bad) {
    for (const bool of_queries : {true, false}) {
      const FlatSequences sequences =
          of_queries ? FlatSequences{cu_seqlens, good} : FlatSequences{good, cu_seqlens};
      EXPECT_EQ(mask_block_diagonal_flat(5, 5, sequences, mask), ATTN_BAD_LENGTH);
      EXPECT_EQ(mask_block_diagonal_native(problem.Inputs(), problem.dims, sequences, &views),
                ATTN_BAD_LENGTH);
    }
  }
  EXPECT_EQ(mask, Buffer(5, 5));
  EXPECT_FALSE(views.q.present());
}

// Attention under `mask` as a bias, by the reference and by tiles, against the core's under params.
// Rows that see no key differ by design: uniform there, 0 here.
void ExpectSame(const FlatProblem& problem, const std::vector<double>& mask,
                const FlatResult& native) {
  const FlatDims& dims = problem.dims;
  FlatInputs inputs = problem.Inputs();
  inputs.bias = mask;
  for (const bool flash : {false, true}) {
    FlatResult biased(dims);
    const AttnStatus status =
        flash ? flash_forward_flat(inputs, dims, {0.5, false}, 4, biased.Outputs())
              : sdpa_forward_flat(inputs, dims, {0.5, false}, biased.Outputs());
    ASSERT_EQ(status, ATTN_OK);
    for (int64_t h = 0; h < dims.h_q; ++h) {
      for (int64_t i = 0; i < dims.n_tok_q; ++i) {
        const auto row = static_cast<size_t>(h * dims.n_tok_q + i);
        const bool sees_any = native.lse[row] != -kInf;
        if (sees_any) {
          EXPECT_NEAR(biased.lse[row], native.lse[row], 1e-13);
        } else {
          EXPECT_LT(biased.lse[row], -0.9e9);
        }
        for (int64_t d = 0; d < dims.head_dim; ++d) {
          const auto e = static_cast<size_t>((i * dims.h_q + h) * dims.head_dim + d);
          if (sees_any) {
            EXPECT_NEAR(biased.out[e], native.out[e], 1e-13);
          } else {
            EXPECT_EQ(native.out[e], 0.0);
          }
        }
      }
    }
  }
}

FlatResult RunNative(const FlatProblem& problem, AttentionParams params) {
  FlatResult result(problem.dims);
  AttentionInputs inputs;
  AttentionOutputs outputs;
  EXPECT_EQ(attention_views_flat(problem.Inputs(), problem.dims, &inputs), ATTN_OK);
  EXPECT_EQ(attention_views_flat(result.Outputs(), problem.dims, &outputs), ATTN_OK);
  params.softmax_scale = 0.5;
  const Status status = Attention(inputs, params, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

TEST(FlatMaskTest, NativeCausalAgrees) {
  for (const auto& size : kSizes) {
    const FlatProblem problem({size.n_tok_q, size.n_tok_k, 4, 2, 8});
    for (const int64_t offset : kOffsets) {
      std::vector<double> mask = Buffer(size.n_tok_q, size.n_tok_k);
      AttentionParams params;
      ASSERT_EQ(mask_causal_flat(size.n_tok_q, size.n_tok_k, offset, mask), ATTN_OK);
      ASSERT_EQ(mask_causal_native(offset, &params), ATTN_OK);
      ExpectSame(problem, mask, RunNative(problem, params));
    }
  }
}

TEST(FlatMaskTest, NativeSlidingWindowAgrees) {
  const std::optional<int64_t> sizes[] = {std::nullopt, 0, 2, 1000};
  for (const auto& size : kSizes) {
    const FlatProblem problem({size.n_tok_q, size.n_tok_k, 4, 2, 8});
    for (const int64_t offset : {0, 3, -2}) {
      for (const auto& left : sizes) {
        for (const auto& right : sizes) {
          const FlatWindow window = {left, right, offset};
          std::vector<double> mask = Buffer(size.n_tok_q, size.n_tok_k);
          AttentionParams params;
          ASSERT_EQ(mask_sliding_window_flat(size.n_tok_q, size.n_tok_k, window, mask), ATTN_OK);
          ASSERT_EQ(mask_sliding_window_native(window, &params), ATTN_OK);
          ExpectSame(problem, mask, RunNative(problem, params));
        }
      }
    }
  }
}

TEST(FlatMaskTest, NativePaddingAgrees) {
  for (const auto& size : kSizes) {
    const FlatProblem problem({size.n_tok_q, size.n_tok_k, 4, 2, 8});
    for (int64_t k_len = 0; k_len <= size.n_tok_k; k_len += 3) {
      std::vector<double> mask = Buffer(size.n_tok_q, size.n_tok_k);
      AttentionParams params;
      ASSERT_EQ(mask_padding_flat(size.n_tok_q, size.n_tok_k, k_len, mask), ATTN_OK);
      ASSERT_EQ(mask_padding_native(size.n_tok_k, k_len, &params), ATTN_OK);
      ExpectSame(problem, mask, RunNative(problem, params));
    }
  }
}

// As AttentionVarlen; with causal besides, which the bias says by a second mask added to the first.
TEST(FlatMaskTest, NativeBlockDiagonalAgrees) {
  const FlatProblem problem({9, 9, 4, 2, 8});
  const std::vector<int64_t> cu_seqlens = {0, 4, 4, 5, 9};
  for (const bool causal : {false, true}) {
    std::vector<double> mask = Buffer(9, 9), order = Buffer(9, 9);
    ASSERT_EQ(mask_block_diagonal_flat(9, 9, {cu_seqlens, cu_seqlens}, mask), ATTN_OK);
    ASSERT_EQ(mask_causal_flat(9, 9, 0, order), ATTN_OK);
    for (size_t e = 0; e < mask.size() && causal; ++e) mask[e] += order[e];

    VarlenInputs inputs;
    ASSERT_EQ(mask_block_diagonal_native(problem.Inputs(), problem.dims, {cu_seqlens, cu_seqlens},
                                         &inputs),
              ATTN_OK);
    FlatResult native(problem.dims);
    AttentionOutputs outputs;
    outputs.out = TensorView(native.out.data(), DType::kF64, {9, 4, 8});
    outputs.lse = TensorView(native.lse.data(), DType::kF64, {4, 9});
    AttentionParams params;
    params.softmax_scale = 0.5;
    params.causal = causal;
    const Status status = AttentionVarlen(inputs, params, outputs);
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectSame(problem, mask, native);
  }
}

TEST(FlatMaskTest, NativeRefusals) {
  FlatProblem biased({2, 2, 1, 1, 1});
  biased.AddBias(1);
  VarlenInputs views;
  const std::vector<int64_t> cu_seqlens = {0, 2};
  EXPECT_EQ(
      mask_block_diagonal_native(biased.Inputs(), biased.dims, {cu_seqlens, cu_seqlens}, &views),
      ATTN_UNSUPPORTED);
  biased.bias.clear();
  EXPECT_EQ(
      mask_block_diagonal_native(biased.Inputs(), biased.dims, {cu_seqlens, cu_seqlens}, nullptr),
      ATTN_NULL_BUFFER);
  AttentionParams params;
  EXPECT_EQ(mask_causal_native((int64_t{1} << 61) + 1, &params), ATTN_BAD_OFFSET);
  EXPECT_EQ(mask_causal_native(0, nullptr), ATTN_NULL_BUFFER);
  EXPECT_EQ(mask_sliding_window_native({-1, 0, 0}, &params), ATTN_BAD_WINDOW);
  EXPECT_EQ(mask_sliding_window_native({0, -1, 0}, &params), ATTN_BAD_WINDOW);
  EXPECT_EQ(mask_sliding_window_native({0, 0, INT64_MIN}, &params), ATTN_BAD_OFFSET);
  EXPECT_EQ(mask_sliding_window_native({}, nullptr), ATTN_NULL_BUFFER);
  EXPECT_EQ(mask_padding_native(4, 5, &params), ATTN_BAD_LENGTH);
  EXPECT_EQ(mask_padding_native(4, -1, &params), ATTN_BAD_LENGTH);
  EXPECT_EQ(mask_padding_native(-1, 0, &params), ATTN_BAD_N_TOK_K);
  EXPECT_EQ(mask_padding_native(4, 4, nullptr), ATTN_NULL_BUFFER);
  EXPECT_FALSE(params.causal || params.window_size_left || params.k_len);
  EXPECT_EQ(params.q_start.value, 0);
}

}  // namespace
}  // namespace flashlane::testing
