// The path of the calls of flashlane/rope.h: check, resolve, look up, cut, run.

#include "flashlane/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/attention_run.h"
#include "dispatch/contract_rope.h"
#include "dispatch/cost.h"
#include "dispatch/exec_options.h"
#include "dispatch/log.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "kernels/rope_table.h"
#include "threading/parallel_for.h"

namespace flashlane {
namespace {

// In the unit of TileCost. A byte that is read and written costs 0.04 ns: 50 GB/s, on Zen 5.
constexpr uint64_t kMoveByteCost = 2;
// An element of both tables: a cosine and a sine, 20 ns each.
constexpr uint64_t kTableElementCost = 2000;

kernels::FrequencyOutput OutputOf(const TensorView& inv_freq) {
  return {static_cast<double*>(inv_freq.data), StrideOf(inv_freq, 0), inv_freq.shape[0]};
}

void FillFrequencies(double theta, const RopeScaling& scaling,
                     const kernels::FrequencyOutput& out) {
  using Type = RopeScaling::Type;
  const double factor = scaling.factor;
  const auto original = static_cast<double>(scaling.original_max_position);
  switch (scaling.type) {
    case Type::kNone:
      return kernels::PlainFrequencies(theta, out);
    case Type::kLinear:
      kernels::PlainFrequencies(theta, out);
      for (int64_t i = 0; i < out.pairs; ++i) out[i] /= factor;
      return;
    case Type::kNtk:
      return kernels::PlainFrequencies(kernels::StretchedTheta(theta, factor, out.rotary_dim()),
                                       out);
    case Type::kDynamicNtk: {
      const double length = std::max(static_cast<double>(scaling.seqlen), original);
      const double stretch = factor * length / original - (factor - 1.0);
      return kernels::PlainFrequencies(kernels::StretchedTheta(theta, stretch, out.rotary_dim()),
                                       out);
    }
    case Type::kYarn:
      return kernels::YarnFrequencies(
          {theta, factor, original, scaling.beta_fast, scaling.beta_slow, scaling.truncate}, out);
    case Type::kLlama3:
      return kernels::Llama3Frequencies(
          {theta, factor, original, scaling.low_freq_factor, scaling.high_freq_factor}, out);
  }
}

Status FrequencyOverflow(double theta) {
  return Status::InvalidArgument("theta: " + std::to_string(theta) +
                                 " with this scaling gives frequencies that are not finite");
}

double AttentionFactor(const RopeScaling& scaling) {
  if (scaling.type != RopeScaling::Type::kYarn) return 1.0;
  if (scaling.attention_factor.has_value()) return *scaling.attention_factor;
  const auto sharpened = [&](double mscale) {
    return scaling.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scaling.factor) + 1.0;
  };
  const double mscale = scaling.mscale.value_or(0.0);
  const double all_dim = scaling.mscale_all_dim.value_or(0.0);
  if (mscale == 0.0 || all_dim == 0.0) return sharpened(1.0);
  return sharpened(mscale) / sharpened(all_dim);
}

uint64_t Elements(const kernels::RopeArgs& args, const kernels::RopeOperand& operand,
                  int64_t width) {
  return static_cast<uint64_t>(args.batch * args.seqlen * operand.num_heads * width);
}

// Dimensions of a head that are read and written.
int64_t WidthMoved(const kernels::RopeArgs& args, const kernels::RopeOperand& operand) {
  return operand.x == operand.out ? 2 * args.tables.pairs : operand.head_dim;
}

uint64_t RopeFlops(const kernels::RopeArgs& args) {
  return SaturatingProduct(3, Elements(args, args.q, 2 * args.tables.pairs) +
                                  Elements(args, args.k, 2 * args.tables.pairs));
}

uint64_t BytesMoved(const kernels::RopeArgs& args, DType dtype) {
  return (Elements(args, args.q, WidthMoved(args, args.q)) +
          Elements(args, args.k, WidthMoved(args, args.k))) *
         DTypeSize(dtype);
}

int64_t RopeTasks(const kernels::RopeArgs& args, uint64_t bytes) {
  const uint64_t cost = SaturatingProduct(bytes, kMoveByteCost);
  return std::clamp<int64_t>(static_cast<int64_t>(cost / kMinTaskCost), 1, args.num_items());
}

Status RunRope(kernels::RopeArgs args, DType dtype, const ExecOptions& options) {
  Target target;
  if (Status status = ResolveTarget(options.target, &target); !status.ok()) return status;
  int threads = 1;
  if (Status status = ThreadLimit(options, &threads); !status.ok()) return status;
  if (args.num_items() == 0) return {};
  if (const uint64_t flops = RopeFlops(args); flops > options.max_flops) {
    return OverFlops(flops, options);
  }
  const KernelRow& row = *FindKernel("rope", dtype);
  const kernels::RopeEntry entry = row.rope(target.bit);
  const int64_t items = args.num_items();
  const uint64_t bytes = BytesMoved(args, dtype);
  const int64_t tasks = threads == 1 ? 1 : RopeTasks(args, bytes);
  args.prefetches = bytes > static_cast<uint64_t>(kernels::kRopeCachedBytes);
  if (DebugLogEnabled()) {
    LogDebug(std::string(row.name) + "/" + DTypeName(dtype) + " on " + target.name + ", " +
             std::to_string(std::min<int64_t>(threads, tasks)) + " threads");
  }
  const auto run = [&](int64_t task, void*) noexcept {
    entry.run(args, items * task / tasks, items * (task + 1) / tasks);
  };
  if (threading::ParallelFor(tasks, {threads, 0}, run)) return {};
  return {StatusCode::kOutOfMemory, "scratch: memory could not be allocated"};
}

Status RunTable(const kernels::RopeTableArgs& args, const TensorView& cos,
                const ExecOptions& options) {
  int threads = 1;
  if (Status status = ThreadLimit(options, &threads); !status.ok()) return status;
  const int64_t rows = cos.shape[0];
  if (NumElements(cos) == 0) return {};
  const uint64_t cost =
      SaturatingProduct(static_cast<uint64_t>(NumElements(cos)), kTableElementCost);
  const int64_t tasks = std::clamp<int64_t>(static_cast<int64_t>(cost / kMinTaskCost), 1, rows);
  const auto run = [&](int64_t task, void*) noexcept {
    (cos.dtype == DType::kF64
         ? kernels::FillRopeTable<double>
         : kernels::FillRopeTable<float>)(args, rows * task / tasks, rows * (task + 1) / tasks);
  };
  if (threading::ParallelFor(tasks, {threads, 0}, run)) return {};
  return {StatusCode::kOutOfMemory, "scratch: memory could not be allocated"};
}

}  // namespace

