// Gradients whose operands and results lie apart in memory: the same numbers, nothing between them
// read or written; and sinks of packed sequences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "dispatch/view.h"
#include "tests/support/backward.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

// function(offset of every element in bytes)
template <class Function>
void ForElements(const ConstTensorView& view, const Function& function) {
  const auto size = static_cast<int64_t>(DTypeSize(view.dtype));
  int64_t index[kMaxRank] = {};
  for (int64_t count = NumElements(view); count > 0; --count) {
    int64_t offset = 0;
    for (int d = 0; d < view.rank; ++d) offset += index[d] * view.strides[d];
    function(static_cast<size_t>(offset * size));
    for (int d = view.rank - 1; d >= 0 && ++index[d] == view.shape[d]; --d) index[d] = 0;
  }
}

// The same elements with NaN (every byte 0xFF) wherever none lies.
OwnedTensor WithNanBetween(OwnedTensor tensor) {
  const std::vector<std::byte> from = tensor.storage;
  const size_t size = DTypeSize(tensor.view.dtype);
  std::fill(tensor.storage.begin(), tensor.storage.end(), std::byte{0xFF});
  ForElements(tensor.view,
              [&](size_t at) { std::memcpy(tensor.storage.data() + at, from.data() + at, size); });
  return tensor;
}

void ExpectUntouchedBetween(const OwnedTensor& tensor) {
  std::vector<std::byte> rest = tensor.storage;
  const size_t size = DTypeSize(tensor.view.dtype);
  ForElements(tensor.view, [&](size_t at) {
    std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(at), size, std::byte{0xA5});
  });
  for (size_t i = 0; i < rest.size(); ++i) ASSERT_EQ(rest[i], std::byte{0xA5}) << i;
}

OwnedTensor PoisonedApart(const OwnedTensor& like, std::initializer_list<int64_t> strides) {
  const ConstTensorView& v = like.view;
  ConstTensorView view(nullptr, v.dtype, v.rank, v.shape, strides.begin());
  return Poisoned(v.dtype, view);
}

class BackwardLayoutTest : public RunTest {
 protected:
  static constexpr int64_t kBatch = 2, kHeads = 4, kQueries = 37, kKeys = 70;

  static ProblemSpec Spec(Layout layout) {
    ProblemSpec spec;
    spec.batch = kBatch;
    spec.num_heads = kHeads;
    spec.num_kv_heads = 2;
    spec.seqlen_q = kQueries;
    spec.seqlen_k = kKeys;
    spec.head_dim = 9;
    spec.head_dim_v = 12;
    spec.alibi = spec.sinks = true;
    spec.bias_dims = 15;
    spec.params.causal = true;
    spec.params.q_start = QStart::BottomRight();
    spec.layout = layout;
    return spec;
  }
};

