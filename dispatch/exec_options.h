// What every public call does with its ExecOptions, and the guard it runs under.
#ifndef FLASHLANE_DISPATCH_EXEC_OPTIONS_H_
#define FLASHLANE_DISPATCH_EXEC_OPTIONS_H_

#include "flashlane/attention.h"
#include "flashlane/status.h"

namespace flashlane {

// Threads the call may use, at least 1: the options', else the environment's, else the arena's.
Status ThreadLimit(const ExecOptions& options, int* limit);

// Whether the oracle's accumulator is one.
Status CheckAccumulator(const ExecOptions& options);

// Only building a message or a list can throw, and only before any output is touched.
template <typename Function>
Status WithoutThrowing(const Function& function) noexcept {
  try {
    return function();
  } catch (...) {
    return {StatusCode::kOutOfMemory, {}};
  }
}

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_EXEC_OPTIONS_H_
