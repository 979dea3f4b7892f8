// KvAppend, KvCopyBlocks and KvSwapBlocks against a loop over rows: every dtype and layout, any
// number of threads, no byte beside the rows that are meant. Refusals: kv_cache_contract_test.cc.

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dispatch/contract_kv_cache.h"
#include "dispatch/registry.h"
#include "flashlane/kv_cache.h"
#include "tests/support/kv_pools.h"
#include "tests/support/memory.h"

namespace flashlane::testing {
namespace {

using Flush = GuardedBuffer::Flush;

ExecOptions Threads(int num_threads) {
  ExecOptions options;
  options.num_threads = num_threads;
  return options;
}

ConstTensorView I64(const std::vector<int64_t>& values) {
  return ConstTensorView(values.data(), DType::kI64, {static_cast<int64_t>(values.size())});
}

ConstTensorView Mapping(const BlockPairs& pairs) {
  static_assert(sizeof(pairs[0]) == 2 * sizeof(int64_t));
  return ConstTensorView(pairs.data(), DType::kI64, {static_cast<int64_t>(pairs.size()), 2});
}

// New tokens as slices of one [num_tokens, Hq + 2 Hkv, D], as a fused projection gives them.
struct Tokens {
  Tokens(const PoolSpec& spec, DType dtype, int64_t count, uint64_t seed) {
    const int64_t heads = spec.num_kv_heads;
    const int64_t row = heads * (spec.head_dim + spec.head_dim_v) + 7;
    const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
    bytes = RandomBytes(count * row * size, seed);
    k = ConstTensorView(bytes.data(), dtype, {count, heads, spec.head_dim},
                        {row, spec.head_dim, 1});
    if (spec.layout == PoolLayout::kKeysOnly) return;
    v = ConstTensorView(bytes.data() + heads * spec.head_dim * size, dtype,
                        {count, heads, spec.head_dim_v}, {row, spec.head_dim_v, 1});
  }
  std::vector<std::byte> bytes;
  ConstTensorView k, v;
};

// `count` different slots in any order; every fifth token is skipped.
std::vector<int64_t> SomeSlots(const PoolSpec& spec, int64_t count, uint64_t seed) {
  std::vector<int64_t> slots(static_cast<size_t>(spec.num_blocks * spec.block_size));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937_64(seed));
  slots.resize(static_cast<size_t>(count));
  for (size_t i = 2; i < slots.size(); i += 5) slots[i] = -1;
  return slots;
}

std::vector<DType> DTypesOf(const std::string& kernel) {
  std::vector<DType> dtypes;
  for (const KernelRow& row : Registry()) {
    if (row.name == kernel) dtypes.push_back(row.dtype);
  }
  return dtypes;
}

class KvCacheTest : public ::testing::TestWithParam<DType> {
 protected:
  void ExpectAppend(const PoolSpec& spec, const std::vector<int64_t>& slots,
                    const ExecOptions& options) {
    const Tokens tokens(spec, GetParam(), static_cast<int64_t>(slots.size()), 1);
    PoolMemory memory(spec, GetParam(), 2), expected(spec, GetParam(), 2);
    ReferenceAppend(tokens.k, slots, expected.Views().k_cache);
    ReferenceAppend(tokens.v, slots, expected.Views().v_cache);
    const Status status = KvAppend({tokens.k, tokens.v, I64(slots)}, memory.Views(), options);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(memory.bytes == expected.bytes) << "layout " << static_cast<int>(spec.layout);
  }

