// The path of every call, top to bottom: check, resolve, look up, plan, cut, run.

#include "flashlane/attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "dispatch/contract.h"
#include "dispatch/cost.h"
#include "dispatch/exec_options.h"
#include "dispatch/log.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "dispatch/view.h"
#include "kernels/kernels.h"
#include "threading/parallel_for.h"
#include "threading/partition.h"
#include "threading/scratch.h"

namespace flashlane {
namespace {

// The tiles of a call, numbered so that tiles of one kv head are neighbours.
class TileGrid {
 public:
  // `tiles_before` has room for batch + 1 numbers where sequences differ in length; else null.
  TileGrid(const kernels::ForwardArgs& args, int64_t tile_rows, int64_t* tiles_before)
      : args_(args), tile_rows_(tile_rows), tiles_before_(tiles_before) {
    if (tiles_before_ == nullptr) return;
    tiles_before_[0] = 0;
    for (int64_t b = 0; b < args.batch; ++b) {
      tiles_before_[b + 1] = tiles_before_[b] + args.num_kv_heads * TilesPerHead(b);
    }
  }

  int64_t size() const {
    return tiles_before_ == nullptr ? args_.batch * args_.num_kv_heads * TilesPerHead(0)
                                    : tiles_before_[args_.batch];
  }

  kernels::Tile operator[](int64_t unit) const {
    int64_t batch = 0;
    if (tiles_before_ == nullptr) {
      batch = unit / (args_.num_kv_heads * TilesPerHead(0));
      unit -= batch * args_.num_kv_heads * TilesPerHead(0);
    } else {
      batch =
          std::upper_bound(tiles_before_, tiles_before_ + args_.batch, unit) - tiles_before_ - 1;
      unit -= tiles_before_[batch];
    }
    const int64_t tiles = TilesPerHead(batch);  // not 0: an empty sequence has no units
    const int64_t row_begin = unit % tiles * tile_rows_;
    return {batch, unit / tiles, row_begin, std::min(RowsOf(batch), row_begin + tile_rows_)};
  }

 private:
  int64_t RowsOf(int64_t batch) const {
    return kernels::Sequence::Of(args_, batch).seqlen_q * args_.group();
  }
  int64_t TilesPerHead(int64_t batch) const {
    return (RowsOf(batch) + tile_rows_ - 1) / tile_rows_;
  }

