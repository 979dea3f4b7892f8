#include "bench/rows.h"

#include <benchmark/benchmark.h>

#include <cmath>
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

constexpr int kFailed = 1, kBadUsage = 2;  // exit statuses
constexpr double kDefaultSeconds = 1.0;
constexpr std::string_view kSecondsFlag = "--seconds_per_row=";

struct Options {
  double seconds = kDefaultSeconds;
  bool list = false;
  bool json_file = false;  // --benchmark_out is given, and is JSON
};

void PrintHelp() {
  std::printf(
      "Rows time themselves for --seconds_per_row=<seconds> each (default %g), in place of\n"
      "--benchmark_min_time and --benchmark_min_warmup_time, which are refused. Without a filter\n"
      "the default rows run, with --benchmark_filter=. all. The rest is Google Benchmark's:\n\n",
      kDefaultSeconds);
  benchmark::PrintDefaultHelp();
}

bool ReadSeconds(const char* text, double* seconds) {
  char* end = nullptr;
  *seconds = std::strtod(text, &end);
  if (end != text && *end == '\0' && std::isfinite(*seconds) && *seconds > 0) return true;
  std::fprintf(stderr, "%s%s: not a number of seconds above 0\n", kSecondsFlag.data(), text);
  return false;
}

// Takes --seconds_per_row away and notes what else matters here. False, with a message, for what
// would be ignored.
bool ReadOptions(int* argc, char** argv, Options* found) {
  Options& options = *found;
  bool json = true;
  int kept = 0;
  for (int i = 0; i < *argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kSecondsFlag)) {
      if (!ReadSeconds(argv[i] + kSecondsFlag.size(), &options.seconds)) return false;
      continue;
    }
    if (argument.starts_with("--benchmark_min_")) {
      std::fprintf(stderr, "%s: rows time themselves; use %sSECONDS\n", argv[i],
                   kSecondsFlag.data());
      return false;
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
  return true;
}

// The rows that `filter` selects: none given, those by default; else all that match, or with a
// leading '-' do not, as Google Benchmark reads it. False, with a message, if it is not a regular
// expression or selects none.
bool Select(const std::vector<Row>& rows, std::string filter, std::vector<const Row*>* selected) {
  const std::string given = filter;
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
    std::fprintf(stderr, "--benchmark_filter=%s: %s\n", given.c_str(), error.what());
    return false;
  }
  if (!selected->empty()) return true;
  std::fprintf(stderr,
               "--benchmark_filter=%s: no row matches; all rows: --benchmark_list_tests "
               "--benchmark_filter=.\n",
               given.c_str());
  return false;
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
  Options options;
  if (!ReadOptions(&argc, argv, &options)) return kBadUsage;
  // One column per counter, unless the command line says otherwise.
  std::vector<char*> arguments(argv, argv + argc);
  std::string tabular = "--benchmark_counters_tabular=true";
  arguments.insert(arguments.begin() + 1, tabular.data());
  argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  argv = arguments.data();
  benchmark::Initialize(&argc, argv, PrintHelp);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return kBadUsage;
  std::vector<const Row*> selected;
  if (!Select(rows, benchmark::GetBenchmarkFilter(), &selected)) return kBadUsage;
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
  return failed ? kFailed : 0;
}

}  // namespace flashlane::bench