Status RopeInverseFrequencies(double theta, const RopeScaling& scaling, const TensorView& inv_freq,
                              double* attention_factor) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckRopeFrequencies(theta, scaling, inv_freq); !status.ok()) {
      return status;
    }
    // Apart from the output, which a refusal leaves as it was.
    std::vector<double> made(static_cast<size_t>(inv_freq.shape[0]));
    const auto pairs = static_cast<int64_t>(made.size());
    FillFrequencies(theta, scaling, {made.data(), 1, pairs});
    for (const double value : made) {
      if (!std::isfinite(value)) return FrequencyOverflow(theta);
    }
    const kernels::FrequencyOutput out = OutputOf(inv_freq);
    for (int64_t i = 0; i < pairs; ++i) out[i] = made[static_cast<size_t>(i)];
    if (attention_factor != nullptr) *attention_factor = AttentionFactor(scaling);
    return Status();
  });
}

Status RopeTable(const RopeTableInputs& inputs, const RopeTableOutputs& outputs,
                 const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckRopeTable(inputs, outputs); !status.ok()) return status;
    return RunTable(ResolveRopeTable(inputs, outputs), outputs.cos, options);
  });
}

Status ApplyRope(const RopeInputs& inputs, const RopeParams& params, const RopeOutputs& outputs,
                 const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckRope(inputs, params, outputs); !status.ok()) return status;
    const DType dtype = (inputs.q.present() ? inputs.q : inputs.k).dtype;
    return RunRope(ResolveRope(inputs, params, outputs), dtype, options);
  });
}

}  // namespace flashlane
