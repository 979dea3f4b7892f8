#include "dispatch/cli/verify_report.h"

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "dispatch/cli/machine.h"
#include "dispatch/cli/recording_report.h"
#include "dispatch/cli/table.h"
#include "dispatch/cli/text.h"
#include "dispatch/dtype.h"
#include "flashlane/info.h"

namespace flashlane::cli {
namespace {

constexpr char kRecomputedMark[] = "*";
constexpr char kRecomputedNote[] =
    "* dtype: the file's answers do not hold for the inputs as converted to it; compared with the\n"
    "  oracle's f64 evaluation of those instead\n";

std::string DTypeCell(const VerifyRow& row) {
  return std::string(LowerDTypeName(row.dtype)) + (row.recomputed ? kRecomputedMark : "");
}

bool AnyRecomputed(const VerifyReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(),
                     [](const VerifyRow& row) { return row.recomputed; });
}

// Three digits or so, whatever the size.
std::string Compact(double value) {
  return Cell(value >= 99.95 ? "%.0f" : value >= 9.995 ? "%.1f" : "%.2f", value);
}

std::string Plain(double value) { return value > 0 ? Compact(value) : "-"; }

// One line of the summary.
struct Group {
  std::string kernel, dtype, target;
  std::size_t rows = 0;
  std::size_t failed = 0;
  struct Worst {
    std::string output, name;
    double fraction = 0;
  };
  std::vector<Worst> worst;  // per result of the kernel

  void Add(const VerifyRow& row) {
    ++rows;
    if (!row.passed()) ++failed;
    for (const auto& [name, comparison] : row.comparisons) {
      auto found = std::find_if(worst.begin(), worst.end(),
                                [&name = name](const Worst& of) { return of.output == name; });
      if (found == worst.end()) {
        worst.push_back({name, row.name, comparison.fraction});
      } else if (comparison.fraction > found->fraction) {
        *found = {name, row.name, comparison.fraction};
      }
    }
  }
};

std::vector<Group> GroupsOf(const VerifyReport& report) {
  std::vector<Group> groups;
  for (const VerifyRow& row : report.rows) {
    const auto same = [&row](const Group& group) {
      return group.kernel == row.kernel && group.dtype == DTypeCell(row) &&
             group.target == row.target;
    };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) {
      group = groups.insert(groups.end(), Group());
      group->kernel = row.kernel;
      group->dtype = DTypeCell(row);
      group->target = row.target;
    }
    group->Add(row);
  }
  return groups;
}

nlohmann::ordered_json JsonOf(const Comparison& comparison) {
  return {{"max_error", comparison.max_error}, {"worst_error", comparison.worst_error},
          {"tolerance", comparison.tolerance}, {"fraction", comparison.fraction},
          {"index", comparison.index},         {"message", comparison.message}};
}

nlohmann::ordered_json JsonOf(const VerifyRow& row) {
  nlohmann::ordered_json json = {
      {"file", row.path},      {"case", row.name},
      {"kernel", row.kernel},  {"dtype", LowerDTypeName(row.dtype)},
      {"target", row.target},  {"truth", row.recomputed ? "recomputed" : "file"},
      {"passed", row.passed()}};
  for (const auto& [name, comparison] : row.comparisons) json[name] = JsonOf(comparison);
  if (!row.error.empty()) json["error"] = row.error;
  if (row.timing.has_value()) {
    json["time"] = {{"best_us", row.timing->best_us},
                    {"median_us", row.timing->median_us},
                    {"gflops", row.timing->gflops},
                    {"speedup_over_naive", row.timing->speedup}};
  }
  return json;
}

// For each case the row that comes nearest to its tolerance, or passes it farthest.
nlohmann::ordered_json WorstOfCases(const VerifyReport& report) {
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (auto begin = report.rows.begin(); begin != report.rows.end();) {
    const auto end = std::find_if(begin, report.rows.end(),
                                  [&](const VerifyRow& row) { return row.path != begin->path; });
    const auto failed = std::count_if(begin, end, [](const auto& row) { return !row.passed(); });
    const VerifyRow& worst = *std::max_element(
        begin, end, [](const auto& a, const auto& b) { return a.fraction() < b.fraction(); });
    cases.push_back({{"case", worst.name},
                     {"file", worst.path},
                     {"rows", end - begin},
                     {"failed", failed},
                     {"worst",
                      {{"kernel", worst.kernel},
                       {"dtype", LowerDTypeName(worst.dtype)},
                       {"target", worst.target},
                       {"max_error", worst.max_error()},
                       {"fraction", worst.fraction()}}}});
    begin = end;
  }
  return cases;
}

}  // namespace

int VerifyReport::passed() const { return static_cast<int>(rows.size()) - failed(); }

int VerifyReport::failed() const {
  return static_cast<int>(
      std::count_if(rows.begin(), rows.end(), [](const VerifyRow& row) { return !row.passed(); }));
}

int VerifyReport::num_skipped() const {
  std::size_t cases = 0;
  for (const auto& [kernel, names] : skipped) cases += names.size();
  return static_cast<int>(cases);
}

int VerifyReport::changed() const {
  return against.has_value()
             ? static_cast<int>(against->changed.size() + against->other_cases.size())
             : 0;
}

