#include "dispatch/cli/machine.h"

#include <sys/utsname.h>

#include <algorithm>

#include "dispatch/amx.h"
#include "flashlane/info.h"

namespace flashlane::cli {

std::string Architecture() {
  utsname name;
  return ::uname(&name) == 0 ? name.machine : "unknown";
}

std::vector<std::string> UnusedTargets() {
  const std::vector<std::string> supported = SupportedTargets();
  std::vector<std::string> unused;
  for (const std::string& target : CompiledTargets()) {
    if (std::find(supported.begin(), supported.end(), target) != supported.end()) continue;
    const char* reason = target == "AMX" ? WhyNoAmx() : nullptr;
    unused.push_back(target + " (" + (reason != nullptr ? reason : "this CPU does not run it") +
                     ")");
  }
  return unused;
}

}  // namespace flashlane::cli
