// KvAppend that turns k on its way: bit for bit ApplyRope and then KvAppend, on every registry row
// and target, for all layouts of a cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "dispatch/contract_kv_cache.h"
#include "flashlane/kv_cache.h"
#include "tests/support/kv_pools.h"
#include "tests/support/memory.h"
#include "tests/support/rope.h"

namespace flashlane::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 50;  // of the tables

// Tokens of finite numbers in rows further apart than they are long; slots in any order, some
// skipped, whose positions are out of bounds.
struct Append {
  Append(const PoolSpec& pool, DType dtype, int64_t count, int64_t pairs)
      : spec(pool), tables(dtype, kRows, pairs) {
    const int64_t heads = spec.num_kv_heads, row = heads * spec.head_dim + 7;
    k = RandomTensor(dtype, {count, heads, spec.head_dim}, 1).WithStrides({row, spec.head_dim, 1});
    v = RandomTensor(dtype, {count, heads, spec.head_dim_v}, 2);
    std::mt19937_64 engine(3);
    const auto num_slots = static_cast<uint64_t>(spec.num_blocks * spec.block_size);
    for (int64_t i = 0; i < count; ++i) {
      const bool skipped = i % 5 == 2;
      slots.push_back(skipped ? -1 : static_cast<int64_t>(engine() % num_slots));
      positions.push_back(skipped ? -12345 : static_cast<int64_t>(engine() % kRows));
    }
  }

  KvAppendInputs Inputs(bool interleaved) const {
    KvAppendInputs inputs;
    const auto count = static_cast<int64_t>(slots.size());
    inputs.k = k.View();
    if (spec.layout != PoolLayout::kKeysOnly) inputs.v = v.View();
    inputs.slot_mapping = ConstTensorView(slots.data(), DType::kI64, {count});
    inputs.rope.cos = tables.cos.View();
    inputs.rope.sin = tables.sin.View();
    inputs.rope.positions = ConstTensorView(positions.data(), DType::kI64, {count});
    inputs.rope.interleaved = interleaved;
    return inputs;
  }

  // By two calls.
  PoolMemory Expected(bool interleaved, const ExecOptions& options) const {
    PoolMemory memory(spec, k.view.dtype, 4);
    OwnedTensor turned = k;
    std::vector<int64_t> rows = positions;
    for (int64_t& row : rows) row = row < 0 ? 0 : row;
    KvAppendInputs inputs = Inputs(interleaved);
    RopeInputs rope;
    rope.k = turned.View();
    rope.cos = inputs.rope.cos;
    rope.sin = inputs.rope.sin;
    rope.positions = ConstTensorView(rows.data(), DType::kI64, {k.view.shape[0]});
    RopeParams params;
    params.interleaved = interleaved;
    const Status status = ApplyRope(rope, params, {{}, WritableView(&turned)}, options);
    EXPECT_TRUE(status.ok()) << status.message();
    inputs.k = turned.View();
    inputs.rope = {};
    EXPECT_TRUE(KvAppend(inputs, memory.Views(), options).ok());
    return memory;
  }

  PoolSpec spec;
  RopeTablesOwned tables;
  OwnedTensor k, v;
  std::vector<int64_t> slots, positions;
};

class KvCacheRopeTest : public ::testing::TestWithParam<RopeRun> {
 protected:
  void ExpectFused(const Append& append, const ExecOptions& options) {
    for (const bool interleaved : {false, true}) {
      PoolMemory memory(append.spec, GetParam().dtype, 4);
      const Status status = KvAppend(append.Inputs(interleaved), memory.Views(), options);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(memory.bytes == append.Expected(interleaved, options).bytes)
          << "layout " << static_cast<int>(append.spec.layout) << " interleaved " << interleaved;
    }
  }
};

TEST_P(KvCacheRopeTest, EqualsRopeAndThenAppend) {
  for (const PoolLayout layout : kPoolLayouts) {
    for (const auto& [dim, pairs] : {std::pair{2, 1}, {7, 3}, {64, 32}, {80, 16}, {35, 17}}) {
      const PoolSpec spec{6, 4, 3, dim, dim + 1, layout};
      for (const int64_t count : {0, 1, 17}) {
        ExpectFused(Append(spec, GetParam().dtype, count, pairs), GetParam().Options());
      }
    }
  }
}

