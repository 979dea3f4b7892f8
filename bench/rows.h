// Rows of a benchmark program that measure themselves (measure.h) and are reported by Google
// Benchmark, so that its JSON and its comparison tools work.
//
//   program                              the default rows, within three minutes
//   program --benchmark_filter=REGEX     all rows whose name matches; "." is every row
//   program --benchmark_list_tests       names only, of the same selection
//   program --seconds_per_row=S          more than the default 1 s steadies the medians
//
// and Google Benchmark's own options (--benchmark_out=FILE, --benchmark_repetitions=N ...) but for
// --benchmark_min_time: rows time themselves. Status: 0, 1 if a row failed, 2 for bad usage.
//
// "Library was built as DEBUG" speaks of Google Benchmark, not of this project: Debian builds its
// package without NDEBUG. Its timers are not used here, so that no number depends on it.
#ifndef FLASHLANE_BENCH_ROWS_H_
#define FLASHLANE_BENCH_ROWS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace flashlane::bench {

struct RowResult {
  double seconds = 0;  // the row's time
  std::map<std::string, double> counters;
  std::string label;
  std::string error;  // not empty: the row failed
};

struct Row {
  std::string name;
  bool by_default = true;  // also without a filter
  std::function<RowResult(double seconds)> measure;
};

// Runs the rows that the command line asks for. Returns the program's exit status.
int RunRows(const std::vector<Row>& rows, int argc, char** argv);

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_ROWS_H_
