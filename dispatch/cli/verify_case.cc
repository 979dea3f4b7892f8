#include "dispatch/cli/verify_case.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "dispatch/cli/kernel_names.h"
#include "dispatch/cli/operands.h"
#include "dispatch/cli/results.h"
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
  Reference reference = {};
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
    const Status status = RunCase(call.operands, call.from.params, call.results, exec);
    if (!status.ok()) return {};  // has just succeeded, so that this is memory running out
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  Timing timing;
  timing.best_us = 1e6 * seconds.front();
  timing.median_us = 1e6 * seconds[seconds.size() / 2];
  if (!call.operands.has_mask()) {
    const auto flops = static_cast<double>(FlopsOf(call.operands, call.from.params, call.results));
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

OutputBits BitsOf(const Output& output) {
  const std::byte* bytes = output.bytes.data();
  return {output.name,
          output.view.dtype,
          {output.view.shape, output.view.shape + output.view.rank},
          {bytes, bytes + output.bytes.size()}};
}

VerifyRow RunRow(const Prepared& call, const KernelRow& kernel, const char* target) {
  VerifyRow row = NewRow(call);
  row.kernel = ShortKernelName(kernel.name);
  row.target = target != nullptr ? target : "scalar";
  const ExecOptions exec = OptionsFor(call, kernel, target);
  // What a kernel forgets to write must not pass for the result of the one before it.
  for (const Output& output : call.results) {
    std::fill_n(output.bytes.data(), output.bytes.size(), std::byte{0xFF});
  }
  const Status status = RunCase(call.operands, call.from.params, call.results, exec);
  if (!status.ok()) {
    row.error = std::string(StatusCodeName(status.code())) + ": " + status.message();
    return row;
  }
  for (const Output& output : call.results) {
    row.comparisons.push_back({output.name, call.reference.Compare(output.name, output.view)});
    if (call.selection.keep_bits) row.bits.push_back(BitsOf(output));
  }
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
  Answers stored, answers;
  if (Status s = AnswersOf(from, call->results, &stored); !s.ok()) return s;
  if (use_answers && call->operands.exact) {
    answers = stored;
    call->recomputed = !stored[0].present();
  }
  const Status status = MakeReference(call->operands, from.params, answers, call->selection.threads,
                                      &call->reference);
  return WithContext(file, status);
}

// The answers a file has, and whether they are good enough to be the truth.
struct StoredAnswers {
  Answers views;
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
  if (Status s = AnswersOf(from, results, &answers->views); !s.ok()) return s;
  answers->are_truth = true;
  for (const TensorView& view : answers->views) {
    answers->any = answers->any || view.present();
    if (view.present() && view.dtype != DType::kF64) answers->are_truth = false;
  }
  answers->are_truth = answers->are_truth && answers->any;
  return {};
}

Status JudgeAnswers(Prepared call, const StoredAnswers& answers, std::vector<VerifyRow>* rows) {
  if (Status s = Prepare(call.from, std::nullopt, false, &call); !s.ok()) return s;
  for (auto view = answers.views.rbegin(); view != answers.views.rend(); ++view) {
    if (view->present()) call.dtype = view->dtype;  // of the first there is
  }
  VerifyRow row = NewRow(call);
  row.kernel = kFileRow;
  row.target = "-";
  for (std::size_t i = 0; i < answers.views.size(); ++i) {
    const char* name = call.results[i].name;
    const bool present = answers.views[i].present();
    row.comparisons.push_back(
        {name, present ? call.reference.Compare(name, answers.views[i]) : Comparison()});
  }
  rows->push_back(std::move(row));
  return {};
}

}  // namespace

bool VerifyRow::passed() const {
  return error.empty() && std::all_of(comparisons.begin(), comparisons.end(),
                                      [](const auto& of) { return of.comparison.agrees; });
}

double VerifyRow::fraction() const {
  double worst = 0;
  for (const auto& [name, comparison] : comparisons) worst = std::max(worst, comparison.fraction);
  return worst;
}

double VerifyRow::max_error() const {
  double largest = 0;
  for (const auto& [name, comparison] : comparisons) {
    if (name != "lse") largest = std::max(largest, comparison.max_error);
  }
  return largest;
}

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
