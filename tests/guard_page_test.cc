// No byte outside any view is read or written: each buffer ends where an unreadable page begins, or
// begins where one ends.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/memory.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

using Flush = GuardedBuffer::Flush;

class GuardPageTest : public RunTest {
 protected:
  // Runs the problem from and into guarded memory; the result must equal that of ordinary memory.
  static void Check(const Problem& problem, Flush flush, const ExecOptions& options) {
    AttentionInputs inputs = problem.Inputs();
    std::vector<std::unique_ptr<GuardedBuffer>> buffers;
    const auto guard = [&](ConstTensorView* view, const OwnedTensor& tensor) {
      if (!view->present()) return;
      buffers.push_back(std::make_unique<GuardedBuffer>(tensor.storage.size(), flush));
      std::memcpy(buffers.back()->data(), tensor.storage.data(), tensor.storage.size());
      view->data = buffers.back()->data();
    };
    guard(&inputs.q, problem.q);
    guard(&inputs.k, problem.k);
    guard(&inputs.v, problem.v);
    guard(&inputs.alibi_slopes, problem.alibi_slopes);
    guard(&inputs.bias, problem.bias);
    guard(&inputs.mask, problem.mask);
    guard(&inputs.sinks, problem.sinks);
    guard(&inputs.k_len, problem.k_len);
    guard(&inputs.q_start, problem.q_start);
    const ProblemSpec& spec = problem.spec();
    const size_t rows = static_cast<size_t>(spec.batch * spec.num_heads * spec.seqlen_q);
    const DType lse_dtype = problem.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
    GuardedBuffer out(rows * spec.head_dim_v * DTypeSize(problem.dtype()), flush);
    GuardedBuffer lse(rows * DTypeSize(lse_dtype), flush);
    AttentionOutputs outputs;
    outputs.out = TensorView(out.data(), problem.dtype(),
                             {spec.batch, spec.num_heads, spec.seqlen_q, spec.head_dim_v});
    outputs.lse = TensorView(lse.data(), lse_dtype, {spec.batch, spec.num_heads, spec.seqlen_q});
    const Status status = Attention(inputs, spec.params, outputs, options);
    ASSERT_TRUE(status.ok()) << status.message();
    const Result expected = problem.Run(options);
    const size_t out_bytes = rows * spec.head_dim_v * DTypeSize(problem.dtype());
    EXPECT_EQ(0, std::memcmp(expected.bits.data(), out.data(), out_bytes)) << spec.ToString();
    EXPECT_EQ(
        0, std::memcmp(expected.bits.data() + out_bytes, lse.data(), rows * DTypeSize(lse_dtype)))
        << spec.ToString();
  }
};

TEST_P(GuardPageTest, NothingOutsideTheViewsIsTouched) {
  for (const int64_t head_dim : {1, 5, 16, 33}) {
    for (const int64_t seqlen_k : {1, 7, 193}) {
      for (const Flush flush : {Flush::kBegin, Flush::kEnd}) {
        ProblemSpec spec;
        spec.num_heads = 3;
        spec.seqlen_q = 19;
        spec.seqlen_k = seqlen_k;
        spec.head_dim = head_dim;
        spec.head_dim_v = head_dim + 1;
        Check(Problem(spec, GetParam().dtype), flush, GetParam().Options());
        spec.batch = 2;
        spec.alibi = spec.sinks = spec.per_sequence_k_len = spec.per_sequence_q_start = true;
        spec.bias_dims = 15;
        spec.mask_dims = 13;
        spec.params.window_size_left = 5;
        Check(Problem(spec, GetParam().dtype), flush, GetParam().Options());
      }
    }
  }
}

// Bias and mask whose last row ends at the page, in rows further apart than they are long; fewer
// keys than a vector has lanes, a whole number of vectors, and a part of one at either end.
TEST_P(GuardPageTest, BiasAndMaskEndWithTheirLastRow) {
  for (const int64_t num_heads : {1, 3}) {
    for (const int64_t seqlen_k : {3, 16, 39, 205}) {
      for (const int bias_dims : {12, 14}) {
        for (const Flush flush : {Flush::kBegin, Flush::kEnd}) {
          ProblemSpec spec;
          spec.num_heads = num_heads;
          spec.seqlen_q = 23;
          spec.seqlen_k = seqlen_k;
          spec.head_dim = spec.head_dim_v = 4;
          spec.bias_dims = bias_dims;
          spec.mask_dims = 12;
          Problem problem(spec, GetParam().dtype);
          Check(problem, flush, GetParam().Options());
          const int64_t row = seqlen_k + 5;
          problem.bias = problem.bias.WithStrides({0, 23 * row, row, 1});
          problem.mask = problem.mask.WithStrides({0, 0, row, 1});
          Check(problem, flush, GetParam().Options());
        }
      }
    }
  }
}

// Keys at or past k_len are never read: here there is no memory behind them.
TEST_P(GuardPageTest, KeysPastKLenAreNeverRead) {
  ProblemSpec spec;
  spec.num_heads = 2;
  spec.seqlen_q = 17;
  spec.head_dim = 9;
  spec.head_dim_v = 10;
  for (const int64_t k_len : {0, 1, 45, 192}) {
    spec.seqlen_k = k_len;
    const Problem live(spec, GetParam().dtype);
    const Result expected = live.Run(GetParam().Options());
    const size_t size = DTypeSize(GetParam().dtype);
    GuardedBuffer k(static_cast<size_t>(k_len) * 9 * size, Flush::kEnd);
    GuardedBuffer v(static_cast<size_t>(k_len) * 10 * size, Flush::kEnd);
    if (k_len > 0) {
      std::memcpy(k.data(), live.k.storage.data(), static_cast<size_t>(k_len) * 9 * size);
      std::memcpy(v.data(), live.v.storage.data(), static_cast<size_t>(k_len) * 10 * size);
    }
    AttentionInputs inputs = live.Inputs();
    inputs.k = ConstTensorView(k.data(), GetParam().dtype, {1, 1, 1000, 9});
    inputs.v = ConstTensorView(v.data(), GetParam().dtype, {1, 1, 1000, 10});
    AttentionParams params;
    params.k_len = k_len;
    std::vector<std::byte> out(2 * 17 * 10 * size);
    AttentionOutputs outputs;
    outputs.out = TensorView(out.data(), GetParam().dtype, {1, 2, 17, 10});
    const Status status = Attention(inputs, params, outputs, GetParam().Options());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(0, std::memcmp(expected.bits.data(), out.data(), out.size())) << "k_len " << k_len;
  }
}

FLASHLANE_INSTANTIATE_RUNS(GuardPageTest, AllRuns());

}  // namespace
}  // namespace flashlane::testing