  void ExpectCopy(const PoolSpec& spec, const BlockPairs& pairs, const ExecOptions& options) {
    PoolMemory memory(spec, GetParam(), 3), expected(spec, GetParam(), 3);
    const KvPools want = expected.Views();
    ReferenceCopy(want.k_cache, want.k_cache, pairs);
    ReferenceCopy(want.v_cache, want.v_cache, pairs);
    const Status status = KvCopyBlocks(memory.Views(), Mapping(pairs), options);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(memory.bytes == expected.bytes) << "layout " << static_cast<int>(spec.layout);
  }
};

TEST_P(KvCacheTest, AppendEqualsTheReference) {
  for (const PoolLayout layout : kPoolLayouts) {
    for (const int64_t block_size : {1, 3, 16}) {
      for (const auto& [head_dim, head_dim_v] : {std::pair{1, 1}, {5, 7}, {64, 64}}) {
        const PoolSpec spec{6, block_size, 3, head_dim, head_dim_v, layout};
        for (const int64_t count : {int64_t{0}, int64_t{1}, 6 * block_size}) {
          ExpectAppend(spec, SomeSlots(spec, count, 4), {});
        }
      }
    }
  }
}

TEST_P(KvCacheTest, AppendToTheFirstAndTheLastSlot) {
  const PoolSpec spec{5, 7, 2, 8, 8, PoolLayout::kBlockPairs};
  ExpectAppend(spec, {34}, {});
  ExpectAppend(spec, {34, -1, 0}, {});
}

TEST_P(KvCacheTest, TheLastTokenForASlotStays) {
  const PoolSpec spec{3, 4, 2, 8, 8};
  ExpectAppend(spec, {5, 5, 7, 5, -1, 7}, {});
}

TEST_P(KvCacheTest, SlotsAsI32AndWithAStride) {
  const PoolSpec spec{4, 4, 2, 8, 8};
  const std::vector<int64_t> slots = {3, -1, 15, 0};
  const Tokens tokens(spec, GetParam(), 4, 1);
  PoolMemory expected(spec, GetParam(), 2);
  ReferenceAppend(tokens.k, slots, expected.Views().k_cache);
  ReferenceAppend(tokens.v, slots, expected.Views().v_cache);
  const std::vector<int32_t> narrow = {3, 99, -1, 99, 15, 99, 0};
  PoolMemory memory(spec, GetParam(), 2);
  const ConstTensorView mapping(narrow.data(), DType::kI32, {4}, {2});
  ASSERT_TRUE(KvAppend({tokens.k, tokens.v, mapping}, memory.Views()).ok());
  EXPECT_TRUE(memory.bytes == expected.bytes);
}

TEST_P(KvCacheTest, ABroadcastTokenGoesEverywhere) {
  const PoolSpec spec{2, 4, 2, 8, 8, PoolLayout::kKeysOnly};
  const Tokens tokens(spec, GetParam(), 1, 1);
  const ConstTensorView one(tokens.k.data, GetParam(), {3, 2, 8}, {0, 0, 1});
  const std::vector<int64_t> slots = {7, 1, 2};
  PoolMemory memory(spec, GetParam(), 2), expected(spec, GetParam(), 2);
  ReferenceAppend(one, slots, expected.Views().k_cache);
  ASSERT_TRUE(KvAppend({one, {}, I64(slots)}, memory.Views()).ok());
  EXPECT_TRUE(memory.bytes == expected.bytes);
}

// V a slice of K, as in MLA: both move with k_cache.
TEST_P(KvCacheTest, KeysThatHoldTheValues) {
  const PoolSpec spec{4, 4, 1, 36, 36, PoolLayout::kKeysOnly};
  ExpectAppend(spec, {15, 2, -1}, {});
  ExpectCopy(spec, {{3, 0}}, {});
}

TEST_P(KvCacheTest, CopyBlocksInOrder) {
  const BlockPairs mappings[] = {
      {},
      {{0, 5}},                                  // a fork
      {{0, 3}, {0, 4}, {0, 5}},                  // a beam that spreads
      {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}},  // a chain forwards: all become block 0
      {{4, 5}, {3, 4}, {2, 3}, {1, 2}, {0, 1}},  // and backwards: all move up by one
      {{0, 5}, {1, 0}, {5, 1}},                  // blocks 0 and 1 change places by way of 5
      {{1, 3}, {2, 3}},                          // the last one stays
      {{2, 2}, {5, 5}},                          // nothing
  };
  for (const PoolLayout layout : kPoolLayouts) {
    for (const int64_t block_size : {1, 5, 16}) {
      for (const BlockPairs& pairs : mappings) {
        ExpectCopy({6, block_size, 3, 5, 7, layout}, pairs, {});
      }
    }
  }
}

TEST_P(KvCacheTest, SwapOutAndIn) {
  for (const PoolLayout src_layout : kPoolLayouts) {
    for (const PoolLayout dst_layout : kPoolLayouts) {
      if ((src_layout == PoolLayout::kKeysOnly) != (dst_layout == PoolLayout::kKeysOnly)) continue;
      PoolMemory src({6, 4, 3, 5, 7, src_layout}, GetParam(), 5);
      PoolMemory dst({9, 4, 3, 5, 7, dst_layout}, GetParam(), 6), expected = dst;
      const std::vector<std::byte> before = src.bytes;
      const BlockPairs out = {{0, 8}, {5, 0}, {2, 3}, {1, 3}};
      const KvPools want = expected.Views();
      ReferenceCopy(src.Views().k_cache, want.k_cache, out);
      ReferenceCopy(src.Views().v_cache, want.v_cache, out);
      ASSERT_TRUE(KvSwapBlocks(src.ConstViews(), dst.Views(), Mapping(out)).ok());
      EXPECT_TRUE(dst.bytes == expected.bytes);
      EXPECT_TRUE(src.bytes == before);
      const BlockPairs in = {{8, 0}, {0, 5}, {3, 1}};
      ASSERT_TRUE(KvSwapBlocks(dst.ConstViews(), src.Views(), Mapping(in)).ok());
      EXPECT_TRUE(src.bytes == before);
    }
  }
}

