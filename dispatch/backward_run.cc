#include "dispatch/backward_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "dispatch/attention_run.h"
#include "dispatch/backward_grid.h"
#include "dispatch/bias_tiles.h"
#include "dispatch/cost.h"
#include "dispatch/exec_options.h"
#include "dispatch/judged.h"
#include "dispatch/log.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "kernels/kernels.h"
#include "threading/parallel_for.h"
#include "threading/partition.h"
#include "threading/scratch.h"

namespace flashlane {
namespace {

size_t AlignedScratch(size_t bytes) {
  constexpr size_t kAlign = threading::kScratchAlignment;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Heads like the longest per thread from which on whole heads are what threads share: the last to
// end then costs a thread at most a quarter.
constexpr int64_t kHeadsPerThread = 4;

int64_t TotalRows(const kernels::SequenceValues& ends, int64_t batch, int64_t length) {
  return ends.data != nullptr ? ends.At(batch) : batch * length;
}

// What a call computes besides its outputs: a forward's out and lse where they were not kept,
// terms of rows, and the sums where outputs are of a type too narrow for them.
class Workspace {
 public:
  Workspace(const kernels::BackwardArgs& args, DType dtype)
      : args_(args),
        element_bytes_(DTypeSize(dtype)),
        sum_bytes_(dtype == DType::kF64 ? 8 : 4),
        sums_apart_(element_bytes_ != sum_bytes_) {}

  size_t bytes() {
    kernels::BackwardArgs args = args_;
    used_ = 0;
    Assign(nullptr, &args);
    return used_;
  }

  // Lets `args` point into `base`.
  void Assign(void* base, kernels::BackwardArgs* args) {
    base_ = static_cast<uint8_t*>(base);
    used_ = 0;
    kernels::ForwardArgs& forward = args->forward;
    const int64_t heads = forward.num_heads, kv_heads = forward.num_kv_heads;
    if (!HasForward(args_)) {
      forward.out_strides = QueryStrides(heads, forward.head_dim_v);
      forward.out = TakeQueries(heads * forward.head_dim_v, element_bytes_);
      forward.lse_strides = QueryStrides(heads, 1);
      forward.lse = TakeQueries(heads, sum_bytes_);
    }
    // Offsets of RowTerms count whole structures.
    args->row_terms.strides = QueryStrides(heads, 1);
    args->row_terms.data = TakeQueries(heads, RowTermsBytes());
    args->dq_sum = args->dq;
    args->dk_sum = args->dk;
    args->dv_sum = args->dv;
    if (!sums_apart_) return;
    if (args->dq.data != nullptr) {
      args->dq_sum = {TakeQueries(heads * forward.head_dim, sum_bytes_),
                      QueryStrides(heads, forward.head_dim)};
    }
    if (args->dk.data != nullptr) {
      args->dk_sum = {TakeKeys(kv_heads * forward.head_dim, sum_bytes_),
                      KeyStrides(kv_heads, forward.head_dim)};
    }
    if (args->dv.data != nullptr) {
      args->dv_sum = {TakeKeys(kv_heads * forward.head_dim_v, sum_bytes_),
                      KeyStrides(kv_heads, forward.head_dim_v)};
    }
  }

  static bool HasForward(const kernels::BackwardArgs& args) {
    return args.forward.out != nullptr && args.forward.lse != nullptr;
  }

 private:
  // [batch, heads, rows, width]; of packed sequences [heads, all rows, width].
  kernels::RowStrides Strides(const kernels::SequenceValues& ends, int64_t length, int64_t heads,
                              int64_t width) const {
    if (ends.data != nullptr) return {0, ends.At(args_.forward.batch) * width, width};
    return {heads * length * width, length * width, width};
  }
  kernels::RowStrides QueryStrides(int64_t heads, int64_t width) const {
    return Strides(args_.forward.cu_seqlens_q, args_.forward.seqlen_q, heads, width);
  }
  kernels::RowStrides KeyStrides(int64_t heads, int64_t width) const {
    return Strides(args_.forward.cu_seqlens_k, args_.forward.seqlen_k, heads, width);
  }
  void* TakeQueries(int64_t per_row, size_t bytes) {
    const kernels::ForwardArgs& forward = args_.forward;
    return Take(TotalRows(forward.cu_seqlens_q, forward.batch, forward.seqlen_q), per_row, bytes);
  }
  void* TakeKeys(int64_t per_row, size_t bytes) {
    const kernels::ForwardArgs& forward = args_.forward;
    return Take(TotalRows(forward.cu_seqlens_k, forward.batch, forward.seqlen_k), per_row, bytes);
  }
  size_t RowTermsBytes() const {
    return sum_bytes_ == 8 ? sizeof(kernels::RowTerms<double>) : sizeof(kernels::RowTerms<float>);
  }
  void* Take(int64_t rows, int64_t per_row, size_t bytes) {
    void* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += AlignedScratch(static_cast<size_t>(rows * per_row) * bytes);
    return at;
  }

  const kernels::BackwardArgs& args_;
  const size_t element_bytes_, sum_bytes_;
  const bool sums_apart_;
  uint8_t* base_ = nullptr;
  size_t used_ = 0;
};

// Threads and their scratch for units that may run at the same time. The calling thread's is held
// from the start, so that nothing fails once outputs are being written.
class Stages {
 public:
  Stages(int threads, size_t scratch_bytes, uint64_t min_task_cost)
      : threads_(threads), min_task_cost_(min_task_cost), scratch_(scratch_bytes) {
    options_.max_threads = threads;
    options_.scratch_bytes = scratch_bytes;
    options_.caller_scratch = scratch_.data();
  }
  bool ok() const { return scratch_.ok(); }

  template <class Cost, class RunUnit>
  void Run(int64_t units, const Cost& cost, const RunUnit& run_unit) const {
    Run(options_, units, cost, run_unit);
  }
  // Of units that need none.
  template <class Cost, class RunUnit>
  void RunWithoutScratch(int64_t units, const Cost& cost, const RunUnit& run_unit) const {
    Run({threads_, 0}, units, cost, run_unit);
  }

 private:
  template <class Cost, class RunUnit>
  void Run(const threading::ParallelOptions& options, int64_t units, const Cost& cost,
           const RunUnit& run_unit) const {
    if (units == 0) return;
    const bool together = threads_ == 1 || units == 1;
    threading::Partition partition;
    if (!together) partition.Cut(units, cost, min_task_cost_);
    const auto tasks = partition.tasks();
    const auto run = [&](int64_t task, void* scratch) noexcept {
      const int64_t end = together ? units : tasks[static_cast<size_t>(task)].end;
      int64_t unit = together ? 0 : tasks[static_cast<size_t>(task)].begin;
      for (; unit < end; ++unit) run_unit(unit, scratch);
    };
    const int64_t num_tasks = together ? 1 : static_cast<int64_t>(tasks.size());
    // True: the caller's scratch is there.
    (void)threading::ParallelFor(num_tasks, options, run);
  }

  const int threads_;
  const uint64_t min_task_cost_;
  const threading::Scratch scratch_;
  threading::ParallelOptions options_;
};

// Whether threads share whole heads. They do where even the longest leaves the others enough to do:
// then nothing waits for a phase to end.
bool SharesHeads(const kernels::BackwardArgs& args, const BackwardGrid& grid, int threads) {
  if (threads == 1) return true;
  const int64_t heads = args.forward.num_kv_heads;  // of one sequence, which all cost the same
  uint64_t longest = 0, all = 0;
  for (int64_t batch = 0; batch < args.forward.batch; ++batch) {
    const uint64_t cost = grid.HeadCost(batch * heads);
    longest = std::max(longest, cost);
    all = SaturatingSum(all, SaturatingProduct(cost, static_cast<uint64_t>(heads)));
  }
  return SaturatingProduct(longest, static_cast<uint64_t>(kHeadsPerThread * threads)) <= all;
}

// Behind the kernel's scratch lie the parts of the head that a worker runs.
void RunHeads(const BackwardGrid& grid, const Stages& stages) {
  const size_t parts_at = AlignedScratch(grid.scratch_bytes());
  stages.Run(
      grid.num_heads(), [&](int64_t head) noexcept { return grid.HeadCost(head); },
      [&](int64_t head, void* scratch) noexcept {
        void* parts =
            grid.head_part_bytes() == 0 ? nullptr : static_cast<std::byte*>(scratch) + parts_at;
        grid.RunHead(head, scratch, parts);
      });
}

void RunPieces(const BackwardGrid& grid, const Stages& stages) {
  const auto prepare_cost = [&](int64_t piece) noexcept { return grid.PrepareCost(piece); };
  stages.Run(grid.num_pieces(), prepare_cost,
             [&](int64_t piece, void* scratch) noexcept { grid.Prepare(piece, scratch); });
  for (int64_t phase = 0; phase < grid.num_phases(); ++phase) {
    stages.Run(
        grid.num_pieces(), [&](int64_t piece) noexcept { return grid.RunCost(piece, phase); },
        [&](int64_t piece, void* scratch) noexcept { grid.Run(piece, phase, scratch); });
  }
  stages.RunWithoutScratch(grid.num_pieces(), prepare_cost,
                           [&](int64_t piece, void*) noexcept { grid.Finish(piece); });
}

void RunBias(const kernels::BackwardEntry& entry, const kernels::BackwardArgs& args,
             const BiasTiles& tiles, std::byte* sums, const Stages& stages) {
  const uint64_t cost =
      BackwardFlops(args) / static_cast<uint64_t>(std::max<int64_t>(tiles.units(), 1));
  stages.Run(
      tiles.units(), [&](int64_t) noexcept { return cost; },
      [&](int64_t unit, void* scratch) noexcept {
        entry.bias(args, tiles.Unit(unit, sums), scratch);
      });
  if (tiles.parts() == 1) return;
  const uint64_t elements = tiles.sum_bytes() / static_cast<size_t>(tiles.size()) / sizeof(float);
  stages.Run(
      tiles.size(), [&](int64_t) noexcept { return elements; },
      [&](int64_t tile, void* scratch) noexcept {
        entry.merge_bias(args, tiles.Tile(tile, sums), tiles.parts(), scratch);
      });
}

void RunSinks(const kernels::BackwardEntry& entry, const kernels::BackwardArgs& args,
              const Stages& stages) {
  if (args.dsinks == nullptr || entry.sinks == nullptr) return;
  constexpr uint64_t kRowCost = 1000;  // an exponential of the C library, some 20 ns
  const kernels::ForwardArgs& forward = args.forward;
  const auto rows =
      static_cast<uint64_t>(TotalRows(forward.cu_seqlens_q, forward.batch, forward.seqlen_q));
  stages.RunWithoutScratch(
      forward.num_heads, [&](int64_t) noexcept { return SaturatingProduct(rows, kRowCost); },
      [&](int64_t head, void*) noexcept { entry.sinks(args, head); });
}

// The budget of all parts together: scratch of a forward is given back before the rest begins.
Status CheckBudget(const kernels::BackwardArgs& args, bool runs_forward, uint64_t scratch,
                   int64_t workers, const ExecOptions& options) {
  if (options.max_flops != std::numeric_limits<uint64_t>::max()) {
    const uint64_t flops =
        SaturatingSum(BackwardFlops(args), runs_forward ? ForwardFlops(args.forward) : 0);
    if (flops > options.max_flops) return OverFlops(flops, options);
  }
  return scratch > options.max_scratch_bytes ? OverScratch(scratch, workers, options) : Status();
}

Status FillForward(const kernels::BackwardArgs& args, DType dtype, const ExecOptions& options) {
  ExecOptions forward = options;
  forward.kernel = Kernel::kFlash;
  forward.max_flops = forward.max_scratch_bytes = std::numeric_limits<uint64_t>::max();
  return RunForward(args.forward, dtype, forward);
}

// What a call needs besides its tensors.
struct Needs {
  bool forward_results = false;  // the kernel reads them
  bool runs_forward = false;     // and they were not kept
  size_t workspace_bytes = 0;    // for the forward's results
  bool shares_heads = false;     // threads do, and each has the parts of one
  size_t memory_bytes = 0;       // of the forward's results, the sums of bias and all parts
  size_t worker_bytes = 0;       // scratch of each
  int64_t workers = 1;
  uint64_t scratch_bytes = 0;  // of all together
};

Needs NeedsOf(const Choice& choice, const kernels::BackwardArgs& args, const BackwardGrid& grid) {
  const auto& [target, row, threads] = choice;
  const kernels::BackwardEntry entry = row->backward(target.bit);
  Needs needs;
  needs.forward_results = entry.plan(args, {}).needs_forward;
  needs.runs_forward = needs.forward_results && !Workspace::HasForward(args);
  needs.workspace_bytes = needs.forward_results ? Workspace(args, row->dtype).bytes() : 0;
  const BiasTiles bias_tiles(entry, args);
  needs.shares_heads = SharesHeads(args, grid, threads);
  needs.memory_bytes =
      needs.workspace_bytes + bias_tiles.sum_bytes() + (needs.shares_heads ? 0 : grid.part_bytes());
  needs.worker_bytes = needs.shares_heads
                           ? AlignedScratch(grid.scratch_bytes()) + grid.head_part_bytes()
                           : grid.scratch_bytes();
  needs.workers =
      std::min<int64_t>(threads, std::max<int64_t>({grid.num_pieces(), bias_tiles.units(), 1}));
  needs.scratch_bytes = SaturatingProduct(needs.worker_bytes, static_cast<uint64_t>(needs.workers));
  if (needs.runs_forward) {
    const KernelRow* forward = FindKernel(Kernel::kFlash, row->dtype);
    needs.scratch_bytes =
        std::max(needs.scratch_bytes,
                 ForwardScratchBytes(args.forward, forward->forward(target.bit), threads));
  }
  needs.scratch_bytes = SaturatingSum(needs.scratch_bytes, needs.memory_bytes);
  return needs;
}

Status Run(const Choice& choice, kernels::BackwardArgs* args, const ExecOptions& options) {
  const KernelRow& row = *choice.row;
  const Target& target = choice.target;
  const kernels::BackwardEntry entry = row.backward(target.bit);
  BackwardGrid grid(*args, entry);
  if (!grid.ok()) return OutOfLists();
  const Needs needs = NeedsOf(choice, *args, grid);
  const size_t bytes = needs.memory_bytes;
  if (Status status =
          CheckBudget(*args, needs.runs_forward, needs.scratch_bytes, needs.workers, options);
      !status.ok()) {
    return status;
  }
  if (DebugLogEnabled()) {
    LogChoice(row, target, entry.unit,
              std::to_string(choice.threads) + " threads, " + std::to_string(grid.num_pieces()) +
                  " pieces, scratch " + std::to_string(needs.worker_bytes) + " bytes, workspace " +
                  std::to_string(bytes) + " bytes");
  }
  const BiasTiles bias_tiles(entry, *args);
  const threading::Scratch memory(bytes);
  if (!memory.ok()) return OutOfScratch(bytes);
  const kernels::BackwardArgs asked = *args;
  if (needs.forward_results) Workspace(asked, row.dtype).Assign(memory.data(), args);
  std::byte* const bias_sums = static_cast<std::byte*>(memory.data()) + needs.workspace_bytes;
  if (!needs.shares_heads) grid.set_parts(bias_sums + bias_tiles.sum_bytes());
  if (needs.runs_forward) {
    if (Status status = FillForward(*args, row.dtype, options); !status.ok()) return status;
  }
  const Stages stages(choice.threads, needs.worker_bytes, MinTaskCost(row, target.bit));
  if (!stages.ok()) return OutOfScratch(needs.worker_bytes);
  if (needs.shares_heads) {
    RunHeads(grid, stages);
  } else {
    RunPieces(grid, stages);
  }
  RunBias(entry, *args, bias_tiles, bias_sums, stages);
  RunSinks(entry, *args, stages);
  return {};
}

}  // namespace

Status RunBackward(kernels::BackwardArgs args, DType dtype, const ExecOptions& options) {
  Choice choice;
  if (Status s = Choose(dtype, options, Operation::kBackward, &choice); !s.ok()) return s;
  args.forward.accumulator = static_cast<kernels::Accumulator>(options.accumulator);
  return Run(choice, &args, options);
}

Status BackwardScratchBytes(const kernels::BackwardArgs& args, DType dtype,
                            const ExecOptions& options, uint64_t* bytes) {
  Choice choice;
  if (Status s = Choose(dtype, options, Operation::kBackward, &choice); !s.ok()) return s;
  const kernels::BackwardEntry entry = choice.row->backward(choice.target.bit);
  const BackwardGrid grid(args, entry);
  if (!grid.ok()) return OutOfLists();
  *bytes = NeedsOf(choice, args, grid).scratch_bytes;
  return {};
}

}  // namespace flashlane
