#include "dispatch/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "dispatch/environment.h"

namespace flashlane {
namespace {

// An application that registers a logger "flashlane" before the first call decides sinks and level.
std::shared_ptr<spdlog::logger> MakeLogger() {
  try {
    if (auto registered = spdlog::get("flashlane")) return registered;
    auto logger = std::make_shared<spdlog::logger>(
        "flashlane", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const std::string& level = Environment::Get().log_level;
    // spdlog's own handler would write to stderr.
    logger->set_error_handler([](const std::string&) {});
    logger->set_level(level.empty() ? spdlog::level::off : spdlog::level::from_str(level));
    return logger;
  } catch (...) {
    return nullptr;  // a library that cannot log still computes
  }
}

spdlog::logger* Logger() {
  static const std::shared_ptr<spdlog::logger> logger = MakeLogger();
  return logger.get();
}

}  // namespace

bool DebugLogEnabled() noexcept {
  const spdlog::logger* logger = Logger();
  return logger != nullptr && logger->should_log(spdlog::level::debug);
}

void LogDebug(const std::string& message) noexcept {
  try {
    if (spdlog::logger* logger = Logger()) logger->debug("{}", message);
  } catch (...) {  // from an application's sink; it may not reach the caller
  }
}

}  // namespace flashlane