TEST_P(KvCacheTest, PairsAsI32AndU32InColumns) {
  const PoolSpec spec{6, 4, 2, 8, 8};
  const int32_t columns[] = {1, 2, 3, 4, 5, 0};  // sources 1 2 3, destinations 4 5 0
  PoolMemory expected(spec, GetParam(), 2);
  const KvPools want = expected.Views();
  ReferenceCopy(want.k_cache, want.k_cache, {{1, 4}, {2, 5}, {3, 0}});
  ReferenceCopy(want.v_cache, want.v_cache, {{1, 4}, {2, 5}, {3, 0}});
  for (const DType dtype : {DType::kI32, DType::kU32}) {
    PoolMemory memory(spec, GetParam(), 2);
    const ConstTensorView mapping(columns, dtype, {3, 2}, {1, 3});
    ASSERT_TRUE(KvCopyBlocks(memory.Views(), mapping).ok());
    EXPECT_TRUE(memory.bytes == expected.bytes);
  }
}

// Large enough to be cut, at odd places, with destinations that repeat and copies that depend on
// each other.
TEST_P(KvCacheTest, ThreadsChangeNoByte) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, 8);
  for (const PoolLayout layout : {PoolLayout::kApart, PoolLayout::kRowPairs, PoolLayout::kPadded}) {
    const PoolSpec spec{40, 16, 5, 123, 77, layout};
    std::vector<int64_t> slots(1500);
    BlockPairs pairs(300);
    std::mt19937_64 engine(7);
    for (int64_t& slot : slots) slot = static_cast<int64_t>(engine() % 641) - 1;
    for (auto& [from, to] : pairs) {
      from = static_cast<int64_t>(engine() % 40);
      to = static_cast<int64_t>(engine() % 40);
    }
    for (const int threads : {1, 2, 3, 8}) {
      tbb::task_arena arena(threads);
      arena.execute([&] {
        ExpectAppend(spec, slots, Threads(threads));
        ExpectCopy(spec, pairs, Threads(threads));
      });
    }
  }
}

// What the tasks of a call stand on: elements [i, i + 1) of all items are one element of each.
TEST_P(KvCacheTest, ARangeIsItsElementsOnly) {
  const PoolSpec spec{3, 2, 2, 3, 5, PoolLayout::kPadded};
  const Tokens tokens(spec, GetParam(), 2, 1);
  PoolMemory whole(spec, GetParam(), 2), pieces(spec, GetParam(), 2);
  const std::vector<int64_t> slots = {4, 1};
  const kernels::KvAppendEntry entry = FindKernel("kv_append", GetParam())->kv_append();
  const KvAppendInputs inputs{tokens.k, tokens.v, I64(slots)};
  ASSERT_TRUE(KvAppend(inputs, whole.Views()).ok());
  const kernels::KvAppendArgs args = ResolveKvAppend(inputs, pieces.Views());
  ASSERT_EQ(args.item_size(), 2 * 3 + 2 * 5);
  for (int64_t i = 0; i < args.item_size(); ++i) {
    const std::vector<std::byte> before = pieces.bytes;
    entry.run(args, i, i + 1);
    size_t changed = 0;
    for (size_t at = 0; at < before.size(); ++at) changed += pieces.bytes[at] != before[at];
    EXPECT_GT(changed, 0u);
    EXPECT_LE(changed, 2 * DTypeSize(GetParam()));
  }
  EXPECT_TRUE(pieces.bytes == whole.bytes);
}

