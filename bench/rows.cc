#include "bench/rows.h"

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashlane::bench {
namespace {

// Google Benchmark appends how a row was timed ("/iterations:1/manual_time") to its name. The names
// of rows are fixed, so this takes it away again.
class PlainNames : public benchmark::BenchmarkReporter {
 public:
  explicit PlainNames(benchmark::BenchmarkReporter* to) : to_(to) {}

  bool ReportContext(const Context& context) override {
    to_->SetOutputStream(&GetOutputStream());
    to_->SetErrorStream(&GetErrorStream());
    return to_->ReportContext(context);
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> plain = runs;
    for (Run& run : plain) {
      run.run_name.iterations.clear();
      run.run_name.time_type.clear();
    }
    to_->ReportRuns(plain);
  }
  void Finalize() override { to_->Finalize(); }

 private:
  benchmark::BenchmarkReporter* to_;
};

constexpr double kDefaultSeconds = 1.0;

struct Options {
  double seconds = kDefaultSeconds;
  bool list = false;
  bool json_file = false;  // --benchmark_out is given, and is JSON
};

// Takes --seconds_per_row away and notes what else matters here.
Options ReadOptions(int* argc, char** argv) {
  constexpr std::string_view kSeconds = "--seconds_per_row=";
  Options options;
  bool json = true;
  int kept = 0;
  for (int i = 0; i < *argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kSeconds)) {
      options.seconds = std::atof(argument.substr(kSeconds.size()).data());
      continue;
    }
    if (argument == "--benchmark_list_tests" || argument == "--benchmark_list_tests=true") {
      options.list = true;
    }
    if (argument.starts_with("--benchmark_out=")) options.json_file = true;
    if (argument.starts_with("--benchmark_out_format=")) json = argument.ends_with("=json");
    argv[kept++] = argv[i];
  }
  argv[kept] = nullptr;
  *argc = kept;
  options.json_file = options.json_file && json;
  return options;
}

// The rows that `filter` selects: none given, those by default; else all that match, or with a
// leading '-' do not, as Google Benchmark reads it. False if it is not a regular expression.
bool Select(const std::vector<Row>& rows, std::string filter, std::vector<const Row*>* selected) {
  const bool all = filter.empty();
  const bool negative = filter.starts_with('-');
  if (negative) filter.erase(0, 1);
  if (filter == "all") filter = ".";
  try {
    const std::regex pattern(filter, std::regex::extended);
    for (const Row& row : rows) {
      const bool match = all ? row.by_default : std::regex_search(row.name, pattern) != negative;
      if (match) selected->push_back(&row);
    }
  } catch (const std::regex_error& error) {
    std::fprintf(stderr, "--benchmark_filter: %s\n", error.what());
    return false;
  }
  return true;
}

void Register(const Row& row, double seconds, bool* failed) {
  const auto measure = [&row, seconds, failed](benchmark::State& state) {
    RowResult result;
    for (auto _ : state) {
      result = row.measure(seconds);
      state.SetIterationTime(result.seconds);
    }
    if (!result.error.empty()) {
      state.SkipWithError(result.error.c_str());
      *failed = true;
    }
    for (const auto& [name, value] : result.counters) state.counters[name] = value;
    state.SetLabel(result.label);
  };
  // One iteration: a row repeats its work itself and gives the median.
  benchmark::RegisterBenchmark(row.name.c_str(), measure)->Iterations(1)->UseManualTime();
}

}  // namespace

int RunRows(const std::vector<Row>& rows, int argc, char** argv) {
  const Options options = ReadOptions(&argc, argv);
  // One column per counter, unless the command line says otherwise.
  std::vector<char*> arguments(argv, argv + argc);
  std::string tabular = "--benchmark_counters_tabular=true";
  arguments.insert(arguments.begin() + 1, tabular.data());
  argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  argv = arguments.data();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  std::vector<const Row*> selected;
  if (!Select(rows, benchmark::GetBenchmarkFilter(), &selected)) return 1;
  if (options.list) {
    for (const Row* row : selected) std::printf("%s\n", row->name.c_str());
    return 0;
  }
  bool failed = false;
  for (const Row* row : selected) Register(*row, options.seconds, &failed);

  PlainNames display(benchmark::CreateDefaultDisplayReporter());
  benchmark::JSONReporter json;
  PlainNames file(&json);
  benchmark::RunSpecifiedBenchmarks(&display, options.json_file ? &file : nullptr, ".");
  benchmark::Shutdown();
  return selected.empty() || failed ? 1 : 0;
}

}  // namespace flashlane::bench
