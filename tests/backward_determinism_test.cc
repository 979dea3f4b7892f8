// Gradients have the same bits on repeat, for any number of threads, for a sequence alone or in any
// batch, packed or not.

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/backward.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"
#include "tests/support/specs.h"

namespace flashlane::testing {
namespace {

class BackwardDeterminismTest : public RunTest {};

// Few heads and many, and long enough for several pieces of queries (256 rows and more) and of keys
// (512), of both and of one, so that work is cut in every way.
std::vector<ProblemSpec> Specs() {
  ProblemSpec causal;
  causal.batch = 2;
  causal.num_heads = 3;
  causal.num_kv_heads = 1;
  causal.seqlen_q = 231;
  causal.seqlen_k = 305;
  causal.head_dim = causal.head_dim_v = 16;
  causal.params.causal = true;
  causal.params.q_start = QStart::BottomRight();
  ProblemSpec features = causal;
  features.num_heads = 16;
  features.num_kv_heads = 8;
  features.seqlen_q = 70;
  features.seqlen_k = 150;
  features.params.causal = false;
  features.params.q_start = QStart();
  features.params.window_size_left = 100;
  features.params.softcap = 4.0;
  features.alibi = features.sinks = features.per_sequence_k_len = true;
  features.bias_dims = 12;
  features.layout = Layout::kPadded;
  ProblemSpec pieces = causal;
  pieces.batch = 1;
  pieces.num_heads = 2;
  pieces.seqlen_q = 1100;
  pieces.seqlen_k = 1700;
  pieces.head_dim = pieces.head_dim_v = 8;
  pieces.params.window_size_left = 900;
  pieces.per_sequence_k_len = true;
  ProblemSpec few_queries = pieces;
  few_queries.seqlen_q = 30;
  few_queries.seqlen_k = 3000;
  few_queries.params.window_size_left.reset();
  few_queries.sinks = true;
  few_queries.bias_dims = 0;  // summed over everything
  ProblemSpec few_keys = few_queries;
  few_keys.seqlen_q = 1500;
  few_keys.seqlen_k = 40;
  return {causal, features, pieces, few_queries, few_keys};
}

TEST_P(BackwardDeterminismTest, SameBitsForAnyNumberOfThreads) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, 8);
  const bool scalar = GetParam().target == "scalar";  // slow, and cut in one way only
  for (ProblemSpec spec : Specs()) {
    if (scalar) {
      spec.seqlen_q = 30;
      spec.seqlen_k = std::min<int64_t>(spec.seqlen_k, 305);
    }
    const BackwardProblem problem(spec, GetParam().dtype);
    const BackwardResult one = problem.Run(GetParam().Options(1));
    ASSERT_TRUE(one.status.ok()) << one.status.message();
    for (const int threads : {1, 2, 3, 5}) {
      tbb::task_arena arena(threads);
      for (int repeat = 0; repeat < 2; ++repeat) {
        const BackwardResult result =
            arena.execute([&] { return problem.Run(GetParam().Options(threads)); });
        ASSERT_TRUE(result.status.ok()) << result.status.message();
        ASSERT_EQ(result.bits(), one.bits()) << spec.ToString() << " threads " << threads;
      }
    }
  }
}

TEST_P(BackwardDeterminismTest, SameBitsAloneAndInABatch) {
  for (ProblemSpec spec : Specs()) {
    spec.batch = 3;
    if (GetParam().target == "scalar") {
      spec.seqlen_q = 30;
      spec.seqlen_k = std::min<int64_t>(spec.seqlen_k, 305);
    }
    const unsigned wanted = kDq | kDk | kDv;
    const BackwardProblem batch(spec, GetParam().dtype);
    const BackwardResult together = batch.Run(GetParam().Options(), wanted);
    ASSERT_TRUE(together.status.ok()) << together.status.message();
    for (int64_t b = 0; b < 3; ++b) {
      ProblemSpec one_spec = spec;
      one_spec.batch = 1;
      BackwardProblem alone(one_spec, GetParam().dtype);
      for (OwnedTensor Problem::*member :
           {&Problem::q, &Problem::k, &Problem::v, &Problem::bias, &Problem::k_len}) {
        alone.problem.*member = OneSequence(batch.problem.*member, b);
      }
      alone.problem.alibi_slopes = batch.problem.alibi_slopes;
      alone.problem.sinks = batch.problem.sinks;
      alone.dout = OneSequence(batch.dout, b);
      const BackwardResult result = alone.Run(GetParam().Options(), wanted);
      ASSERT_TRUE(result.status.ok()) << result.status.message();
      EXPECT_EQ(result.dq.Values(), OneSequence(together.dq, b).Values()) << spec.ToString();
      EXPECT_EQ(result.dk.Values(), OneSequence(together.dk, b).Values()) << spec.ToString();
      EXPECT_EQ(result.dv.Values(), OneSequence(together.dv, b).Values()) << spec.ToString();
    }
  }
}

// Rows [begin, begin + count) of a packed [total, heads, width] tensor as [1, heads, count, width].
template <typename View>
View Rows(View view, int64_t begin, int64_t count) {
  const int64_t heads = view.shape[1], width = view.shape[2];
  const int64_t offset = begin * heads * width * static_cast<int64_t>(DTypeSize(view.dtype));
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  return View(static_cast<Byte*>(view.data) + offset, view.dtype, {1, heads, count, width},
              {0, width, heads * width, 1});
}

