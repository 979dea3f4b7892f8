// What a server does: append a token, then attend; and long contexts whose keys are split, in mixed
// batches, on any number of threads.

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "flashlane/kv_cache.h"
#include "flashlane/paged.h"
#include "tests/support/compare.h"
#include "tests/support/paged.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

class PagedServingTest : public RunTest {};

// Decode, a drafted tail, a prefill chunk and an empty sequence in one call; two contexts are long
// enough for several splits, and one of those for splits of more than the least size.
PagedSpec Mixed() {
  PagedSpec spec;
  spec.packed = true;
  spec.context_lens = {1700, 3, 0, 26000, 900};
  spec.seqlens_q = {1, 1, 0, 2, 40};
  spec.num_heads = 6;
  spec.num_kv_heads = 2;
  spec.head_dim = 20;
  spec.head_dim_v = 9;
  spec.block_size = 24;
  spec.sinks = true;
  return spec;
}

TEST_P(PagedServingTest, LongMixedBatchesAreRight) {
  if (GetParam().kernel == Kernel::kNaive) GTEST_SKIP() << "the truth itself";
  for (const int64_t window : {-1, 1000}) {
    PagedSpec spec = Mixed();
    if (window >= 0) spec.params.window_size_left = window;
    const PagedProblem problem(spec, GetParam().dtype);
    const PagedProblem::Outputs paged = problem.Run(GetParam().Options());
    ASSERT_TRUE(paged.status.ok()) << paged.status.message();
    for (int64_t b = 0; b < spec.batch(); ++b) {
      const int64_t rows = spec.seqlens_q[b];
      if (rows == 0) continue;
      const PagedProblem::Outputs alone = problem.RunContiguous(b, GetParam().Options());
      ASSERT_TRUE(alone.status.ok()) << alone.status.message();
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t h = 0; h < spec.num_heads; ++h) {
          ASSERT_EQ(problem.RowBits(paged, b, h, i), PagedProblem::ContiguousRowBits(alone, h, i))
              << "sequence " << b << ", head " << h << ", query " << i;
        }
      }
    }
  }
}

TEST_P(PagedServingTest, SplitKeysAreWithinTheTolerance) {
  PagedSpec spec;
  spec.head_dim = 24;
  spec.head_dim_v = 17;
  for (const int64_t seqlen_q : {1, 5, 12}) {
    spec.context_lens = {2500, 769, 768};
    spec.seqlens_q = {seqlen_q, seqlen_q, seqlen_q};
    spec.params.softcap = 5.0;
    spec.sinks = spec.alibi = seqlen_q != 5;
    const PagedProblem problem(spec, GetParam().dtype);
    EXPECT_TRUE(AgreesWithTruth(problem, GetParam().Options())) << spec.ToString();
  }
}

TEST_P(PagedServingTest, SameBitsForAnyNumberOfThreads) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, 8);
  const PagedProblem problem(Mixed(), GetParam().dtype);
  const PagedProblem::Outputs one = problem.Run(GetParam().Options(1));
  ASSERT_TRUE(one.status.ok()) << one.status.message();
  for (const int threads : {2, 3, 8}) {
    tbb::task_arena arena(threads);
    const PagedProblem::Outputs many =
        arena.execute([&] { return problem.Run(GetParam().Options(threads)); });
    ASSERT_TRUE(many.status.ok()) << many.status.message();
    ASSERT_EQ(many.out.storage, one.out.storage) << threads;
    ASSERT_EQ(many.lse.storage, one.lse.storage) << threads;
  }
}

// A token written at the last slot of the last block is seen by the call after it.
TEST_P(PagedServingTest, AppendThenAttendSeesTheToken) {
  PagedSpec spec;
  spec.context_lens = {64};
  spec.block_size = 16;
  PagedProblem problem(spec, GetParam().dtype);
  const DType dtype = GetParam().dtype;
  const auto block = problem.BlockOf(0, 63);
  const std::vector<double> key(static_cast<size_t>(2 * 12), 0.25), value(key.size(), 1000.0);
  const OwnedTensor k = OwnedTensor::Of(key, dtype, {1, 2, 12});
  const OwnedTensor v = OwnedTensor::Of(value, dtype, {1, 2, 12});
  const std::vector<int64_t> slots = {block * 16 + 15};
  const auto writable = [](const ConstTensorView& view) {
    return TensorView(const_cast<void*>(view.data), view.dtype, view.rank, view.shape,
                      view.strides);
  };
  const auto largest = [&] {
    const PagedProblem::Outputs outputs = problem.Run(GetParam().Options());
    EXPECT_TRUE(outputs.status.ok()) << outputs.status.message();
    double most = 0.0;
    for (const double out : outputs.out.Values()) most = std::max(most, std::fabs(out));
    return most;
  };
  EXPECT_LT(largest(), 6.0);
  KvAppendInputs inputs;
  inputs.k = k.View();
  inputs.v = v.View();
  inputs.slot_mapping = ConstTensorView(slots.data(), DType::kI64, {1});
  const Status status = KvAppend(inputs, {writable(problem.KCache()), writable(problem.VCache())});
  ASSERT_TRUE(status.ok()) << status.message();
  // One key of 64 with a value of 1000.
  EXPECT_GT(largest(), 6.0);
}

FLASHLANE_INSTANTIATE_RUNS(PagedServingTest, PagedRuns());

}  // namespace
}  // namespace flashlane::testing
