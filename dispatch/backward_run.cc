// Stand-in until bwd-kernel is merged.
#include "dispatch/backward_run.h"

#include <algorithm>
#include <limits>
#include <string>

#include "dispatch/cost.h"
#include "dispatch/exec_options.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "threading/parallel_for.h"

namespace flashlane {

Status RunBackward(kernels::BackwardArgs args, DType dtype, const ExecOptions& options) {
  Target target;
  if (Status status = ResolveTarget(options.target, &target); !status.ok()) return status;
  const KernelRow* row = FindKernel(options.kernel, dtype, Operation::kBackward);
  if (row == nullptr) {
    return Status::Unsupported(std::string("kernel: ") +
                               KernelName(options.kernel, Operation::kBackward) +
                               " is no attention kernel for dtype " + DTypeName(dtype));
  }
  if (options.accumulator > Accumulator::kF64) {
    return Status::InvalidArgument(
        "accumulator: " + std::to_string(static_cast<int>(options.accumulator)) +
        " is not one of kInput, kF32, kF64");
  }
  int threads = 1;
  if (Status status = ThreadLimit(options, &threads); !status.ok()) return status;
  if (options.max_flops != std::numeric_limits<uint64_t>::max()) {
    const uint64_t flops = BackwardFlops(args.forward);
    if (flops > options.max_flops) {
      return {StatusCode::kBudgetExceeded, "max_flops: the call needs " + std::to_string(flops) +
                                               ", above " + std::to_string(options.max_flops)};
    }
  }
  args.forward.accumulator = static_cast<kernels::Accumulator>(options.accumulator);
  const kernels::BackwardEntry entry = row->backward(target.bit);
  const auto& f = args.forward;
  size_t scratch = 0;
  for (int64_t b = 0; b < std::max<int64_t>(f.batch, 1); ++b) {
    if (b < f.batch)
      scratch = std::max(scratch, entry.plan(args, kernels::Sequence::Of(f, b)).scratch_bytes);
  }
  const auto run = [&](int64_t task, void* memory) noexcept {
    const int64_t b = task / f.num_kv_heads, h = task % f.num_kv_heads;
    const auto s = kernels::Sequence::Of(f, b);
    const int64_t keys =
        f.cu_seqlens_k.data ? f.cu_seqlens_k.At(b + 1) - f.cu_seqlens_k.At(b) : f.seqlen_k;
    kernels::Tile tile;
    tile.batch = b;
    tile.kv_head = h;
    tile.row_end = keys;
    entry.clear(args, tile);
    entry.run(args, {b, h, 0, s.seqlen_q, 0, s.k_len}, memory);
  };
  if (scratch > options.max_scratch_bytes)
    return {StatusCode::kBudgetExceeded, "max_scratch_bytes: the call needs more"};
  if (!threading::ParallelFor(f.batch * f.num_kv_heads, {threads, scratch}, run))
    return {StatusCode::kOutOfMemory, ""};
  if (args.dsinks != nullptr) {
    for (int64_t h = 0; h < f.num_heads; ++h) entry.sinks(args, h);
  }
  if (args.dbias != nullptr) {
    kernels::BiasTile tile;
    const int64_t nb = args.dbias_batch ? f.batch : 1, nh = args.dbias_head ? f.num_heads : 1;
    tile.row_end = args.dbias_row ? f.seqlen_q : 1;
    tile.col_end = args.dbias_col ? f.seqlen_k : 1;
    if (!threading::ParallelFor(nb * nh, {1, scratch}, [&](int64_t t, void* memory) noexcept {
          kernels::BiasTile one = tile;
          one.batch = t / nh;
          one.head = t % nh;
          entry.bias(args, one, memory);
        })) {
      return {StatusCode::kOutOfMemory, ""};
    }
  }
  return {};
}

}  // namespace flashlane
