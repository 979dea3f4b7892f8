#include "dispatch/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace flashlane::cli {

Progress::Progress(std::size_t steps) : steps_(steps), shown_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::Step(const std::string& what) {
  if (shown_) {
    constexpr std::size_t kWidth = 24;
    const std::size_t filled = kWidth * done_ / std::max<std::size_t>(steps_, 1);
    const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
    std::fprintf(stderr, "\r\x1b[K[%s] %zu/%zu %s", bar.c_str(), done_ + 1, steps_, what.c_str());
    std::fflush(stderr);
  }
  ++done_;
}

}  // namespace flashlane::cli