TEST_P(BackwardLayoutTest, NothingBetweenElementsIsReadOrWritten) {
  const BackwardProblem dense(Spec(Layout::kPadded), GetParam().dtype);
  BackwardProblem apart(Spec(Layout::kPadded), GetParam().dtype);
  constexpr int64_t kRow = kKeys + 3, kHead = kQueries * kRow + 1;
  apart.problem.bias = apart.problem.bias.WithStrides({kHeads * kHead, kHead, kRow, 1});
  apart.problem.sinks = apart.problem.sinks.WithStrides({3});
  apart.problem.alibi_slopes = apart.problem.alibi_slopes.WithStrides({2});
  for (OwnedTensor* tensor :
       {&apart.problem.q, &apart.problem.k, &apart.problem.v, &apart.problem.bias,
        &apart.problem.sinks, &apart.problem.alibi_slopes, &apart.dout}) {
    *tensor = WithNanBetween(*tensor);
  }
  const ExecOptions options = GetParam().Options();
  const Result kept = dense.problem.Run(options);
  ASSERT_TRUE(kept.status.ok()) << kept.status.message();
  const OwnedTensor lse = WithNanBetween(
      kept.lse_tensor.WithStrides({kHeads * (2 * kQueries + 5), 2 * kQueries + 5, 2}));
  for (const bool keep : {false, true}) {
    SCOPED_TRACE(keep);
    const BackwardResult wanted = dense.Run(options);
    ASSERT_TRUE(wanted.status.ok()) << wanted.status.message();
    BackwardResult got = MakeBackwardResult(apart.problem, kAllGradients);
    got.dbias = PoisonedApart(wanted.dbias, {kHeads * kHead, kHead, kRow, 1});
    got.dsinks = PoisonedApart(wanted.dsinks, {5});
    BackwardInputs inputs = apart.Inputs();
    if (keep) {
      inputs.out = kept.out_tensor.View();
      inputs.lse = lse.View();
    }
    const Status status = AttentionBackward(inputs, apart.spec().params, got.Outputs(), options);
    ASSERT_TRUE(status.ok()) << status.message();
    const OwnedTensor* pairs[][2] = {{&wanted.dq, &got.dq},
                                     {&wanted.dk, &got.dk},
                                     {&wanted.dv, &got.dv},
                                     {&wanted.dbias, &got.dbias},
                                     {&wanted.dsinks, &got.dsinks}};
    for (const auto& [a, b] : pairs) {
      EXPECT_EQ(a->Values(), b->Values());
      ExpectUntouchedBetween(*b);
    }
  }
}

// dsinks of a packed call is the sum of those of its sequences alone.
TEST_P(BackwardLayoutTest, SinksOfPackedSequences) {
  const std::vector<int64_t> lengths_q = {5, 0, 70, 1}, lengths_k = {14, 3, 70, 0};
  PackedBackward together(lengths_q, lengths_k, GetParam().dtype);
  AttentionParams params;
  params.window_size_left = 40;
  const ExecOptions options = GetParam().Options();
  ASSERT_TRUE(AttentionVarlenBackward(together.Inputs(), params, together.Outputs(), options).ok());
  const std::vector<double> got = together.dsinks.Values();
  std::vector<double> wanted(got.size()), sizes(got.size());
  for (size_t b = 0; b < lengths_q.size(); ++b) {
    PackedBackward one(lengths_q, lengths_k, GetParam().dtype);
    BackwardInputs inputs;
    const auto rows = [&](const OwnedTensor& tensor, int64_t begin, int64_t count) {
      ConstTensorView view = tensor.View();
      const int64_t heads = view.shape[1], width = view.shape[2];
      const auto* data = static_cast<const std::byte*>(view.data) +
                         static_cast<size_t>(begin * heads * width) * DTypeSize(view.dtype);
      return ConstTensorView(data, view.dtype, {1, heads, count, width},
                             {0, width, heads * width, 1});
    };
    inputs.forward.q = rows(one.q, one.cu_q[b], lengths_q[b]);
    inputs.forward.k = rows(one.k, one.cu_k[b], lengths_k[b]);
    inputs.forward.v = rows(one.v, one.cu_k[b], lengths_k[b]);
    inputs.dout = rows(one.dout, one.cu_q[b], lengths_q[b]);
    inputs.forward.alibi_slopes = one.slopes.View();
    inputs.forward.sinks = one.sinks.View();
    BackwardOutputs outputs;
    outputs.dsinks = one.Outputs().dsinks;
    const Status status = AttentionBackward(inputs, params, outputs, options);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<double> part = one.dsinks.Values();
    for (size_t h = 0; h < got.size(); ++h) {
      wanted[h] += part[h];
      sizes[h] += std::fabs(part[h]);
    }
  }
  for (size_t h = 0; h < got.size(); ++h) {
    EXPECT_NE(got[h], 0) << h;
    EXPECT_NEAR(got[h], wanted[h], 1e-5 * sizes[h]) << h;
  }
}

FLASHLANE_INSTANTIATE_RUNS(BackwardLayoutTest, BackwardRuns());

}  // namespace
}  // namespace flashlane::testing