// Against the reference, so that both calls cannot be wrong alike.
TEST_P(KvCacheRopeTest, TurnsKAndLeavesItAlone) {
  const PoolSpec spec{1, 8, 2, 10, 10, PoolLayout::kHeadsFirst};
  Append append(spec, GetParam().dtype, 8, 4);
  for (int64_t i = 0; i < 8; ++i) {
    append.slots[static_cast<size_t>(i)] = i;
    append.positions[static_cast<size_t>(i)] = 7 * i % kRows;
  }
  const OwnedTensor before = append.k;
  PoolMemory memory(spec, GetParam().dtype, 4);
  ASSERT_TRUE(KvAppend(append.Inputs(false), memory.Views(), GetParam().Options()).ok());
  EXPECT_TRUE(append.k.storage == before.storage);
  // [1, Hkv, slot, D] both.
  OwnedTensor x = RandomTensor(GetParam().dtype, {1, 2, 8, 10}, 1), out = x;
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 8; ++i) {
      for (int64_t d = 0; d < 10; ++d) x.Set({0, h, i, d}, append.k.At({i, h, d}));
    }
  }
  std::memcpy(out.storage.data(), memory.bytes.data(), out.storage.size());
  const auto row = [&](int64_t, int64_t t) { return append.positions[static_cast<size_t>(t)]; };
  EXPECT_TRUE(IsTurned(x, out, {&append.tables, false, false, row}));
  EXPECT_FALSE(IsTurned(x, out, {&append.tables, true, false, row}));
}

TEST_P(KvCacheRopeTest, ThreadsChangeNoByte) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, 8);
  for (const PoolLayout layout : {PoolLayout::kApart, PoolLayout::kRowPairs, PoolLayout::kPadded}) {
    const Append append({40, 16, 5, 123, 77, layout}, GetParam().dtype, 700, 50);
    const PoolMemory expected = append.Expected(false, GetParam().Options(1));
    for (const int threads : {1, 2, 3, 8}) {
      tbb::task_arena arena(threads);
      arena.execute([&] {
        PoolMemory memory(append.spec, GetParam().dtype, 4);
        ASSERT_TRUE(
            KvAppend(append.Inputs(false), memory.Views(), GetParam().Options(threads)).ok());
        EXPECT_TRUE(memory.bytes == expected.bytes) << threads;
      });
    }
  }
}

// What the tasks of a call stand on: every element is in one range, wherever the cuts are.
TEST_P(KvCacheRopeTest, RangesOfOneElementMakeTheWhole) {
  const PoolSpec spec{3, 2, 2, 6, 5, PoolLayout::kPadded};
  const Append append(spec, GetParam().dtype, 4, 3);
  PoolMemory whole(spec, GetParam().dtype, 4), pieces(spec, GetParam().dtype, 4);
  const KvAppendInputs inputs = append.Inputs(true);
  ASSERT_TRUE(KvAppend(inputs, whole.Views(), GetParam().Options()).ok());
  Target target;
  ASSERT_TRUE(ResolveTarget(GetParam().target.c_str(), &target).ok());
  kernels::KvAppendArgs args = ResolveKvAppend(inputs, pieces.Views());
  args.rotation.rotate = FindKernel("rope", GetParam().dtype)->rope(target.bit).rotate;
  const auto entry = FindKernel("kv_append", GetParam().dtype)->kv_append();
  for (int64_t i = 0; i < args.item_size(); ++i) entry.run(args, i, i + 1);
  EXPECT_TRUE(pieces.bytes == whole.bytes);
}

