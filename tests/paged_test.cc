// AttentionPaged: the bits of Attention over the same keys laid out contiguously, whatever the
// blocks; and rows that stand before the first key, which no contiguous call has.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/paged.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

class PagedTest : public RunTest {
 protected:
  // Every row is that of the contiguous call. Rows whose positions are clamped are those of a call
  // with the clamped position: exactly where kernels compute a row alone as in company, which the
  // oracle does; others are left to the tolerance.
  static void ExpectBitsOfContiguous(const PagedSpec& spec) {
    const PagedProblem problem(spec, GetParam().dtype);
    const ExecOptions options = GetParam().Options();
    const PagedProblem::Outputs paged = problem.Run(options);
    ASSERT_TRUE(paged.status.ok()) << paged.status.message();
    for (int64_t b = 0; b < spec.batch(); ++b) {
      const int64_t clamped = std::max<int64_t>(spec.seqlens_q[b] - spec.context_lens[b], 0);
      const PagedProblem::Outputs contiguous = problem.RunContiguous(b, options);
      ASSERT_TRUE(contiguous.status.ok()) << contiguous.status.message();
      for (int64_t i = 0; i < spec.seqlens_q[b]; ++i) {
        const bool alone = i < clamped;
        if (alone && options.kernel != Kernel::kNaive) continue;
        const PagedProblem::Outputs row =
            alone ? problem.RunContiguous(b, options, i) : PagedProblem::Outputs();
        for (int64_t h = 0; h < spec.num_heads; ++h) {
          ASSERT_EQ(problem.RowBits(paged, b, h, i),
                    alone ? PagedProblem::ContiguousRowBits(row, h, 0)
                          : PagedProblem::ContiguousRowBits(contiguous, h, i))
              << spec.ToString() << ": sequence " << b << ", head " << h << ", query " << i;
        }
      }
    }
  }

  static void ExpectWithinTolerance(const PagedSpec& spec) {
    const PagedProblem problem(spec, GetParam().dtype);
    EXPECT_TRUE(AgreesWithTruth(problem, GetParam().Options())) << spec.ToString();
  }
};

PagedSpec Decode() {
  PagedSpec spec;
  spec.context_lens = {37, 1, 300, 16};
  spec.seqlens_q = {1, 1, 1, 1};
  return spec;
}

// `count` queries of each of three sequences.
PagedSpec Tails(int64_t count) {
  PagedSpec spec;
  spec.context_lens = {count, 60 + count, 17 * count};
  spec.seqlens_q = {count, count, count};
  return spec;
}

// Everything that a score can go through.
PagedSpec WithAll(PagedSpec spec) {
  spec.alibi = spec.sinks = spec.f32_terms = true;
  spec.params.softcap = 4.0;
  spec.params.softmax_scale = 0.4;
  spec.params.window_size_left = 21;
  return spec;
}

constexpr int64_t kBlockSizes[] = {1, 7, 16, 24, 128, 768};

TEST_P(PagedTest, BlockSizes) {
  for (const int64_t block_size : kBlockSizes) {
    for (PagedSpec spec : {Decode(), Tails(5)}) {
      spec.block_size = block_size;
      ExpectBitsOfContiguous(spec);
      ExpectBitsOfContiguous(WithAll(spec));
      ExpectWithinTolerance(spec);
    }
  }
}

TEST_P(PagedTest, SharedBlocks) {
  for (const int64_t block_size : {1, 7, 16}) {
    for (PagedSpec spec : {Decode(), Tails(3)}) {
      spec.block_size = block_size;
      spec.shared = true;
      ExpectBitsOfContiguous(spec);
    }
  }
}

TEST_P(PagedTest, StridedPools) {
  for (const PoolLayout layout :
       {PoolLayout::kInterleaved, PoolLayout::kValueInKey, PoolLayout::kHeadsFirst}) {
    for (const int64_t head_dim_v : {5, 12}) {
      for (PagedSpec spec : {Decode(), Tails(4)}) {
        spec.layout = layout;
        spec.head_dim_v = head_dim_v;
        spec.block_size = 7;
        ExpectBitsOfContiguous(spec);
        ExpectWithinTolerance(spec);
      }
    }
  }
  PagedSpec wider = Decode();
  wider.layout = PoolLayout::kInterleaved;
  wider.head_dim_v = 19;
  ExpectBitsOfContiguous(wider);
  PagedSpec mla = Decode();  // one head of keys, whose rows hold the values
  mla.layout = PoolLayout::kValueInKey;
  mla.num_heads = 16;
  mla.num_kv_heads = 1;
  mla.head_dim = 72;
  mla.head_dim_v = 64;
  ExpectBitsOfContiguous(mla);
}

