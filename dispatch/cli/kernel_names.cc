#include "dispatch/cli/kernel_names.h"

#include <algorithm>
#include <string_view>

#include "dispatch/cli/text.h"
#include "dispatch/registry.h"

namespace flashlane::cli {
namespace {

constexpr std::string_view kPrefix = "attention_";

struct Name {
  std::string_view brief;
  std::string_view full;
};
constexpr Name kNames[] = {{"naive", "attention_naive"},
                           {"flash", "attention_flash"},
                           {"paged", "attention_paged"},
                           {"backward", "attention_flash_backward"}};

}  // namespace

std::string FullKernelName(const std::string& name) {
  for (const Name& entry : kNames) {
    if (name == entry.brief || name == entry.full) return std::string(entry.full);
  }
  return {};
}

std::string ShortKernelName(const std::string& name) {
  return name.compare(0, kPrefix.size(), kPrefix) == 0 ? name.substr(kPrefix.size()) : name;
}

std::vector<std::string> RegisteredKernels() {
  std::vector<std::string> names;
  for (const KernelRow& row : ForwardKernels()) {
    if (std::find(names.begin(), names.end(), row.name) == names.end())
      names.emplace_back(row.name);
  }
  return names;
}

bool IsRegistered(const std::string& name) {
  const std::vector<std::string> names = RegisteredKernels();
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status NotRegistered(const std::string& name) {
  return Status::Unsupported("kernel " + Quoted(name) + " is not in the registry (" +
                             Join(RegisteredKernels(), ", ") + ")");
}

Kernel KernelByName(const std::string& name) {
  for (const KernelRow& row : ForwardKernels()) {
    if (name == row.name) return row.kernel;
  }
  return Kernel::kNaive;
}

}  // namespace flashlane::cli
