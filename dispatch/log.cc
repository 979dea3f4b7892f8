#include "dispatch/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "dispatch/environment.h"

namespace flashlane {
namespace {

// Off where the environment names no level; where it names one that there is not, whoever set it
// wants to know.
void SetLevel(spdlog::logger& logger, const std::string& name) {
  const spdlog::level::level_enum level = spdlog::level::from_str(name);  // unknown: off
  if (!name.empty() && name != "off" && level == spdlog::level::off) {
    logger.set_level(spdlog::level::warn);
    logger.warn(
        "FLASHLANE_LOG_LEVEL: '{}' is none of trace, debug, info, warn, error, critical, off",
        name);
  }
  logger.set_level(name.empty() ? spdlog::level::off : level);
}

// An application that registers a logger "flashlane" before the first call decides sinks and level.
std::shared_ptr<spdlog::logger> MakeLogger() {
  try {
    if (auto registered = spdlog::get("flashlane")) return registered;
    auto logger = std::make_shared<spdlog::logger>(
        "flashlane", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    // spdlog's own handler would write to stderr.
    logger->set_error_handler([](const std::string&) {});
    SetLevel(*logger, Environment::Get().log_level);
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
