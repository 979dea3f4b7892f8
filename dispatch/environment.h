// The environment variables, read once per process.
#ifndef FLASHLANE_DISPATCH_ENVIRONMENT_H_
#define FLASHLANE_DISPATCH_ENVIRONMENT_H_

#include <string>

namespace flashlane {

struct Environment {
  std::string target;       // FLASHLANE_TARGET; empty = not set
  std::string log_level;    // FLASHLANE_LOG_LEVEL; empty = not set
  std::string num_threads;  // FLASHLANE_NUM_THREADS; empty = not set

  static const Environment& Get();
};

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_ENVIRONMENT_H_