TEST_P(BackwardDeterminismTest, SameBitsPackedAndAlone) {
  AttentionParams params[3];
  params[1].causal = true;
  params[1].q_start = QStart::BottomRight();
  params[2].window_size_left = 20;
  params[2].softcap = 3.0;
  for (const std::vector<int64_t>& lengths_q : std::vector<std::vector<int64_t>>{
           {0}, {1}, {5, 0, 0, 70, 1}, {200, 2, 0, 17, 64, 65}, {0, 0}, {2, 9, 300}}) {
    std::vector<int64_t> lengths_k = lengths_q;
    for (size_t i = 0; i < lengths_k.size(); ++i) lengths_k[i] += static_cast<int64_t>(i % 3) * 9;
    if (lengths_q.front() == 2) lengths_k = {11, 2200, 20};  // few queries, few keys
    for (const AttentionParams& param : params) {
      for (const int threads : {1, 2}) {
        PackedBackward together(lengths_q, lengths_k, GetParam().dtype);
        PackedBackward alone(lengths_q, lengths_k, GetParam().dtype);
        const ExecOptions options = GetParam().Options(threads);
        const Status status =
            AttentionVarlenBackward(together.Inputs(), param, together.Outputs(), options);
        ASSERT_TRUE(status.ok()) << status.message();
        const VarlenBackwardInputs in = alone.Inputs();
        const BackwardOutputs out = alone.Outputs();
        for (size_t b = 0; b + 1 < alone.cu_q.size(); ++b) {
          const int64_t q = alone.cu_q[b], nq = alone.cu_q[b + 1] - q;
          const int64_t k = alone.cu_k[b], nk = alone.cu_k[b + 1] - k;
          BackwardInputs one;
          one.forward.q = Rows(in.forward.q, q, nq);
          one.forward.k = Rows(in.forward.k, k, nk);
          one.forward.v = Rows(in.forward.v, k, nk);
          one.forward.alibi_slopes = in.forward.alibi_slopes;
          one.forward.sinks = in.forward.sinks;
          one.dout = Rows(in.dout, q, nq);
          BackwardOutputs outputs;
          outputs.dq = Rows(out.dq, q, nq);
          outputs.dk = Rows(out.dk, k, nk);
          outputs.dv = Rows(out.dv, k, nk);
          const Status single = AttentionBackward(one, param, outputs, options);
          ASSERT_TRUE(single.ok()) << single.message();
        }
        EXPECT_EQ(together.dq.storage, alone.dq.storage);
        EXPECT_EQ(together.dk.storage, alone.dk.storage);
        EXPECT_EQ(together.dv.storage, alone.dv.storage);
      }
    }
  }
}

// Kept results of a packed call, and rows past the last sequence, which stay as they are.
TEST_P(BackwardDeterminismTest, PackedWithKeptResultsAndRowsToSpare) {
  PackedBackward packed({9, 4, 30}, {50, 8, 40}, GetParam().dtype);
  packed.cu_q.back() -= 5;
  packed.cu_k.back() -= 7;
  AttentionParams params;
  params.causal = true;
  params.q_start = QStart::BottomRight();
  const ExecOptions options = GetParam().Options();
  OwnedTensor out = packed.dout;
  const DType lse_dtype = GetParam().dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  OwnedTensor lse = Poisoned(lse_dtype, ConstTensorView(nullptr, lse_dtype, {4, 43}));
  AttentionOutputs forward;
  forward.out = Writable(out);
  forward.lse = Writable(lse);
  ASSERT_TRUE(AttentionVarlen(packed.Inputs().forward, params, forward, options).ok());
  VarlenBackwardInputs inputs = packed.Inputs();
  inputs.out = out.View();
  inputs.lse = lse.View();
  const Status status = AttentionVarlenBackward(inputs, params, packed.Outputs(), options);
  ASSERT_TRUE(status.ok()) << status.message();
  PackedBackward again({9, 4, 30}, {50, 8, 40}, GetParam().dtype);
  again.cu_q = packed.cu_q;
  again.cu_k = packed.cu_k;
  ASSERT_TRUE(AttentionVarlenBackward(again.Inputs(), params, again.Outputs(), options).ok());
  const struct {
    const OwnedTensor& kept;
    const OwnedTensor& recomputed;
    int64_t rows, spare;
  } gradients[] = {
      {packed.dq, again.dq, 43, 5}, {packed.dk, again.dk, 98, 7}, {packed.dv, again.dv, 98, 7}};
  for (const auto& [kept, recomputed, rows, spare] : gradients) {
    const std::vector<double> a = kept.Values(), b = recomputed.Values();
    const size_t live = a.size() / static_cast<size_t>(rows) * static_cast<size_t>(rows - spare);
    for (size_t i = 0; i < live; ++i) EXPECT_EQ(a[i], b[i]) << i;
    const size_t bytes = live * DTypeSize(GetParam().dtype);
    for (size_t i = bytes; i < kept.storage.size(); ++i) {
      ASSERT_EQ(kept.storage[i], std::byte{0xA5}) << i;
    }
  }
}

FLASHLANE_INSTANTIATE_RUNS(BackwardDeterminismTest, BackwardRuns());

}  // namespace
}  // namespace flashlane::testing
