// The path of the calls of flashlane/kv_cache.h: check, resolve, look up, cut, run.

#include "flashlane/kv_cache.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "dispatch/attention_run.h"
#include "dispatch/contract_kv_cache.h"
#include "dispatch/cost.h"
#include "dispatch/exec_options.h"
#include "dispatch/log.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "threading/parallel_for.h"

namespace flashlane {
namespace {

// In the unit of TileCost, from 0.1 ns per byte: some 10 GB/s, what one core copies in memory.
constexpr uint64_t kCopyByteCost = 5;

// A task's share of an item, where items are that large: below this a copy is mostly its call.
constexpr int64_t kMinShareBytes = 512;
constexpr int64_t kCacheLineBytes = 64;

// How an item's elements are cut into tasks; what is written does not depend on it.
struct Cut {
  int64_t elements;  // of an item
  int64_t line;      // elements that stay together
  int64_t tasks;

  int64_t Begin(int64_t task) const {
    const int64_t lines = (elements + line - 1) / line;
    return std::min(elements, lines * task / tasks * line);
  }
};

Cut CutItems(int64_t items, int64_t elements, int64_t element_bytes, int threads) {
  const int64_t bytes = elements * element_bytes;
  const uint64_t cost = SaturatingProduct(
      SaturatingProduct(static_cast<uint64_t>(items), static_cast<uint64_t>(bytes)), kCopyByteCost);
  // Twice as many as threads, so that one that comes late holds up the others by half its share.
  const int64_t useful = threads == 1 ? 1 : std::min<int64_t>(2 * threads, bytes / kMinShareBytes);
  const auto worthwhile = static_cast<int64_t>(cost / kMinTaskCost);
  return {elements, kCacheLineBytes / element_bytes,
          std::max<int64_t>(1, std::min(useful, worthwhile))};
}

// `code`: what runs, for the log.
template <typename Entry, typename Args>
Status RunCopies(const KernelRow& row, const Entry& entry, const Args& args,
                 const ExecOptions& options, const char* code = "scalar code") {
  int threads = 1;
  if (Status status = ThreadLimit(options, &threads); !status.ok()) return status;
  if (args.num_items() == 0) return {};

  const Cut cut = CutItems(args.num_items(), args.item_size(),
                           static_cast<int64_t>(DTypeSize(row.dtype)), threads);
  if (DebugLogEnabled()) {
    LogDebug(std::string(row.name) + "/" + DTypeName(row.dtype) + " on " + code + ", " +
             std::to_string(std::min<int64_t>(threads, cut.tasks)) + " threads");
  }
  const auto run = [&](int64_t task, void*) noexcept {
    entry.run(args, cut.Begin(task), cut.Begin(task + 1));
  };
  if (threading::ParallelFor(cut.tasks, {threads, 0}, run)) return {};
  return {StatusCode::kOutOfMemory, "scratch: memory could not be allocated"};
}

Status RunBlocks(const char* kernel, const ConstKvPools& src, const KvPools& dst,
                 const ConstTensorView& block_mapping, const ExecOptions& options) {
  Target target;  // the same code on all, but a wrong name is as wrong here as anywhere
  if (Status status = ResolveTarget(options.target, &target); !status.ok()) return status;
  const KernelRow& row = *FindKernel(kernel, dst.k_cache.dtype);
  return RunCopies(row, row.kv_blocks(), ResolveKvBlocks(src, dst, block_mapping), options);
}

Status RunAppend(kernels::KvAppendArgs args, DType dtype, const ExecOptions& options) {
  Target target;
  if (Status status = ResolveTarget(options.target, &target); !status.ok()) return status;
  const KernelRow& row = *FindKernel("kv_append", dtype);
  if (args.rotation.tables.cos == nullptr) return RunCopies(row, row.kv_append(), args, options);
  const uint64_t flops = SaturatingProduct(static_cast<uint64_t>(args.num_tokens * args.k.heads),
                                           static_cast<uint64_t>(6 * args.rotation.tables.pairs));
  if (flops > options.max_flops) return OverFlops(flops, options);
  args.rotation.rotate = FindKernel("rope", dtype)->rope(target.bit).rotate;
  return RunCopies(row, row.kv_append(), args, options, target.name);
}

}  // namespace

Status KvAppend(const KvAppendInputs& inputs, const KvPools& pools,
                const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckKvAppend(inputs, pools); !status.ok()) return status;
    return RunAppend(ResolveKvAppend(inputs, pools), pools.k_cache.dtype, options);
  });
}

Status KvCopyBlocks(const KvPools& pools, const ConstTensorView& block_mapping,
                    const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckKvCopyBlocks(pools, block_mapping); !status.ok()) return status;
    return RunBlocks("kv_copy_blocks", {pools.k_cache, pools.v_cache}, pools, block_mapping,
                     options);
  });
}

Status KvSwapBlocks(const ConstKvPools& src, const KvPools& dst,
                    const ConstTensorView& block_mapping, const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckKvSwapBlocks(src, dst, block_mapping); !status.ok()) return status;
    return RunBlocks("kv_swap_blocks", src, dst, block_mapping, options);
  });
}

}  // namespace flashlane
