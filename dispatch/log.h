// Logging through spdlog's logger "flashlane": off unless FLASHLANE_LOG_LEVEL names a level, or the
// application registered a logger of that name. spdlog is included in log.cc only.
#ifndef FLASHLANE_DISPATCH_LOG_H_
#define FLASHLANE_DISPATCH_LOG_H_

#include <string>

namespace flashlane {

// Whether a message would go anywhere: ask before building one.
bool DebugLogEnabled() noexcept;
void LogDebug(const std::string& message) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_LOG_H_
