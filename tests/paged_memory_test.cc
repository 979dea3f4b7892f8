// What AttentionPaged may touch: live slots and live entries, and nothing else.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/memory.h"
#include "tests/support/paged.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

class PagedMemoryTest : public RunTest {};

// Each input ends with its last live byte: the last live slot of the pools, the last live entry of
// the table. The views say that there is more.
TEST_P(PagedMemoryTest, NothingDeadIsRead) {
  for (const PoolLayout layout :
       {PoolLayout::kDense, PoolLayout::kInterleaved, PoolLayout::kHeadsFirst}) {
    for (const int64_t seqlen_q : {1, 6}) {
      for (const int64_t block_size : {1, 7, 16, 128}) {
        PagedSpec spec;
        spec.context_lens = {seqlen_q + 30, 90, 45};
        spec.seqlens_q = {seqlen_q, seqlen_q, seqlen_q};
        spec.layout = layout;
        spec.block_size = block_size;
        spec.head_dim = 9;
        spec.head_dim_v = 10;
        spec.mask = seqlen_q > 1;
        const PagedProblem problem(spec, GetParam().dtype);
        const PagedProblem::Outputs expected = problem.Run(GetParam().Options());
        ASSERT_TRUE(expected.status.ok()) << expected.status.message();

        PagedInputs inputs = problem.Inputs();
        std::vector<std::unique_ptr<GuardedBuffer>> buffers;
        const auto guard = [&](const void* data, size_t bytes) {
          buffers.push_back(std::make_unique<GuardedBuffer>(bytes, GuardedBuffer::Flush::kEnd));
          std::memcpy(buffers.back()->data(), data, bytes);
          return static_cast<std::byte*>(buffers.back()->data());
        };
        const std::byte* pool = guard(problem.pool.data(), problem.LiveBytes());
        for (ConstTensorView* view : {&inputs.k_cache, &inputs.v_cache}) {
          view->data = pool + (static_cast<const std::byte*>(view->data) - problem.pool.data());
        }
        const int64_t row = problem.block_table.view.shape[1];
        const int64_t live = 2 * row + (45 + block_size - 1) / block_size;
        inputs.block_table.data =
            guard(problem.block_table.storage.data(), static_cast<size_t>(live) * 4);
        const auto guard_whole = [&](const OwnedTensor& tensor, ConstTensorView* view) {
          if (view->present()) view->data = guard(tensor.storage.data(), tensor.storage.size());
        };
        guard_whole(problem.q, &inputs.q);
        guard_whole(problem.context_lens, &inputs.context_lens);
        guard_whole(problem.mask, &inputs.mask);
        const PagedProblem::Outputs outputs = problem.Run(inputs, GetParam().Options());
        ASSERT_TRUE(outputs.status.ok()) << outputs.status.message();
        EXPECT_EQ(outputs.out.storage, expected.out.storage) << spec.ToString();
        EXPECT_EQ(outputs.lse.storage, expected.lse.storage) << spec.ToString();
      }
    }
  }
}

// Dead blocks between live ones have no memory at all.
TEST_P(PagedMemoryTest, DeadBlocksAreNeverRead) {
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  PagedSpec spec;
  spec.context_lens = {70, 10};
  spec.seqlens_q = {2, 2};
  spec.num_heads = spec.num_kv_heads = 1;
  spec.head_dim = spec.head_dim_v = 16;
  // A block of K is a page.
  const auto size = static_cast<int64_t>(DTypeSize(GetParam().dtype));
  spec.block_size = page / (16 * size);
  spec.context_lens[0] = spec.block_size + 3;
  const PagedProblem problem(spec, GetParam().dtype);
  const PagedProblem::Outputs expected = problem.Run(GetParam().Options());
  ASSERT_TRUE(expected.status.ok()) << expected.status.message();

  GuardedBuffer memory(problem.pool.size(), GuardedBuffer::Flush::kBegin);
  auto* pool = static_cast<std::byte*>(memory.data());
  std::memcpy(pool, problem.pool.data(), problem.pool.size());
  std::vector<bool> live(static_cast<size_t>(problem.num_blocks()));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < spec.context_lens[b]; ++t) {
      live[static_cast<size_t>(problem.BlockOf(b, t))] = true;
    }
  }
  int64_t dead = 0;
  for (int64_t block = 0; block < 2 * problem.num_blocks(); ++block) {
    if (live[static_cast<size_t>(block % problem.num_blocks())]) continue;
    ASSERT_EQ(mprotect(pool + block * page, static_cast<size_t>(page), PROT_NONE), 0);
    ++dead;
  }
  ASSERT_GT(dead, 0);
  PagedInputs inputs = problem.Inputs();
  for (ConstTensorView* view : {&inputs.k_cache, &inputs.v_cache}) {
    view->data = pool + (static_cast<const std::byte*>(view->data) - problem.pool.data());
  }
  const PagedProblem::Outputs outputs = problem.Run(inputs, GetParam().Options());
  ASSERT_TRUE(outputs.status.ok()) << outputs.status.message();
  EXPECT_EQ(outputs.out.storage, expected.out.storage);
  EXPECT_EQ(outputs.lse.storage, expected.lse.storage);
}

