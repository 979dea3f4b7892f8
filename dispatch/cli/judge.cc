// `flashlane judge`: what calls cost on this machine.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <ostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dispatch/cli/commands.h"
#include "dispatch/cli/judge_file.h"
#include "dispatch/cli/judge_measure.h"
#include "dispatch/cli/judge_shapes.h"
#include "dispatch/cli/kernel_names.h"
#include "dispatch/cli/progress.h"
#include "dispatch/cli/replaced_file.h"
#include "dispatch/cli/selection.h"
#include "dispatch/cli/table.h"
#include "dispatch/cli/text.h"
#include "dispatch/cli/text_file.h"
#include "dispatch/dtype.h"
#include "dispatch/registry.h"
#include "flashlane/info.h"

namespace flashlane::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kPercent = 100;

template <typename T, typename U>
bool Holds(const std::vector<T>& list, const U& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Kernels with a contract, which is what says what a call costs; scalar code once for all targets.
Status Select(const JudgeOptions& options, std::vector<Judged>* judged) {
  std::vector<std::string> kernels, targets;
  std::vector<DType> dtypes;
  if (Status s = SelectKernels(options.kernels, &kernels); !s.ok()) return s;
  if (Status s = SelectDTypes(options.dtypes, &dtypes); !s.ok()) return s;
  if (Status s = SelectTargets(options.targets, &targets); !s.ok()) return s;
  for (const KernelRow& row : Registry()) {
    if (!Holds(kernels, row.name) || !Holds(dtypes, row.dtype)) continue;
    if (RevisionOfKernel(row.name).empty()) continue;
    for (const std::string& target : targets) {
      judged->push_back({&row, EntryPointOf(row.name), row.vectorised ? target : ""});
      if (!row.vectorised) break;
    }
  }
  if (!judged->empty()) return {};
  return Status::Unsupported("--kernel " + options.kernels + " --dtype " + options.dtypes +
                             ": no such kernel in the registry");
}

std::string TargetName(const Judged& judged) {
  return judged.target.empty() ? kEveryTarget : judged.target;
}

// A row while it is being timed.
struct RowInWork {
  Judged judged;
  std::vector<JudgeShape> shapes;
  std::vector<TimedShape> timed;
};

// Round by round over all rows.
Status Time(const JudgeOptions& options, std::vector<RowInWork>* rows) {
  JudgeTimer timer(options.quick);
  Progress progress(rows->size() * static_cast<std::size_t>(timer.rounds()));
  for (int round = 0; round < timer.rounds(); ++round) {
    for (RowInWork& row : *rows) {
      progress.Step(std::string(row.judged.row->name) + " " +
                    LowerDTypeName(row.judged.row->dtype) + " " + TargetName(row.judged));
      if (round == 0) {
        if (Status s = timer.Begin(row.judged, row.shapes, &row.timed); !s.ok()) return s;
      }
      if (Status s = timer.Round(row.judged, row.shapes, &row.timed); !s.ok()) return s;
    }
  }
  return {};
}

// Fits the coefficients, or takes those that were loaded.
Status Finish(const RowInWork& from, bool loaded, JudgedRow* row) {
  const KernelRow& kernel = *from.judged.row;
  row->kernel = kernel.name;
  row->dtype = kernel.dtype;
  row->target = TargetName(from.judged);
  row->revision = RevisionOfKernel(kernel.name);
  for (std::size_t i = 0; i < from.shapes.size(); ++i) {
    (from.shapes[i].held_out ? row->held_out : row->fitted).push_back(from.timed[i]);
  }
  if (!loaded) {
    row->coefficients = FitCoefficients(row->fitted);
    return {};
  }
  const char* target = from.judged.target.empty() ? nullptr : from.judged.target.c_str();
  return fkc::FindCoefficients(from.judged.symbol.c_str(), kernel.dtype, target,
                               &row->coefficients);
}

Status Measure(const std::vector<Judged>& judged, const JudgeOptions& options,
               Judgement* judgement) {
  judgement->version = Version();
  judgement->cpu = CpuName();
  judgement->quick = options.quick;
  const bool loaded = !options.check.empty();
  std::vector<RowInWork> rows;
  for (const Judged& each : judged) {
    rows.push_back({each, ShapesFor(*each.row, options.quick), {}});
    if (!loaded) continue;
    std::erase_if(rows.back().shapes, [](const JudgeShape& shape) { return !shape.held_out; });
  }
  if (Status s = Time(options, &rows); !s.ok()) return s;
  for (const RowInWork& row : rows) {
    judgement->rows.emplace_back();
    if (Status s = Finish(row, loaded, &judgement->rows.back()); !s.ok()) return s;
  }
  return {};
}

// Coefficients of a file, and of what is selected those that it has.
Status LoadForCheck(const JudgeOptions& options, std::vector<Judged>* judged) {
  std::string text;
  if (Status s = ReadText("--check", options.check, &text); !s.ok()) return s;
  Judgement stored;
  if (Status s = ReadJudgement(options.check, text, &stored); !s.ok()) {
    return WithContext("--check", s);
  }
  if (Status s = ApplyJudgement(stored); !s.ok()) return WithContext("--check", s);
  std::erase_if(*judged, [&stored](const Judged& each) {
    return std::none_of(stored.rows.begin(), stored.rows.end(), [&each](const JudgedRow& row) {
      return row.kernel == each.row->name && row.dtype == each.row->dtype &&
             row.target == TargetName(each);
    });
  });
  if (!judged->empty()) return {};
  return Status::InvalidArgument("--check: " + Quoted(options.check) +
                                 " has none of what was selected");
}

// 1 / x, as a speed; "-" where x is 0: that term was not needed.
std::string Speed(double nanoseconds) {
  return nanoseconds > 0 ? Cell("%.3g", 1 / nanoseconds) : "-";
}

void PrintTable(const Judgement& judgement, std::ostream& out) {
  Table table({{"kernel", Align::kLeft},
               {"dtype", Align::kLeft},
               {"target", Align::kLeft},
               {"call ns"},
               {"tile ns"},
               {"Gflop/s"},
               {"GB/s"},
               {"stream Gflop/s"},
               {"stream GB/s"},
               {"median error"},
               {"worst"}});
  for (const JudgedRow& row : judgement.rows) {
    const fkc::Coefficients& c = row.coefficients;
    const ErrorSummary error = HeldOutError(row);
    table.Add({ShortKernelName(row.kernel), LowerDTypeName(row.dtype), row.target,
               Cell("%.0f", c.overhead_ns), Cell("%.0f", c.tile_ns), Speed(c.ns_per_flop),
               Speed(c.ns_per_byte), Speed(c.stream_ns_per_flop), Speed(c.stream_ns_per_byte),
               Cell("%.0f %%", kPercent * error.median), Cell("%.0f %%", kPercent * error.worst)});
  }
  table.Print(out);
  const ErrorSummary error = HeldOutError(judgement);
  out << "\npredictions of shapes that nothing was fitted to: median error "
      << Cell("%.1f", kPercent * error.median) << " %, worst "
      << Cell("%.0f", kPercent * error.worst) << " %\n";
}

}  // namespace

Status Judge(const JudgeOptions& options, std::ostream& out) {
  std::vector<Judged> judged;
  if (Status s = Select(options, &judged); !s.ok()) return s;
  if (!options.check.empty()) {
    if (Status s = LoadForCheck(options, &judged); !s.ok()) return s;
  }
  std::error_code error;
  if (fs::equivalent(options.check, options.output, error)) {
    return Status::InvalidArgument("--out: " + Quoted(options.output) + " is the file to check");
  }
  if (!options.output.empty()) {
    if (Status s = CheckReplaceable(options.output); !s.ok()) return WithContext("--out", s);
  }
  Judgement judgement;
  if (Status s = Measure(judged, options, &judgement); !s.ok()) return s;
  const std::string json = WriteJudgement(judgement);
  if (!options.output.empty()) {
    if (Status s = ReplaceFile(options.output, {json}); !s.ok()) return WithContext("--out", s);
  }
  if (options.json) {
    out << json;
  } else {
    PrintTable(judgement, out);
  }
  return {};
}

}  // namespace flashlane::cli
