// Everything a test must hold for: each registry row on each target this machine runs.
#ifndef FLASHLANE_TESTS_SUPPORT_RUNS_H_
#define FLASHLANE_TESTS_SUPPORT_RUNS_H_

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "dispatch/registry.h"
#include "flashlane/attention.h"
#include "tests/support/problem.h"

namespace flashlane::testing {

struct RunCase {
  Kernel kernel;
  DType dtype;
  std::string target;  // "scalar" for kernels without targets

  ExecOptions Options(int num_threads = 0) const {
    ExecOptions options;
    options.kernel = kernel;
    options.num_threads = num_threads;
    // The oracle of a half type rounds to it after every operation (its contract); tolerances are
    // for f32 accumulation.
    if (dtype == DType::kBF16 || dtype == DType::kF16) options.accumulator = Accumulator::kF32;
    options.target = target == "scalar" ? nullptr : target.c_str();
    return options;
  }
};

inline std::vector<RunCase> AllRuns() {
  std::vector<RunCase> runs;
  for (const KernelRow& row : ForwardKernels()) {
    for (const std::string& target : TargetsOf(row.kernel)) {
      runs.push_back({row.kernel, row.dtype, target});
    }
  }
  return runs;
}

// The same for the rows of AttentionPaged.
inline std::vector<RunCase> PagedRuns() {
  std::vector<RunCase> runs;
  for (const KernelRow& row : PagedKernels()) {
    for (const std::string& target : TargetsOf(row.kernel)) {
      runs.push_back({row.kernel, row.dtype, target});
    }
  }
  return runs;
}

// The rows that run vector code.
inline std::vector<RunCase> VectorRuns() {
  std::vector<RunCase> runs;
  for (const RunCase& run : AllRuns()) {
    if (run.target != "scalar") runs.push_back(run);
  }
  return runs;
}

inline std::string NameOf(const RunCase& run) {
  return std::string(KernelName(run.kernel)) + "_" + DTypeName(run.dtype) + "_" + run.target;
}
inline void PrintTo(const RunCase& run, std::ostream* out) { *out << NameOf(run); }
inline std::string RunName(const ::testing::TestParamInfo<RunCase>& info) {
  return NameOf(info.param);
}

// A test over runs: class FooTest : public RunTest {}; TEST_P(FooTest, Bar) { ... GetParam() ... }
class RunTest : public ::testing::TestWithParam<RunCase> {};

// Fails, rather than passes silently, where there is nothing to run on.
#define FLASHLANE_INSTANTIATE_RUNS(SUITE, RUNS) \
  INSTANTIATE_TEST_SUITE_P(All, SUITE, ::testing::ValuesIn(RUNS), ::flashlane::testing::RunName)

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_RUNS_H_
