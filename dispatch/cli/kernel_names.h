// Kernels as the command line names them, looked up in the registry.
#ifndef FLASHLANE_DISPATCH_CLI_KERNEL_NAMES_H_
#define FLASHLANE_DISPATCH_CLI_KERNEL_NAMES_H_

#include <optional>
#include <string>
#include <vector>

#include "dispatch/registry.h"
#include "flashlane/attention.h"
#include "flashlane/status.h"

namespace flashlane::cli {

// "attention_flash" for "flash", and so on; a full name stays. Empty for a name that is neither.
// "attention_naive" means the oracle of whatever the case is.
std::string FullKernelName(const std::string& name);

// "flash" for "attention_flash".
std::string ShortKernelName(const std::string& name);

// Names of the kernels in the registry that compute attention, each once.
std::vector<std::string> RegisteredKernels();
bool IsRegistered(const std::string& name);

// Unsupported, with the names there are.
Status NotRegistered(const std::string& name);

// The enumerator of a registered kernel, and what it computes; nothing for other names.
struct RegisteredKernel {
  Kernel kernel = Kernel::kNaive;
  Operation operation = Operation::kForward;
};
std::optional<RegisteredKernel> KernelByName(const std::string& name);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_KERNEL_NAMES_H_
