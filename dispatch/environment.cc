#include "dispatch/environment.h"

#include <cstdlib>

namespace flashlane {
namespace {

std::string Read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

const Environment& Environment::Get() {
  static const Environment environment{Read("FLASHLANE_TARGET"), Read("FLASHLANE_LOG_LEVEL"),
                                       Read("FLASHLANE_NUM_THREADS")};
  return environment;
}

}  // namespace flashlane