TEST_P(PagedTest, TermsOfTheScore) {
  for (const PagedSpec& base : {Decode(), Tails(6)}) {
    PagedSpec spec = base;
    spec.params.softcap = 2.5;
    ExpectBitsOfContiguous(spec);
    spec = base;
    spec.alibi = true;
    ExpectBitsOfContiguous(spec);
    spec = base;
    spec.sinks = true;
    ExpectBitsOfContiguous(spec);
    for (const int64_t window : {0, 3, 40}) {
      spec = base;
      spec.params.window_size_left = window;
      ExpectBitsOfContiguous(spec);
    }
    ExpectBitsOfContiguous(WithAll(base));
    ExpectWithinTolerance(WithAll(base));
  }
}

TEST_P(PagedTest, ARightWindowAndCausalAddNothing) {
  PagedSpec spec = Tails(6);
  const PagedProblem plain(spec, GetParam().dtype);
  spec.params.window_size_right = 2;
  spec.params.causal = true;
  const PagedProblem said(spec, GetParam().dtype);
  const ExecOptions options = GetParam().Options();
  EXPECT_EQ(plain.Run(options).out.storage, said.Run(options).out.storage);
}

TEST_P(PagedTest, SpeculativeTailsWithDraftMask) {
  for (int64_t count = 1; count <= 16; ++count) {
    PagedSpec spec = Tails(count);
    spec.mask = true;
    spec.seed = static_cast<uint64_t>(count);
    ExpectBitsOfContiguous(spec);
    ExpectWithinTolerance(spec);
    if (count % 5 == 0) ExpectBitsOfContiguous(WithAll(spec));
  }
}

TEST_P(PagedTest, GroupsOfHeads) {
  for (const int64_t group : {1, 2, 3, 5, 7, 8, 9, 13, 16, 71}) {
    PagedSpec spec = Decode();
    spec.num_heads = 2 * group;
    ExpectBitsOfContiguous(spec);
    spec = Tails(2);
    spec.num_heads = 2 * group;
    ExpectBitsOfContiguous(spec);
  }
}

TEST_P(PagedTest, HeadSizes) {
  for (const int64_t head_dim : {1, 15, 16, 33, 64, 128, 130}) {
    PagedSpec spec = Decode();
    spec.head_dim = head_dim;
    spec.head_dim_v = head_dim + 1;
    ExpectBitsOfContiguous(spec);
    ExpectWithinTolerance(spec);
  }
}

TEST_P(PagedTest, ChunkedPrefill) {
  PagedSpec spec;
  spec.context_lens = {70, 211};
  spec.seqlens_q = {70, 70};
  spec.block_size = 24;
  ExpectBitsOfContiguous(spec);
  ExpectBitsOfContiguous(WithAll(spec));
  ExpectWithinTolerance(spec);
}

// Queries without a place among the keys stand at the first.
TEST_P(PagedTest, FewerKeysThanQueries) {
  for (const bool mask : {false, true}) {
    for (const bool all : {false, true}) {
      PagedSpec spec;
      spec.context_lens = {3, 1, 0, 9, 5};
      spec.seqlens_q = {8, 8, 8, 8, 8};
      spec.block_size = 2;
      spec.mask = mask;
      if (all) spec = WithAll(spec);
      ExpectBitsOfContiguous(spec);
      ExpectWithinTolerance(spec);
    }
  }
}

TEST_P(PagedTest, NoContextGivesZeroAndMinusInfinity) {
  PagedSpec spec = Decode();
  spec.context_lens = {0, 4, 0, 0};
  spec.sinks = true;
  ExpectBitsOfContiguous(spec);
  const PagedProblem problem(spec, GetParam().dtype);
  const PagedProblem::Outputs outputs = problem.Run(GetParam().Options());
  const std::vector<double> out = outputs.out.Values(), lse = outputs.lse.Values();
  for (const int64_t b : {0, 2, 3}) {
    for (int64_t h = 0; h < spec.num_heads; ++h) {
      EXPECT_EQ(lse[static_cast<size_t>(b * spec.num_heads + h)],
                -std::numeric_limits<double>::infinity());
      for (int64_t d = 0; d < spec.head_dim_v; ++d) {
        EXPECT_EQ(out[static_cast<size_t>((b * spec.num_heads + h) * spec.head_dim_v + d)], 0.0);
      }
    }
  }
}

TEST_P(PagedTest, PackedMixedBatches) {
  PagedSpec spec;
  spec.packed = true;
  spec.context_lens = {100, 40, 5, 17, 0, 2, 200, 33};
  spec.seqlens_q = {1, 40, 0, 3, 1, 6, 1, 16};
  for (const int64_t block_size : {1, 7, 16, 128}) {
    spec.block_size = block_size;
    spec.shared = block_size == 7;
    ExpectBitsOfContiguous(spec);
    ExpectBitsOfContiguous(WithAll(spec));
  }
  spec.layout = PoolLayout::kInterleaved;
  spec.head_dim_v = 7;
  ExpectBitsOfContiguous(spec);
}

