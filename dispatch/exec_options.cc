#include "dispatch/exec_options.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

#include "dispatch/environment.h"
#include "threading/parallel_for.h"

namespace flashlane {

Status ThreadLimit(const ExecOptions& options, int* limit) {
  if (options.num_threads < 0) {
    return Status::InvalidArgument("num_threads: value " + std::to_string(options.num_threads) +
                                   " is negative; 0 means all");
  }
  *limit = options.num_threads;
  const std::string& text = Environment::Get().num_threads;
  if (*limit == 0 && !text.empty()) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, *limit);
    if (error != std::errc() || stop != end || *limit < 1) {
      return Status::InvalidArgument("FLASHLANE_NUM_THREADS: '" + text +
                                     "' is not a number of threads, 1 or more");
    }
  }
  const int available = threading::AvailableThreads();
  *limit = *limit == 0 ? available : std::min(*limit, available);
  return {};
}

Status CheckAccumulator(const ExecOptions& options) {
  if (options.accumulator <= Accumulator::kF64) return {};
  return Status::InvalidArgument(
      "accumulator: " + std::to_string(static_cast<int>(options.accumulator)) +
      " is not one of kInput, kF32, kF64");
}

}  // namespace flashlane