void PrintRows(const VerifyReport& report, std::ostream& out) {
  const bool timed = std::any_of(report.rows.begin(), report.rows.end(),
                                 [](const VerifyRow& row) { return row.timing.has_value(); });
  std::vector<Column> columns = {{"case", Align::kLeft},       {"kernel", Align::kLeft},
                                 {"dtype", Align::kLeft},      {"target", Align::kLeft},
                                 {"max error", Align::kRight}, {"of tolerance", Align::kRight}};
  if (timed) {
    for (const char* title : {"µs/call", "median", "GFLOP/s", "× oracle"}) {
      columns.push_back({title, Align::kRight});
    }
  }
  columns.push_back({"", Align::kLeft});
  Table table(columns);
  const VerifyRow* previous = nullptr;
  for (const VerifyRow& row : report.rows) {
    if (previous != nullptr && previous->path != row.path) table.AddBlankLine();
    previous = &row;
    std::vector<std::string> cells = {row.name,
                                      row.kernel,
                                      DTypeCell(row),
                                      row.target,
                                      Cell("%.1e", row.max_error()),
                                      Cell("%.2f", row.fraction())};
    if (timed) {
      const Timing time = row.timing.value_or(Timing{});
      for (const double value : {time.best_us, time.median_us, time.gflops, time.speedup}) {
        cells.push_back(Plain(value));
      }
    }
    cells.emplace_back(row.passed() ? "" : "FAILED");
    table.Add(std::move(cells));
  }
  table.Print(out);
  out << "\nmax error: largest |out - f64 answer|, of a backward |gradient - f64 answer|;\n"
         "of tolerance: the worst element of all results\n";
  if (timed) {
    out << "µs/call: best of the repetitions; GFLOP/s: visible query-key pairs x 2 (D + Dv)\n(of "
           "a backward x 2 (3 D + 2 Dv)), at the best, of "
        << (report.threads == 1 ? "one thread"
                                : "all " + std::to_string(report.threads) +
                                      " threads together (small calls use fewer)")
        << ";\n× oracle: how many times as fast as kernel naive (scalar code, as many threads) in "
           "the same dtype\n";
  }
  if (AnyRecomputed(report)) out << kRecomputedNote;
  out << '\n';
}

void PrintSummary(const VerifyReport& report, std::ostream& out) {
  const std::vector<Group> groups = GroupsOf(report);
  // A table for each list of results: out and lse, then the gradients.
  std::vector<std::vector<std::string>> lists;
  const auto results_of = [](const Group& group) {
    std::vector<std::string> names;
    for (const Group::Worst& worst : group.worst) names.push_back(worst.output);
    return names;
  };
  for (const Group& group : groups) {
    const std::vector<std::string> names = results_of(group);
    if (std::find(lists.begin(), lists.end(), names) == lists.end()) lists.push_back(names);
  }
  for (const std::vector<std::string>& names : lists) {
    std::vector<Column> columns = {{"kernel", Align::kLeft},
                                   {"dtype", Align::kLeft},
                                   {"target", Align::kLeft},
                                   {"cases", Align::kRight},
                                   {"failed", Align::kRight}};
    for (const std::string& name : names) {
      columns.push_back({name + "/tolerance", Align::kRight});
      columns.push_back({"worst case", Align::kLeft});
    }
    Table table(columns);
    for (const Group& group : groups) {
      if (results_of(group) != names) continue;
      std::vector<std::string> cells = {group.kernel, group.dtype, group.target,
                                        std::to_string(group.rows), std::to_string(group.failed)};
      for (const Group::Worst& worst : group.worst) {
        cells.push_back(Cell("%.2f", worst.fraction));
        cells.push_back(worst.name);
      }
      table.Add(std::move(cells));
    }
    table.Print(out);
    out << '\n';
  }
  if (AnyRecomputed(report)) out << kRecomputedNote << '\n';
}

void PrintOutcome(const VerifyReport& report, std::ostream& out) {
  if (report.against.has_value()) PrintComparison(*report.against, out);
  for (const VerifyRow& row : report.rows) {
    if (row.passed()) continue;
    std::string reason = row.error;
    for (const auto& [name, comparison] : row.comparisons) {
      if (comparison.message.empty()) continue;
      reason += (reason.empty() ? "" : "; ") + comparison.message;
    }
    out << "FAILED " << row.path << " " << row.kernel << " " << LowerDTypeName(row.dtype) << " "
        << row.target << ": " << reason << '\n';
  }
  for (const auto& [kernel, names] : report.skipped) {
    out << "skipped, " << Quoted(kernel) << " is not in the registry: " << names.size()
        << (names.size() == 1 ? " case (" : " cases (") << Join(names, ", ") << ")\n";
  }
  out << report.passed() << " passed, " << report.failed() << " failed";
  if (report.num_skipped() > 0) out << ", " << report.num_skipped() << " skipped";
  if (report.against.has_value()) out << ", " << report.changed() << " changed";
  out << '\n';
}

void PrintJson(const VerifyReport& report, std::ostream& out) {
  nlohmann::ordered_json json;
  json["machine"] = {{"version", Version()},
                     {"cpu", CpuName()},
                     {"architecture", Architecture()},
                     {"compiled_targets", CompiledTargets()},
                     {"supported_targets", SupportedTargets()},
                     {"not_run", UnusedTargets()}};
  json["threads"] = report.threads;
  json["passed"] = report.passed();
  json["failed"] = report.failed();
  json["skipped"] = report.skipped;
  if (report.against.has_value()) json["against"] = JsonOf(*report.against);
  json["cases"] = WorstOfCases(report);
  json["rows"] = nlohmann::ordered_json::array();
  for (const VerifyRow& row : report.rows) json["rows"].push_back(JsonOf(row));
  out << json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace flashlane::cli
