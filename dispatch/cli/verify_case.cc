#include "dispatch/cli/verify_case.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "dispatch/cli/kernel_names.h"
#include "dispatch/cli/operands.h"
#include "dispatch/cli/text.h"
#include "dispatch/registry.h"
#include "flashlane/attention.h"

namespace flashlane::cli {
namespace {

constexpr double kTimingSeconds = 0.1;
constexpr std::size_t kMinRepetitions = 3;
constexpr std::size_t kMaxRepetitions = 10'000;

// A case in one dtype: all that its rows share.
struct Prepared {
  const Case& from;
  const Selection& selection;
  Operation operation;
  DType dtype = DType::kF32;
  bool recomputed = true;
  Operands operands = {};
  Results results = {};
  ForwardReference reference = {};
};

ExecOptions OptionsFor(const Prepared& call, const KernelRow& row, const char* target) {
  ExecOptions exec;
  exec.kernel = row.kernel;
  exec.num_threads = call.selection.threads;
  exec.target = target;
  const bool half = call.dtype == DType::kBF16 || call.dtype == DType::kF16;
  exec.accumulator = half ? Accumulator::kF32 : Accumulator::kInput;
  return exec;
}

Timing Time(const Prepared& call, const ExecOptions& exec) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  double total = 0;
  // A call that takes longer than all is timed once: enough to see how slow it is.
  while (seconds.empty() || (seconds.size() < kMaxRepetitions && total < kTimingSeconds) ||
         (seconds.size() < kMinRepetitions && total < 3 * kTimingSeconds)) {
    const auto start = Clock::now();
    const Status status = call.operands.Run(call.from.params, call.results.outputs, exec);
    if (!status.ok()) return {};  // has just succeeded, so that this is memory running out
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  Timing timing;
  timing.best_us = 1e6 * seconds.front();
  timing.median_us = 1e6 * seconds[seconds.size() / 2];
  if (!call.operands.has_mask()) {
    const auto flops =
        static_cast<double>(call.operands.Flops(call.from.params, call.results.outputs));
    timing.gflops = flops / seconds.front() * 1e-9;
  }
  return timing;
}

VerifyRow NewRow(const Prepared& call) {
  VerifyRow row;
  row.path = call.from.path;
  row.name = call.from.name;
  row.dtype = call.dtype;
  row.recomputed = call.recomputed;
  return row;
}

VerifyRow RunRow(const Prepared& call, const KernelRow& kernel, const char* target) {
  VerifyRow row = NewRow(call);
  row.kernel = ShortKernelName(kernel.name);
  row.target = target != nullptr ? target : "scalar";
  const ExecOptions exec = OptionsFor(call, kernel, target);
  // What a kernel forgets to write must not pass for the result of the one before it.
  const AlignedBytes* bytes[] = {&call.results.out_bytes, &call.results.lse_bytes};
  for (const AlignedBytes* b : bytes) std::fill_n(b->data(), b->size(), std::byte{0xFF});
  const Status status = call.operands.Run(call.from.params, call.results.outputs, exec);
  if (!status.ok()) {
    row.error = std::string(StatusCodeName(status.code())) + ": " + status.message();
    return row;
  }
  row.out = CompareOut(call.reference, call.results.outputs.out);
  row.lse = CompareLse(call.reference, call.results.outputs.lse);
  if (call.selection.time) row.timing = Time(call, exec);
  return row;
}

std::vector<const KernelRow*> KernelsFor(const Selection& selection, Operation operation,
                                         DType dtype) {
  std::vector<const KernelRow*> kernels;
  for (const KernelRow& row : KernelsOf(operation)) {
    const auto& names = selection.kernels;
    if (row.dtype == dtype && std::find(names.begin(), names.end(), row.name) != names.end()) {
      kernels.push_back(&row);
    }
  }
  // The oracle first: what the others are measured against.
  std::stable_partition(kernels.begin(), kernels.end(),
                        [](const KernelRow* row) { return row->kernel == Kernel::kNaive; });
  return kernels;
}

void RunKernels(const Prepared& call, std::vector<VerifyRow>* rows) {
  double oracle_us = 0;
  const KernelRow* naive = FindKernel(Kernel::kNaive, call.dtype, call.operation);
  if (call.selection.time && naive != nullptr) {
    oracle_us = Time(call, OptionsFor(call, *naive, nullptr)).best_us;
  }
  const auto add = [&](const KernelRow& kernel, const char* target) {
    VerifyRow row = RunRow(call, kernel, target);
    if (row.timing.has_value() && row.timing->best_us > 0) {
      if (kernel.kernel == Kernel::kNaive) oracle_us = row.timing->best_us;
      row.timing->speedup = oracle_us / row.timing->best_us;
    }
    rows->push_back(std::move(row));
  };
  for (const KernelRow* kernel : KernelsFor(call.selection, call.operation, call.dtype)) {
    if (!kernel->vectorised) {
      add(*kernel, nullptr);
      continue;
    }
    for (const std::string& target : call.selection.targets) add(*kernel, target.c_str());
  }
}

// Operands, room for results and the truth in one dtype; `dtype` absent: as stored.
Status Prepare(const Case& from, std::optional<DType> dtype, bool use_answers, Prepared* call) {
  if (Status s = MakeOperands(from, call->operation, dtype, &call->operands); !s.ok()) return s;
  const std::string file = Quoted(from.path);
  if (Status s = MakeResults(call->operands, &call->results); !s.ok()) {
    return WithContext(file, s);
  }
  AttentionOutputs stored;
  if (Status s = AnswersOf(from, call->results.outputs, &stored); !s.ok()) return s;
  ForwardAnswers answers;
  if (use_answers && call->operands.exact) {
    answers = {stored.out, stored.lse};
    call->recomputed = !stored.out.present();
  }
  const Status status =
      call->operands.MakeReference(from.params, answers, call->selection.threads, &call->reference);
  return WithContext(file, status);
}

// The answers a file has, and whether they are good enough to be the truth.
struct StoredAnswers {
  AttentionOutputs views;
  bool any = false;
  bool are_truth = false;
};

Status InspectAnswers(const Case& from, Operation operation, StoredAnswers* answers) {
  Operands operands;
  Results results;
  if (Status s = MakeOperands(from, operation, std::nullopt, &operands); !s.ok()) return s;
  if (Status s = MakeResults(operands, &results); !s.ok()) {
    return WithContext(Quoted(from.path), s);
  }
  if (Status s = AnswersOf(from, results.outputs, &answers->views); !s.ok()) return s;
  answers->any = answers->views.out.present() || answers->views.lse.present();
  answers->are_truth = answers->any;
  for (const TensorView& view : {answers->views.out, answers->views.lse}) {
    if (view.present() && view.dtype != DType::kF64) answers->are_truth = false;
  }
  return {};
}

Status JudgeAnswers(Prepared call, const StoredAnswers& answers, std::vector<VerifyRow>* rows) {
  const AttentionOutputs& views = answers.views;
  if (Status s = Prepare(call.from, std::nullopt, false, &call); !s.ok()) return s;
  call.dtype = views.out.present() ? views.out.dtype : views.lse.dtype;
  VerifyRow row = NewRow(call);
  row.kernel = kFileRow;
  row.target = "-";
  if (views.out.present()) row.out = CompareOut(call.reference, views.out);
  if (views.lse.present()) row.lse = CompareLse(call.reference, views.lse);
  rows->push_back(std::move(row));
  return {};
}

}  // namespace

Status VerifyCase(const Case& from, const Selection& selection, std::vector<VerifyRow>* rows) {
  const Operation operation = KernelByName(from.kernel)->operation;
  StoredAnswers answers;
  if (Status s = InspectAnswers(from, operation, &answers); !s.ok()) return s;
  if (answers.any && !answers.are_truth) {
    if (Status s = JudgeAnswers({from, selection, operation}, answers, rows); !s.ok()) return s;
  }
  for (const DType dtype : selection.dtypes) {
    if (KernelsFor(selection, operation, dtype).empty()) continue;
    Prepared call{from, selection, operation, dtype};
    if (Status s = Prepare(from, dtype, answers.are_truth, &call); !s.ok()) return s;
    RunKernels(call, rows);
  }
  return {};
}

}  // namespace flashlane::cli