  const kernels::ForwardArgs& args_;
  const int64_t tile_rows_;
  int64_t* const tiles_before_;
};

Status OverFlops(uint64_t flops, const ExecOptions& options) {
  return {StatusCode::kBudgetExceeded, "max_flops: the call needs " + std::to_string(flops) +
                                           ", above " + std::to_string(options.max_flops)};
}

Status CheckBudget(const kernels::ForwardArgs& args, const kernels::TilePlan& plan, int64_t workers,
                   const ExecOptions& options) {
  if (options.max_flops != std::numeric_limits<uint64_t>::max()) {
    const uint64_t flops = ForwardFlops(args);
    if (flops > options.max_flops) return OverFlops(flops, options);
  }
  const uint64_t scratch = SaturatingProduct(plan.scratch_bytes, static_cast<uint64_t>(workers));
  if (scratch > options.max_scratch_bytes) {
    return {StatusCode::kBudgetExceeded, "max_scratch_bytes: the call needs " +
                                             std::to_string(scratch) + " (" +
                                             std::to_string(workers) + " workers), above " +
                                             std::to_string(options.max_scratch_bytes)};
  }
  return {};
}

// Queries of all sequences.
int64_t NumQueries(const kernels::ForwardArgs& args) {
  return args.cu_seqlens_q.data != nullptr ? args.cu_seqlens_q.At(args.batch)
                                           : args.batch * args.seqlen_q;
}

struct Resources {
  kernels::TilePlan plan;
  int threads;
};

Status RunTiles(const kernels::ForwardEntry& entry, const kernels::ForwardArgs& args,
                const Resources& resources, const ExecOptions& options) {
  const auto& [plan, threads] = resources;
  // Of unequal sequences, as many as there would be if all were as long as the longest.
  const int64_t sequences = NumQueries(args) / std::max<int64_t>(args.seqlen_q, 1);
  const threading::TileShape shape{args.seqlen_q * args.group(), plan.block_rows, plan.row_granule,
                                   std::max<int64_t>(sequences, 1) * args.num_kv_heads};
  const bool varlen = args.cu_seqlens_q.data != nullptr;
  threading::Scratch tiles_before(varlen ? static_cast<size_t>(args.batch + 1) * sizeof(int64_t)
                                         : 0);
  if (!tiles_before.ok()) {
    return {StatusCode::kOutOfMemory, "scratch: the list of sequences could not be allocated"};
  }
  const TileGrid grid(args, threading::RowsPerTile(shape, threads),
                      static_cast<int64_t*>(tiles_before.data()));
  const int64_t workers = std::min<int64_t>(threads, grid.size());
  if (Status status = CheckBudget(args, plan, workers, options); !status.ok()) return status;

  threading::Partition partition;
  if (workers <= 1) {
    partition.Cut(
        1, [](int64_t) noexcept { return uint64_t{1}; }, 1);  // one task, whatever its cost
  } else {
    partition.Cut(
        grid.size(), [&](int64_t unit) noexcept { return TileCost(args, grid[unit]); },
        kMinTaskCost);
  }
  const auto tasks = partition.tasks();
  const auto run = [&](int64_t task, void* scratch) noexcept {
    const int64_t end = workers <= 1 ? grid.size() : tasks[task].end;
    for (int64_t unit = tasks[task].begin; unit < end; ++unit) entry.run(args, grid[unit], scratch);
  };
  const threading::ParallelOptions parallel{threads, plan.scratch_bytes};
  if (threading::ParallelFor(static_cast<int64_t>(tasks.size()), parallel, run)) return {};
  return {StatusCode::kOutOfMemory,
          "scratch: " + std::to_string(plan.scratch_bytes) + " bytes could not be allocated"};
}

void LogChoice(const KernelRow& row, const Target& target, const kernels::ForwardEntry& entry,
               const Resources& resources) {
  std::string skipped;
  for (const Target& other : SupportedTargetList()) {
    if (other.bit == target.bit) break;
    skipped += std::string(" ") + other.name;
  }
  const auto& [plan, threads] = resources;
  LogDebug(
      std::string(row.name) + "/" + DTypeName(row.dtype) + " on " +
      (row.vectorised ? std::string(target.name) + " (" + entry.unit + ")" : "scalar code") + ", " +
      std::to_string(threads) + " threads, tiles of " + std::to_string(plan.block_rows) +
      " rows, scratch " + std::to_string(plan.scratch_bytes) + " bytes" +
      (skipped.empty() ? ""
                       : "; better targets left out because another was asked for:" + skipped));
}

// Everything after the contract.
Status Run(kernels::ForwardArgs args, DType dtype, const ExecOptions& options) {
  Target target;
  if (Status status = ResolveTarget(options.target, &target); !status.ok()) return status;
  const KernelRow* row = FindKernel(options.kernel, dtype);
  if (row == nullptr) {
    return Status::Unsupported(std::string("kernel: ") + KernelName(options.kernel) +
                               " is no attention kernel for dtype " + DTypeName(dtype));
  }
  if (options.accumulator > Accumulator::kF64) {
    return Status::InvalidArgument(
        "accumulator: " + std::to_string(static_cast<int>(options.accumulator)) +
        " is not one of kInput, kF32, kF64");
  }
  int threads = 1;
  if (Status status = ThreadLimit(options, &threads); !status.ok()) return status;

  args.accumulator = static_cast<kernels::Accumulator>(options.accumulator);
  if (args.batch == 0 || args.seqlen_q == 0) return {};

  const kernels::ForwardEntry entry = row->forward(target.bit);
  const kernels::TilePlan plan = entry.plan(args);
  if (DebugLogEnabled()) LogChoice(*row, target, entry, {plan, threads});
  return RunTiles(entry, args, {plan, threads}, options);
}

Status RunMerge(const kernels::MergeArgs& args, const PartialAttention& a,
                const ExecOptions& options) {
  Target target;
  if (Status status = ResolveTarget(options.target, &target); !status.ok()) return status;
  int threads = 1;
  if (Status status = ThreadLimit(options, &threads); !status.ok()) return status;
  const uint64_t flops = MergeFlops(args, a.out.shape[0]);
  if (flops > options.max_flops) return OverFlops(flops, options);

  const kernels::MergeEntry entry = FindMerge(a.out.dtype)->merge(target.bit);
  const int64_t rows = a.out.shape[0] * args.num_heads * args.seqlen_q;
  // Rows are alike: as many tasks as are worth spawning.
  const auto worthwhile =
      static_cast<int64_t>(SaturatingProduct(flops / 3, kMergeElementCost) / kMinTaskCost);
  const int64_t tasks = std::clamp<int64_t>(worthwhile, 1, std::max<int64_t>(rows, 1));
  const auto run = [&](int64_t task, void*) noexcept {
    entry.run(args, rows * task / tasks, rows * (task + 1) / tasks);
  };
  if (threading::ParallelFor(tasks, {threads, 0}, run)) return {};
  return {StatusCode::kOutOfMemory, "scratch: memory could not be allocated"};
}

}  // namespace

Status Attention(const AttentionInputs& inputs, const AttentionParams& params,
                 const AttentionOutputs& outputs, const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckForward(inputs, params, outputs); !status.ok()) return status;
    return Run(ResolveForward(inputs, params, outputs), inputs.q.dtype, options);
  });
}

Status AttentionVarlen(const VarlenInputs& inputs, const AttentionParams& params,
                       const AttentionOutputs& outputs, const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckVarlen(inputs, params, outputs); !status.ok()) return status;
    return Run(ResolveVarlen(inputs, params, outputs), inputs.q.dtype, options);
  });
}

Status MergeStates(const PartialAttention& a, const PartialAttention& b,
                   const AttentionOutputs& outputs, const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckMerge(a, b, outputs); !status.ok()) return status;
    if (NumElements(a.out) == 0) return Status();
    return RunMerge(ResolveMerge(a, b, outputs), a, options);
  });
}

}  // namespace flashlane