// What is dead may change: no bit does.
TEST_P(PagedMemoryTest, DeadBytesDoNotMatter) {
  PagedSpec spec;
  spec.context_lens = {37, 1, 200};
  spec.seqlens_q = {1, 1, 1};
  spec.block_size = 24;
  const PagedProblem nan(spec, GetParam().dtype);  // dead slots hold NaN
  PagedProblem zero = nan;
  for (const ConstTensorView& view : {zero.KCache(), zero.VCache()}) {
    std::vector<bool> is_live(static_cast<size_t>(zero.num_blocks() * spec.block_size));
    for (int64_t b = 0; b < spec.batch(); ++b) {
      for (int64_t t = 0; t < spec.context_lens[b]; ++t) {
        is_live[static_cast<size_t>(zero.BlockOf(b, t) * spec.block_size + t % spec.block_size)] =
            true;
      }
    }
    const size_t size = DTypeSize(zero.dtype());
    auto* data = zero.pool.data() + (static_cast<const std::byte*>(view.data) - zero.pool.data());
    for (size_t slot = 0; slot < is_live.size(); ++slot) {
      const size_t bytes = static_cast<size_t>(view.strides[1]) * size;
      if (!is_live[slot]) std::memset(data + slot * bytes, 0, bytes);
    }
  }
  ASSERT_NE(nan.pool, zero.pool);
  const PagedProblem::Outputs a = nan.Run(GetParam().Options());
  const PagedProblem::Outputs b = zero.Run(GetParam().Options());
  ASSERT_TRUE(a.status.ok()) << a.status.message();
  EXPECT_EQ(a.out.storage, b.out.storage);
  EXPECT_EQ(a.lse.storage, b.lse.storage);
  for (const double value : a.lse.Values()) EXPECT_EQ(value, value);
}

// Pools of more than 2^31 elements, of which hardly any has memory.
TEST_P(PagedMemoryTest, SparsePoolsBeyondTwoToTheThirtyOne) {
  constexpr int64_t kBlocks = int64_t{1} << 22, kBlockSize = 16, kDim = 64;
  const auto size = static_cast<int64_t>(DTypeSize(GetParam().dtype));
  const size_t bytes = static_cast<size_t>(kBlocks * kBlockSize * kDim * size);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of " << bytes << " bytes";
  PagedSpec spec;
  spec.context_lens = {40};
  spec.seqlens_q = {1};
  spec.num_kv_heads = 1;
  spec.head_dim = spec.head_dim_v = kDim;
  spec.layout = PoolLayout::kValueInKey;
  PagedProblem problem(spec, GetParam().dtype);
  const PagedProblem::Outputs expected = problem.Run(GetParam().Options());
  ASSERT_TRUE(expected.status.ok()) << expected.status.message();
  PagedInputs inputs = problem.Inputs();
  const auto block_bytes = static_cast<size_t>(kBlockSize * kDim * size);
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t block = kBlocks - 1 - i * (kBlocks / 3);
    std::memcpy(
        static_cast<std::byte*>(memory) + static_cast<size_t>(block) * block_bytes,
        problem.pool.data() + static_cast<size_t>(problem.BlockOf(0, i * kBlockSize)) * block_bytes,
        block_bytes);
    problem.block_table.Set({0, i}, static_cast<double>(block));
  }
  for (ConstTensorView* view : {&inputs.k_cache, &inputs.v_cache}) {
    *view = ConstTensorView(memory, GetParam().dtype, {kBlocks, kBlockSize, 1, kDim});
  }
  const PagedProblem::Outputs outputs = problem.Run(inputs, GetParam().Options());
  munmap(memory, bytes);
  ASSERT_TRUE(outputs.status.ok()) << outputs.status.message();
  EXPECT_EQ(outputs.out.storage, expected.out.storage);
  EXPECT_EQ(outputs.lse.storage, expected.lse.storage);
}

FLASHLANE_INSTANTIATE_RUNS(PagedMemoryTest, PagedRuns());

}  // namespace
}  // namespace flashlane::testing