TEST_P(PagedTest, PackedIsUnpackedWhereLengthsAreAlike) {
  PagedSpec spec = WithAll(Tails(5));
  const PagedProblem apart(spec, GetParam().dtype);
  spec.packed = true;
  PagedProblem packed(spec, GetParam().dtype);
  // The same numbers in the other order: [B, H, S, D] as [B * S, H, D].
  for (int64_t b = 0; b < spec.batch(); ++b) {
    for (int64_t h = 0; h < spec.num_heads; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t d = 0; d < spec.head_dim; ++d) {
          packed.q.Set({b * 5 + i, h, d}, apart.q.At({b, h, i, d}));
        }
      }
    }
  }
  const PagedProblem::Outputs a = apart.Run(GetParam().Options());
  const PagedProblem::Outputs p = packed.Run(GetParam().Options());
  ASSERT_TRUE(a.status.ok() && p.status.ok());
  for (int64_t b = 0; b < spec.batch(); ++b) {
    for (int64_t h = 0; h < spec.num_heads; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        ASSERT_EQ(apart.RowBits(a, b, h, i), packed.RowBits(p, b, h, i));
      }
    }
  }
}

// Same bits for any number of threads, and for a sequence without its neighbours.
TEST_P(PagedTest, BitsDependOnTheSequenceOnly) {
  PagedSpec spec = WithAll(Tails(3));
  spec.context_lens = {900, 5, 77};
  const PagedProblem problem(spec, GetParam().dtype);
  const PagedProblem::Outputs all = problem.Run(GetParam().Options(1));
  ASSERT_TRUE(all.status.ok()) << all.status.message();
  const PagedProblem::Outputs threads = problem.Run(GetParam().Options(2));
  EXPECT_EQ(all.out.storage, threads.out.storage);
  EXPECT_EQ(all.lse.storage, threads.lse.storage);
  for (int64_t b = 0; b < spec.batch(); ++b) {
    PagedInputs one = problem.Inputs();
    const auto shift = [b](ConstTensorView* view) {
      view->data = static_cast<const std::byte*>(view->data) +
                   static_cast<size_t>(b * view->strides[0]) * DTypeSize(view->dtype);
      view->shape[0] = 1;
    };
    shift(&one.q);
    shift(&one.block_table);
    shift(&one.context_lens);
    const PagedProblem::Outputs alone = problem.Run(one, GetParam().Options());
    ASSERT_TRUE(alone.status.ok()) << alone.status.message();
    for (int64_t h = 0; h < spec.num_heads; ++h) {
      for (int64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(problem.RowBits(all, b, h, i), PagedProblem::ContiguousRowBits(alone, h, i));
      }
    }
  }
}

TEST_P(PagedTest, TablesAndLengthsOfEveryTypeAndStride) {
  PagedSpec spec = Decode();
  const PagedProblem expected(spec, GetParam().dtype);
  const PagedProblem::Outputs want = expected.Run(GetParam().Options());
  spec.table_dtype = DType::kI32;
  for (const DType lens : {DType::kU32, DType::kI32, DType::kI64}) {
    spec.lens_dtype = lens;
    PagedProblem problem(spec, GetParam().dtype);
    EXPECT_EQ(problem.Run(GetParam().Options()).out.storage, want.out.storage);
    problem.block_table = problem.block_table.WithStrides({2, 9});  // column by column
    problem.context_lens = problem.context_lens.WithStrides({3});
    EXPECT_EQ(problem.Run(GetParam().Options()).out.storage, want.out.storage);
  }
}

TEST_P(PagedTest, ZeroSizes) {
  PagedSpec spec = Decode();
  spec.context_lens = {};
  spec.seqlens_q = {};
  EXPECT_TRUE(PagedProblem(spec, GetParam().dtype).Run(GetParam().Options()).status.ok());
  spec.packed = true;
  EXPECT_TRUE(PagedProblem(spec, GetParam().dtype).Run(GetParam().Options()).status.ok());
  spec.context_lens = {4, 0};
  spec.seqlens_q = {0, 0};
  EXPECT_TRUE(PagedProblem(spec, GetParam().dtype).Run(GetParam().Options()).status.ok());
  spec.packed = false;
  EXPECT_TRUE(PagedProblem(spec, GetParam().dtype).Run(GetParam().Options()).status.ok());

  // Neither blocks nor entries: every context is empty.
  spec.seqlens_q = {2, 2};
  spec.context_lens = {0, 0};
  const PagedProblem problem(spec, GetParam().dtype);
  PagedInputs inputs = problem.Inputs();
  for (ConstTensorView* pool : {&inputs.k_cache, &inputs.v_cache}) {
    pool->shape[0] = 0;
    pool->data = nullptr;
  }
  inputs.block_table = ConstTensorView(nullptr, DType::kU32, {2, 0});
  const PagedProblem::Outputs outputs = problem.Run(inputs, GetParam().Options());
  ASSERT_TRUE(outputs.status.ok()) << outputs.status.message();
  for (const double value : outputs.out.Values()) EXPECT_EQ(value, 0.0);
  for (const double value : outputs.lse.Values()) {
    EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
  }
}

FLASHLANE_INSTANTIATE_RUNS(PagedTest, PagedRuns());

}  // namespace
}  // namespace flashlane::testing
