// A warm call allocates nothing. Its own program, for it replaces operator new.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "flashlane/attention.h"
#include "flashlane/info.h"
#include "flashlane/kv_cache.h"
#include "flashlane/paged.h"
#include "flashlane/rope.h"

namespace {
std::atomic<long> allocations{0};

void* Allocate(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
  return memory;
}
}  // namespace

// Not inlined: g++ takes the inlined halves, malloc's and free's, for a mismatched pair.
__attribute__((noinline)) void* operator new(std::size_t size) {
  return Allocate(size, sizeof(void*) * 2);
}
__attribute__((noinline)) void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
__attribute__((noinline)) void* operator new(std::size_t size, std::align_val_t alignment,
                                             const std::nothrow_t&) noexcept {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::size_t,
                                               std::align_val_t) noexcept {
  std::free(memory);
}

namespace flashlane {
namespace {

TEST(AllocationTest, AWarmCallAllocatesNothing) {
  std::vector<float> q(2 * 4 * 300 * 16, 0.1f), out(q.size()), lse(2 * 4 * 300);
  const std::vector<int> cu_seqlens = {0, 100, 100, 600};
  AttentionInputs inputs;
  inputs.q = inputs.k = inputs.v = ConstTensorView(q.data(), DType::kF32, {2, 4, 300, 16});
  AttentionOutputs outputs;
  outputs.out = TensorView(out.data(), DType::kF32, {2, 4, 300, 16});
  outputs.lse = TensorView(lse.data(), DType::kF32, {2, 4, 300});
  VarlenInputs packed;
  packed.q = packed.k = packed.v = ConstTensorView(q.data(), DType::kF32, {600, 4, 16});
  packed.cu_seqlens_q = packed.cu_seqlens_k = ConstTensorView(cu_seqlens.data(), DType::kI32, {4});
  AttentionOutputs packed_outputs;
  packed_outputs.out = TensorView(out.data(), DType::kF32, {600, 4, 16});
  AttentionParams params;
  params.causal = true;
  const std::vector<std::string> targets = SupportedTargets();
  for (const std::string& target : targets) {
    ExecOptions options;
    options.target = target.c_str();
    options.num_threads = 1;  // oneTBB allocates as it likes; threading_memory_test looks at that
    const auto call = [&] {
      const bool one = Attention(inputs, params, outputs, options).ok();
      return AttentionVarlen(packed, params, packed_outputs, options).ok() && one;
    };
    ASSERT_TRUE(call());
    const long before = allocations;
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(call());
    EXPECT_EQ(allocations - before, 0) << target;
  }
}

// Decode of mixed lengths, one with split keys, and a prefill chunk in the same call.
TEST(AllocationTest, AWarmPagedCallAllocatesNothing) {
  constexpr int64_t kBlocks = 128, kHeads = 4, kDim = 32;
  std::vector<float> pool(kBlocks * 16 * 2 * kDim, 0.1f), q(20 * kHeads * kDim, 0.1f);
  std::vector<float> out(q.size());
  std::vector<uint32_t> table(3 * kBlocks), context_lens = {5, 1600, 100};
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint32_t>(i * 37 % kBlocks);
  const std::vector<int> cu_seqlens_q = {0, 1, 2, 20};
  PagedInputs inputs;
  inputs.q = ConstTensorView(q.data(), DType::kF32, {20, kHeads, kDim});
  inputs.k_cache = inputs.v_cache =
      ConstTensorView(pool.data(), DType::kF32, {kBlocks, 16, 2, kDim});
  inputs.block_table = ConstTensorView(table.data(), DType::kU32, {3, kBlocks});
  inputs.context_lens = ConstTensorView(context_lens.data(), DType::kU32, {3});
  inputs.cu_seqlens_q = ConstTensorView(cu_seqlens_q.data(), DType::kI32, {4});
  AttentionOutputs outputs;
  outputs.out = TensorView(out.data(), DType::kF32, {20, kHeads, kDim});
  for (const std::string& target : SupportedTargets()) {
    ExecOptions options;
    options.target = target.c_str();
    options.num_threads = 1;
    ASSERT_TRUE(AttentionPaged(inputs, {}, outputs, options).ok());
    const long before = allocations;
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(AttentionPaged(inputs, {}, outputs, options).ok());
    EXPECT_EQ(allocations - before, 0) << target;
  }
}

TEST(AllocationTest, AWarmCallOnTheCacheAllocatesNothing) {
  std::vector<float> pool(2 * 64 * 16 * 4 * 32), space(pool.size()), k(500 * 4 * 32);
  std::vector<long> slots(500), pairs = {0, 1, 1, 63, 2, 2};
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<long>(i * 7 % 1024) - 1;
  const auto pools_in = [](std::vector<float>& memory) {
    return KvPools{TensorView(memory.data(), DType::kF32, {64, 16, 4, 32}),
                   TensorView(memory.data() + memory.size() / 2, DType::kF32, {64, 16, 4, 32})};
  };
  const KvPools pools = pools_in(pool), other = pools_in(space);
  KvAppendInputs inputs;
  inputs.k = inputs.v = ConstTensorView(k.data(), DType::kF32, {500, 4, 32});
  inputs.slot_mapping = ConstTensorView(slots.data(), DType::kI64, {500});
  const ConstTensorView mapping(pairs.data(), DType::kI64, {3, 2});
  ExecOptions options;
  options.num_threads = 1;
  const auto call = [&] {
    return KvAppend(inputs, pools, options).ok() && KvCopyBlocks(pools, mapping, options).ok() &&
           KvSwapBlocks({pools.k_cache, pools.v_cache}, other, mapping, options).ok();
  };
  ASSERT_TRUE(call());
  const long before = allocations;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(call());
  EXPECT_EQ(allocations - before, 0);
}

TEST(AllocationTest, AWarmRotationAllocatesNothing) {
  std::vector<float> pool(2 * 64 * 16 * 4 * 32), x(500 * 4 * 32), table(2 * 40 * 16);
  std::vector<long> slots(500), positions(500);
  for (size_t i = 0; i < 500; ++i) {
    slots[i] = static_cast<long>(i * 7 % 1024) - 1;
    positions[i] = static_cast<long>(i % 40);
  }
  const TensorView tokens(x.data(), DType::kF32, {500, 4, 32});
  const TensorView batch(x.data(), DType::kF32, {2, 4, 250, 32});
  RopeInputs inputs;
  inputs.cos = ConstTensorView(table.data(), DType::kF32, {40, 16}, {32, 1});
  inputs.sin = ConstTensorView(table.data() + 16, DType::kF32, {40, 16}, {32, 1});
  KvAppendInputs append;
  append.k = append.v = tokens;
  append.slot_mapping = ConstTensorView(slots.data(), DType::kI64, {500});
  append.rope = {inputs.cos, inputs.sin, ConstTensorView(positions.data(), DType::kI64, {500})};
  const KvPools pools{TensorView(pool.data(), DType::kF32, {64, 16, 4, 32}),
                      TensorView(pool.data() + pool.size() / 2, DType::kF32, {64, 16, 4, 32})};
  for (const std::string& target : SupportedTargets()) {
    ExecOptions options;
    options.target = target.c_str();
    options.num_threads = 1;
    const auto call = [&] {
      inputs.q = tokens;
      inputs.positions = append.rope.positions;
      const bool packed = ApplyRope(inputs, {}, {tokens, {}}, options).ok();
      inputs.q = batch;
      inputs.positions = ConstTensorView(positions.data(), DType::kI64, {2, 250});
      return ApplyRope(inputs, {}, {batch, {}}, options).ok() && packed &&
             KvAppend(append, pools, options).ok();
    };
    ASSERT_TRUE(call());
    const long before = allocations;
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(call());
    EXPECT_EQ(allocations - before, 0) << target;
  }
}

// The count counts: a refused call builds a message.
TEST(AllocationTest, ARefusedCallIsSeenToAllocate) {
  const long before = allocations;
  EXPECT_FALSE(Attention({}, {}, {}).ok());
  EXPECT_GT(allocations - before, 0);
}

}  // namespace
}  // namespace flashlane
