// Same bits on repeat, for any number of threads, and for a sequence alone or in any batch (design
// §2).

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cstring>
#include <vector>

#include "tests/support/problem.h"
#include "tests/support/runs.h"
#include "tests/support/specs.h"

namespace flashlane::testing {
namespace {

class DeterminismTest : public RunTest {
 protected:
  static void CheckChunks(ProblemSpec spec);
};

// Long enough for several row tiles and key blocks, so that work is really cut.
std::vector<ProblemSpec> Specs() {
  ProblemSpec causal;
  causal.batch = 2;
  causal.num_heads = 6;
  causal.num_kv_heads = 2;
  causal.seqlen_q = 131;
  causal.seqlen_k = 405;
  causal.head_dim = causal.head_dim_v = 16;
  causal.params.causal = true;
  causal.params.q_start = QStart::BottomRight();
  ProblemSpec features = causal;
  features.params.causal = false;
  features.params.q_start = QStart();
  features.params.window_size_left = 100;
  features.params.softcap = 4.0;
  features.alibi = features.sinks = features.per_sequence_k_len = true;
  features.bias_dims = 12;
  features.layout = Layout::kPadded;
  return {causal, features};
}

TEST_P(DeterminismTest, SameBitsForAnyNumberOfThreads) {
  // More threads than cores: the bits must not depend on who runs what.
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, 8);
  for (const ProblemSpec& spec : Specs()) {
    const Problem problem(spec, GetParam().dtype);
    const Result one = problem.Run(GetParam().Options(1));
    ASSERT_TRUE(one.status.ok()) << one.status.message();
    for (const int threads : {1, 2, 3, 8}) {
      tbb::task_arena arena(threads);
      for (int repeat = 0; repeat < 3; ++repeat) {
        const Result result =
            arena.execute([&] { return problem.Run(GetParam().Options(threads)); });
        ASSERT_TRUE(result.status.ok()) << result.status.message();
        ASSERT_EQ(result.bits, one.bits) << spec.ToString() << " threads " << threads;
      }
    }
  }
}

TEST_P(DeterminismTest, SameBitsAloneAndInABatch) {
  for (ProblemSpec spec : Specs()) {
    spec.batch = 3;
    const Problem batch(spec, GetParam().dtype);
    const Result together = batch.Run(GetParam().Options());
    ASSERT_TRUE(together.status.ok()) << together.status.message();
    const size_t out_size = together.out.size() / 3;
    const size_t lse_size = together.lse.size() / 3;
    for (int64_t b = 0; b < 3; ++b) {
      ProblemSpec one_spec = spec;
      one_spec.batch = 1;
      Problem alone(one_spec, GetParam().dtype);
      for (OwnedTensor Problem::*member :
           {&Problem::q, &Problem::k, &Problem::v, &Problem::bias, &Problem::k_len}) {
        alone.*member = OneSequence(batch.*member, b);
      }
      alone.alibi_slopes = batch.alibi_slopes;
      alone.sinks = batch.sinks;
      const Result result = alone.Run(GetParam().Options());
      ASSERT_TRUE(result.status.ok()) << result.status.message();
      EXPECT_EQ(0, std::memcmp(result.out.data(), together.out.data() + b * out_size,
                               out_size * sizeof(double)))
          << spec.ToString() << " sequence " << b;
      EXPECT_EQ(0, std::memcmp(result.lse.data(), together.lse.data() + b * lse_size,
                               lse_size * sizeof(double)))
          << spec.ToString() << " sequence " << b;
    }
  }
}

// A chunk of queries at its q_start gives the bits of the same rows of the whole prefill: key
// blocks are anchored at key 0, and no row depends on the tile it lies in.
TEST_P(DeterminismTest, SameBitsForAChunkOfQueries) {
  CheckChunks(Specs()[0]);
  // Scores so large that the maxima of rows grow, each in its own chunk of keys; odd sizes.
  ProblemSpec large = Specs()[0];
  large.magnitude = 20.0;
  large.head_dim = 33;
  large.head_dim_v = 17;
  CheckChunks(large);
}

void DeterminismTest::CheckChunks(ProblemSpec spec) {
  spec.params.q_start = 0;
  spec.seqlen_q = spec.seqlen_k;
  const Problem whole(spec, GetParam().dtype);
  const Result all = whole.Run(GetParam().Options());
  ASSERT_TRUE(all.status.ok()) << all.status.message();
  for (const int64_t start : {1, 100, 203}) {
    ProblemSpec chunk_spec = spec;
    chunk_spec.seqlen_q = 150;
    chunk_spec.params.q_start = start;
    Problem chunk(chunk_spec, GetParam().dtype);
    chunk.k = whole.k;
    chunk.v = whole.v;
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int64_t h = 0; h < spec.num_heads; ++h) {
        for (int64_t i = 0; i < chunk_spec.seqlen_q; ++i) {
          for (int64_t d = 0; d < spec.head_dim; ++d) {
            chunk.q.Set({b, h, i, d}, whole.q.At({b, h, start + i, d}));
          }
        }
      }
    }
    const Result result = chunk.Run(GetParam().Options());
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    for (int64_t head = 0; head < spec.batch * spec.num_heads; ++head) {
      for (int64_t i = 0; i < chunk_spec.seqlen_q; ++i) {
        const int64_t mine = head * chunk_spec.seqlen_q + i;
        const int64_t theirs = head * spec.seqlen_q + start + i;
        ASSERT_EQ(result.lse[mine], all.lse[theirs]) << "start " << start << " row " << i;
        ASSERT_EQ(
            0, std::memcmp(&result.out[mine * spec.head_dim_v], &all.out[theirs * spec.head_dim_v],
                           spec.head_dim_v * sizeof(double)))
            << "start " << start << " row " << i;
      }
    }
  }
}

FLASHLANE_INSTANTIATE_RUNS(DeterminismTest, AllRuns());

}  // namespace
}  // namespace flashlane::testing
