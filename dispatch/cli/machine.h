// The machine, as reports name it.
#ifndef FLASHLANE_DISPATCH_CLI_MACHINE_H_
#define FLASHLANE_DISPATCH_CLI_MACHINE_H_

#include <string>
#include <vector>

namespace flashlane::cli {

// "x86_64", "aarch64"
std::string Architecture();

// Targets that are compiled but do not run here, with the reason: "AVX3 (this CPU does not run
// it)".
std::vector<std::string> UnusedTargets();

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_MACHINE_H_