// Every buffer ends (begins) where memory does.
TEST_P(KvCacheTest, NothingOutsideTheViewsIsTouched) {
  for (const PoolLayout layout : kPoolLayouts) {
    for (const Flush flush : {Flush::kBegin, Flush::kEnd}) {
      const PoolSpec spec{3, 5, 3, 5, 7, layout};
      PoolMemory memory(spec, GetParam(), 2);
      const size_t bytes = memory.bytes.size();
      GuardedBuffer pool(bytes, flush), other(bytes, flush);
      const KvPools pools = memory.Views(static_cast<std::byte*>(pool.data()));
      const KvPools others = memory.Views(static_cast<std::byte*>(other.data()));
      std::memcpy(pool.data(), memory.bytes.data(), bytes);
      const int64_t slots[] = {14, 0, -1, 7};
      const int64_t pairs[] = {0, 2, 2, 1};
      GuardedBuffer k(4 * 3 * 5 * DTypeSize(GetParam()), flush);
      GuardedBuffer v(4 * 3 * 7 * DTypeSize(GetParam()), flush);
      GuardedBuffer slot_mapping(sizeof slots, flush), block_mapping(sizeof pairs, flush);
      std::memcpy(slot_mapping.data(), slots, sizeof slots);
      std::memcpy(block_mapping.data(), pairs, sizeof pairs);
      KvAppendInputs inputs;
      inputs.k = ConstTensorView(k.data(), GetParam(), {4, 3, 5});
      if (layout != PoolLayout::kKeysOnly)
        inputs.v = ConstTensorView(v.data(), GetParam(), {4, 3, 7});
      inputs.slot_mapping = ConstTensorView(slot_mapping.data(), DType::kI64, {4});
      const ConstTensorView mapping(block_mapping.data(), DType::kI64, {2, 2});
      EXPECT_EQ(KvAppend(inputs, pools).message(), "");
      EXPECT_EQ(KvCopyBlocks(pools, mapping).message(), "");
      EXPECT_EQ(KvSwapBlocks({pools.k_cache, pools.v_cache}, others, mapping).message(), "");
      const TensorView& last = others.v_cache.present() ? others.v_cache : others.k_cache;
      const TensorView& from = pools.v_cache.present() ? pools.v_cache : pools.k_cache;
      EXPECT_EQ(0, std::memcmp(RowAt(last, 2, 4, 2), RowAt(from, 0, 4, 2), 5));
    }
  }
}

// Offsets past 2^31 and 2^32 elements, in pools without memory behind most of them.
TEST_P(KvCacheTest, PoolsBeyond32Bits) {
  const int64_t size = static_cast<int64_t>(DTypeSize(GetParam()));
  constexpr int64_t kBlocks = int64_t{1} << 23, kBlockSize = 16, kHeads = 2, kDim = 32;  // 2^33
  const int64_t bytes = kBlocks * kBlockSize * kHeads * kDim * size;
  SparseBuffer k(static_cast<size_t>(bytes)), v(static_cast<size_t>(bytes));
  if (!k.ok() || !v.ok()) GTEST_SKIP() << "no address space for the mappings";
  const KvPools pools{TensorView(k.data(), GetParam(), {kBlocks, kBlockSize, kHeads, kDim}),
                      TensorView(v.data(), GetParam(), {kBlocks, kBlockSize, kHeads, kDim})};
  const Tokens tokens({kBlocks, kBlockSize, kHeads, kDim, kDim}, GetParam(), 3, 1);
  const std::vector<int64_t> slots = {kBlocks * kBlockSize - 1, kBlocks * kBlockSize / 2 + 3, 0};
  ASSERT_TRUE(KvAppend({tokens.k, tokens.v, I64(slots)}, pools).ok());
  const BlockPairs pairs = {{kBlocks - 1, kBlocks / 2 + 1}, {kBlocks / 2, 1}};
  ASSERT_TRUE(KvCopyBlocks(pools, Mapping(pairs)).ok());
  const auto expect_row = [&](int64_t block, int64_t slot, int64_t token) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const size_t row = static_cast<size_t>(kDim * size);
      EXPECT_EQ(
          0, std::memcmp(RowAt(pools.k_cache, block, slot, h), RowAt(tokens.k, 0, token, h), row));
      EXPECT_EQ(
          0, std::memcmp(RowAt(pools.v_cache, block, slot, h), RowAt(tokens.v, 0, token, h), row));
    }
  };
  expect_row(kBlocks - 1, 15, 0);
  expect_row(kBlocks / 2, 3, 1);
  expect_row(0, 0, 2);
  expect_row(kBlocks / 2 + 1, 15, 0);
  expect_row(1, 3, 1);
}

std::string DTypeOf(const ::testing::TestParamInfo<DType>& info) { return DTypeName(info.param); }
INSTANTIATE_TEST_SUITE_P(All, KvCacheTest, ::testing::ValuesIn(DTypesOf("kv_append")), DTypeOf);

TEST(KvCacheRegistryTest, EveryAttentionDTypeHasItsRows) {
  const std::vector<DType> all = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
  for (const char* kernel : {"kv_append", "kv_copy_blocks", "kv_swap_blocks"}) {
    EXPECT_EQ(DTypesOf(kernel), all) << kernel;
  }
}

}  // namespace
}  // namespace flashlane::testing
