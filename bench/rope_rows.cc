#include "bench/rope_rows.h"

#include <cstdint>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/move_probe.h"
#include "bench/operands.h"
#include "dispatch/dtype.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "flashlane/rope.h"
#include "threading/parallel_for.h"

namespace flashlane::bench {
namespace {

// 32 query and 8 kv heads of 128 (Llama 3 8B), all of which turns.
struct RopeShape {
  const char* name;
  int64_t tokens;
  bool heads_first;  // [1, H, S, D]; else token-major
  bool in_place;
  bool interleaved;
  bool by_default;
};

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128;

constexpr RopeShape kRopeShapes[] = {
    {"inplace_8k", 8192, false, true, false, true},
    {"inplace_8k_interleaved", 8192, false, true, true, true},
    {"inplace_8k_bhsd", 8192, true, true, false, false},
    {"copy_8k", 8192, false, false, false, true},
    {"copy_8k_interleaved", 8192, false, false, true, false},
    {"copy_8k_bhsd", 8192, true, false, false, false},
    {"decode_16", 16, false, true, false, false},  // in L2: what a step of decode costs
};

struct RopeCase {
  const KernelRow* kernel;
  const RopeShape* shape;
  const char* target;  // null: what dispatch chooses
  int threads;
};

struct RopeOperands {
  RopeOperands(const RopeShape& shape, DType dtype)
      : q(dtype, {kHeads * shape.tokens * kDim}, &random),
        k(dtype, {kKvHeads * shape.tokens * kDim}, &random) {
    if (!shape.in_place) {
      q_out = Tensor(dtype, {kHeads * shape.tokens * kDim}, nullptr);
      k_out = Tensor(dtype, {kKvHeads * shape.tokens * kDim}, nullptr);
    }
    const DType table = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    cos = Tensor(table, {shape.tokens, kDim / 2}, nullptr);
    sin = Tensor(table, {shape.tokens, kDim / 2}, nullptr);
    std::vector<double> frequencies(kDim / 2);
    const TensorView inv_freq(frequencies.data(), DType::kF64, {kDim / 2});
    RopeTableInputs table_inputs;
    Status status = RopeInverseFrequencies(5e5, {}, inv_freq);
    table_inputs.inv_freq = inv_freq;
    if (status.ok()) status = RopeTable(table_inputs, {cos.view, sin.view});
    inputs.q = ViewOf(q, shape, kHeads);
    inputs.k = ViewOf(k, shape, kKvHeads);
    inputs.cos = cos.view;
    inputs.sin = sin.view;
    outputs.q = ViewOf(shape.in_place ? q : q_out, shape, kHeads);
    outputs.k = ViewOf(shape.in_place ? k : k_out, shape, kKvHeads);
    params.interleaved = shape.interleaved;
  }

  static TensorView ViewOf(Tensor& tensor, const RopeShape& shape, int64_t heads) {
    void* data = tensor.view.data;
    const DType dtype = tensor.view.dtype;
    if (shape.heads_first) return TensorView(data, dtype, {1, heads, shape.tokens, kDim});
    return TensorView(data, dtype, {shape.tokens, heads, kDim});
  }
  double bytes() const { return 2.0 * static_cast<double>(q.bytes.size() + k.bytes.size()); }

  Random random;
  Tensor q, k, q_out, k_out, cos, sin;
  RopeInputs inputs;
  RopeParams params;
  RopeOutputs outputs;
};

RowResult MeasureRope(const RopeCase& test, double seconds) {
  RowResult result;
  ExecOptions options;
  options.num_threads = test.threads;
  options.target = test.target;
  Target target;
  RopeOperands operands(*test.shape, test.kernel->dtype);
  Status status = ResolveTarget(test.target, &target);
  const auto call = [&] {
    status = ApplyRope(operands.inputs, operands.params, operands.outputs, options);
  };
  if (status.ok()) call();
  if (!status.ok()) {
    result.error = status.message();
    return result;
  }
  Workload workload;
  workload.call = call;
  workload.work = operands.bytes();
  if (test.threads > 1) workload.clock = Clock::kWall;
  // The probe moves as many bytes, and is its own evidence of a quiet machine.
  const Meter meter(
      MoveProbe(static_cast<size_t>(operands.bytes() / 2), test.shape->in_place, target.bit));
  const Comparison comparison = CompareWithPeak(workload, Yardstick(meter, meter), seconds);
  result.seconds = comparison.seconds;
  result.counters = {{"gbs", workload.work / comparison.seconds * 1e-9},
                     {"move_fraction", comparison.fraction},
                     {"move_fraction_min", comparison.fraction_min},
                     {"kept", comparison.kept},
                     {"groups", comparison.groups}};
  if (comparison.kept == 0) result.label = kNoQuietGroup;
  return result;
}

void AddCase(std::vector<Row>* rows, const RopeCase& test) {
  std::string name = std::string("rope/") + LowerDTypeName(test.kernel->dtype) + "/";
  name += test.target == nullptr ? "best" : test.target;
  name += std::string("/") + test.shape->name + "/threads:" + std::to_string(test.threads);
  const bool by_default = test.shape->by_default && test.target == nullptr && test.threads == 1 &&
                          test.kernel->dtype != DType::kF64;
  rows->push_back(
      {name, by_default, [test](double seconds) { return MeasureRope(test, seconds); }});
}

}  // namespace

void AddRope(std::vector<Row>* rows) {
  const int all_threads = threading::AvailableThreads();
  for (const KernelRow& kernel : KernelsOf(Operation::kRope)) {
    for (const RopeShape& shape : kRopeShapes) {
      AddCase(rows, {&kernel, &shape, nullptr, 1});
      if (all_threads > 1) AddCase(rows, {&kernel, &shape, nullptr, all_threads});
      for (const Target& target : SupportedTargetList()) {
        AddCase(rows, {&kernel, &shape, target.name, 1});
      }
    }
  }
}

}  // namespace flashlane::bench
