// A bar on the terminal for commands that take long; nothing at all where stderr is none.
#ifndef FLASHLANE_DISPATCH_CLI_PROGRESS_H_
#define FLASHLANE_DISPATCH_CLI_PROGRESS_H_

#include <cstddef>
#include <string>

namespace flashlane::cli {

class Progress {
 public:
  explicit Progress(std::size_t steps);
  ~Progress();  // wipes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The next step begins.
  void Step(const std::string& what);

 private:
  const std::size_t steps_;
  const bool shown_;
  std::size_t done_ = 0;
};

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_PROGRESS_H_