TEST_P(KvCacheRopeTest, NothingOutsideTheViewsIsTouched) {
  using Flush = GuardedBuffer::Flush;
  for (const Flush flush : {Flush::kBegin, Flush::kEnd}) {
    for (const int64_t pairs : {1, 5, 16, 19}) {
      const PoolSpec spec{3, 5, 3, 2 * pairs + 1, 7};
      const Append append(spec, GetParam().dtype, 4, pairs);
      PoolMemory memory(spec, GetParam().dtype, 2);
      GuardedBuffer pool(memory.bytes.size(), flush);
      GuardedBuffer k(4 * 3 * static_cast<size_t>(spec.head_dim) * DTypeSize(GetParam().dtype),
                      flush);
      GuardedBuffer cos(append.tables.cos.storage.size(), flush);
      GuardedBuffer sin(append.tables.sin.storage.size(), flush);
      KvAppendInputs inputs = append.Inputs(false);
      inputs.k = ConstTensorView(k.data(), GetParam().dtype, {4, 3, spec.head_dim});
      inputs.rope.cos.data = cos.data();
      inputs.rope.sin.data = sin.data();
      for (const bool interleaved : {false, true}) {
        inputs.rope.interleaved = interleaved;
        const KvPools pools = memory.Views(static_cast<std::byte*>(pool.data()));
        EXPECT_EQ(KvAppend(inputs, pools, GetParam().Options()).message(), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvCacheRopeTest, ::testing::ValuesIn(RopeRuns()), RopeRunName);

// The message names argument, value and rule, and no byte of the pools has changed.
TEST(KvCacheRopeContractTest, Refusals) {
  const PoolSpec spec{4, 4, 2, 8, 8};
  const Append append(spec, DType::kF32, 4, 3);
  const auto expect = [&](const char* message, const auto& spoil,
                          StatusCode code = StatusCode::kInvalidArgument) {
    PoolMemory memory(spec, DType::kF32, 4);
    KvAppendInputs inputs = append.Inputs(false);
    ExecOptions options;
    spoil(inputs, options, memory);
    const std::vector<std::byte> spoilt = memory.bytes;
    const Status status = KvAppend(inputs, memory.Views(), options);
    EXPECT_EQ(status.code(), code) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_TRUE(memory.bytes == spoilt) << message;
  };
  using In = KvAppendInputs;
  using Opt = ExecOptions;
  using Mem = PoolMemory;
  expect("sin: absent, but cos is given", [](In& in, Opt&, Mem&) { in.rope.sin = {}; });
  expect("positions: absent, but cos is given", [](In& in, Opt&, Mem&) { in.rope.positions = {}; });
  expect("sin: given, but cos is absent", [](In& in, Opt&, Mem&) { in.rope.cos = {}; });
  expect("cos: dtype BF16 is not F32, for k of F32",
         [](In& in, Opt&, Mem&) { in.rope.cos.dtype = DType::kBF16; });
  expect("sin: shape [49, 3] does not match cos's [50, 3]",
         [](In& in, Opt&, Mem&) { in.rope.sin.shape[0] = 49; });
  expect("cos: 5 pairs of dimensions are more than k's head_dim 8 has", [](In& in, Opt&, Mem&) {
    in.rope.cos.shape[0] = in.rope.sin.shape[0] = 20;
    in.rope.cos.shape[1] = in.rope.sin.shape[1] = 5;
  });
  expect("positions: length 3 is not 4",
         [](In& in, Opt&, Mem&) { in.rope.positions.shape[0] = 3; });
  expect("positions: dtype U32 is not one of I32, I64",
         [](In& in, Opt&, Mem&) { in.rope.positions.dtype = DType::kU32; });
  std::vector<int64_t> rows = append.positions;
  for (const int64_t bad : {kRows, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    rows[3] = bad;
    const std::string message =
        "positions: value " + std::to_string(bad) + " at 3 is not within [0, 49], the rows of cos";
    expect(message.c_str(), [&](In& in, Opt&, Mem&) { in.rope.positions.data = rows.data(); });
  }
  expect("k_cache: shares memory with cos",
         [](In& in, Opt&, Mem& memory) { in.rope.cos.data = memory.bytes.data(); });
  expect("v_cache: shares memory with sin",
         [](In& in, Opt&, Mem& memory) { in.rope.sin.data = memory.Views().v_cache.data; });
  // 3 flops for each of 6 rotated elements of 4 tokens of 2 heads.
  expect(
      "max_flops: the call needs 144, above 143", [](In&, Opt& o, Mem&) { o.max_flops = 143; },
      StatusCode::kBudgetExceeded);
}

}  // namespace
}  // namespace flashlane::testing
