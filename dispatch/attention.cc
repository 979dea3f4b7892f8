// The path of every call, top to bottom: check, resolve, look up, plan, cut, run.

#include "flashlane/attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "dispatch/attention_run.h"
#include "dispatch/contract.h"
#include "dispatch/cost.h"
#include "dispatch/exec_options.h"
#include "dispatch/judged.h"
#include "dispatch/log.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "dispatch/tile_grid.h"
#include "dispatch/view.h"
#include "flashlane/paged.h"
#include "kernels/kernels.h"
#include "threading/parallel_for.h"
#include "threading/partition.h"
#include "threading/scratch.h"

namespace flashlane {

Status OutOfScratch(uint64_t bytes) {
  return {StatusCode::kOutOfMemory,
          "scratch: " + std::to_string(bytes) + " bytes could not be allocated"};
}

Status OverFlops(uint64_t flops, const ExecOptions& options) {
  return {StatusCode::kBudgetExceeded, "max_flops: the call needs " + std::to_string(flops) +
                                           ", above " + std::to_string(options.max_flops)};
}

Status OverScratch(uint64_t bytes, int64_t workers, const ExecOptions& options) {
  return {StatusCode::kBudgetExceeded, "max_scratch_bytes: the call needs " +
                                           std::to_string(bytes) + " (" + std::to_string(workers) +
                                           " workers), above " +
                                           std::to_string(options.max_scratch_bytes)};
}

namespace {

// Of `units` that are alike and cost `cost` together: as many tasks as are worth spawning.
int64_t TasksWorthSpawning(uint64_t cost, int64_t units) {
  const auto worthwhile = static_cast<int64_t>(cost / kMinTaskCost);
  return std::clamp<int64_t>(worthwhile, 1, std::max<int64_t>(units, 1));
}

uint64_t ScratchBytes(const TileGrid& grid, int64_t workers) {
  return SaturatingSum(SaturatingProduct(grid.scratch_bytes(), static_cast<uint64_t>(workers)),
                       grid.partial_bytes());
}

Status CheckBudget(const kernels::ForwardArgs& args, const TileGrid& grid, int64_t workers,
                   const ExecOptions& options) {
  if (options.max_flops != std::numeric_limits<uint64_t>::max()) {
    const uint64_t flops = ForwardFlops(args);
    if (flops > options.max_flops) return OverFlops(flops, options);
  }
  const uint64_t scratch = ScratchBytes(grid, workers);
  return scratch > options.max_scratch_bytes ? OverScratch(scratch, workers, options) : Status();
}

// The results of split keys become those of their sequences.
Status MergeSplits(const TileGrid& grid, int threads) {
  const int64_t units = grid.num_merges();
  if (units == 0) return {};
  const uint64_t cost =
      SaturatingProduct(grid.partial_bytes() / sizeof(float), kMergeElementCost);  // of all units
  const int64_t tasks = TasksWorthSpawning(cost, units);
  const auto run = [&](int64_t task, void*) noexcept {
    for (int64_t unit = units * task / tasks; unit < units * (task + 1) / tasks; ++unit) {
      grid.Merge(unit);
    }
  };
  if (threading::ParallelFor(tasks, {threads, 0}, run)) return {};
  return {StatusCode::kOutOfMemory, "scratch: memory could not be allocated"};
}

Status RunTiles(const kernels::ForwardEntry& entry, const kernels::ForwardArgs& args,
                TileGrid* grid, const Choice& choice, const ExecOptions& options) {
  const int threads = choice.threads;
  const int64_t workers = std::min<int64_t>(threads, grid->size());
  if (Status status = CheckBudget(args, *grid, workers, options); !status.ok()) return status;
  const threading::Scratch partials(grid->partial_bytes());
  if (!partials.ok()) {
    return OutOfScratch(grid->partial_bytes());
  }
  grid->set_partials(partials.data());

  threading::Partition partition;
  if (workers <= 1) {
    partition.Cut(
        1, [](int64_t) noexcept { return uint64_t{1}; }, 1);  // one task, whatever its cost
  } else {
    partition.Cut(
        grid->size(), [&](int64_t unit) noexcept { return TileCost(args, (*grid)[unit]); },
        MinTaskCost(*choice.row, choice.target.bit));
  }
  const auto tasks = partition.tasks();
  const auto run = [&](int64_t task, void* scratch) noexcept {
    const int64_t end = workers <= 1 ? grid->size() : tasks[task].end;
    for (int64_t unit = tasks[task].begin; unit < end; ++unit) {
      const kernels::Tile tile = (*grid)[unit];
      (tile.streams ? entry.streams.run : entry.run)(args, tile, scratch);
    }
  };
  const threading::ParallelOptions parallel{threads, grid->scratch_bytes()};
  if (!threading::ParallelFor(static_cast<int64_t>(tasks.size()), parallel, run)) {
    return OutOfScratch(grid->scratch_bytes());
  }
  return MergeSplits(*grid, threads);
}

}  // namespace

void LogChoice(const KernelRow& row, const Target& target, const char* unit,
               const std::string& how) {
  std::string skipped;
  for (const Target& other : SupportedTargetList()) {
    if (other.bit == target.bit) break;
    skipped += std::string(" ") + other.name;
  }
  LogDebug(
      std::string(row.name) + "/" + DTypeName(row.dtype) + " on " +
      (row.vectorised ? std::string(target.name) + " (" + unit + ")" : "scalar code") + ", " + how +
      (skipped.empty() ? ""
                       : "; better targets left out because another was asked for:" + skipped));
}

uint64_t ForwardScratchBytes(const kernels::ForwardArgs& args, const kernels::ForwardEntry& entry,
                             int threads) {
  if (args.batch == 0 || args.seqlen_q == 0) return 0;
  const TileGrid grid(args, entry, threads);
  return grid.ok() ? ScratchBytes(grid, std::min<int64_t>(threads, grid.size())) : 0;
}

Status Choose(DType dtype, const ExecOptions& options, Operation operation, Choice* choice) {
  if (Status status = ResolveTarget(options.target, &choice->target); !status.ok()) return status;
  choice->row = FindKernel(options.kernel, dtype, operation);
  if (choice->row == nullptr) {
    return Status::Unsupported(std::string("kernel: ") + KernelName(options.kernel, operation) +
                               " is no attention kernel for dtype " + DTypeName(dtype));
  }
  if (Status status = CheckAccumulator(options); !status.ok()) return status;
  return ThreadLimit(options, &choice->threads);
}

Status OutOfLists() {
  return {StatusCode::kOutOfMemory, "scratch: the list of sequences could not be allocated"};
}

Status ForwardScratchBytes(const kernels::ForwardArgs& args, DType dtype,
                           const ExecOptions& options, Operation operation, uint64_t* bytes) {
  Choice choice;
  if (Status s = Choose(dtype, options, operation, &choice); !s.ok()) return s;
  *bytes = ForwardScratchBytes(args, choice.row->forward(choice.target.bit), choice.threads);
  return {};
}

Status RunForward(kernels::ForwardArgs args, DType dtype, const ExecOptions& options,
                  Operation operation) {
  Choice choice;
  if (Status s = Choose(dtype, options, operation, &choice); !s.ok()) return s;

  args.accumulator = static_cast<kernels::Accumulator>(options.accumulator);
  if (args.batch == 0 || args.seqlen_q == 0) return {};

  const kernels::ForwardEntry entry = choice.row->forward(choice.target.bit);
  TileGrid grid(args, entry, choice.threads);
  if (!grid.ok()) return OutOfLists();
  if (DebugLogEnabled()) {
    LogChoice(*choice.row, choice.target, entry.unit,
              std::to_string(choice.threads) + " threads, tiles of " +
                  std::to_string(grid.plan().block_rows) + " rows, scratch " +
                  std::to_string(grid.scratch_bytes()) + " bytes");
  }
  return RunTiles(entry, args, &grid, choice, options);
}

namespace {

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
  const int64_t tasks = TasksWorthSpawning(SaturatingProduct(flops / 3, kMergeElementCost), rows);
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
    return RunForward(ResolveForward(inputs, params, outputs), inputs.q.dtype, options);
  });
}

Status AttentionVarlen(const VarlenInputs& inputs, const AttentionParams& params,
                       const AttentionOutputs& outputs, const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckVarlen(inputs, params, outputs); !status.ok()) return status;
    return RunForward(ResolveVarlen(inputs, params, outputs), inputs.q.dtype, options);
  });
}

Status AttentionPaged(const PagedInputs& inputs, const AttentionParams& params,
                      const AttentionOutputs& outputs, const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckPaged(inputs, params, outputs); !status.ok()) return status;
    return RunForward(ResolvePaged(inputs, params, outputs), inputs.q.dtype, options,
                      Operation::kPaged);
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
