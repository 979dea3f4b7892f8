#include "dispatch/cli/kernel_names.h"

#include <algorithm>
#include <string_view>

#include "dispatch/cli/text.h"

namespace flashlane::cli {
namespace {

struct Name {
  std::string_view brief;
  std::string_view full;
};
constexpr Name kNames[] = {{"naive", "attention_naive"},
                           {"flash", "attention_flash"},
                           {"paged", "attention_paged"},
                           {"paged_naive", "attention_paged_naive"},
                           {"backward", "attention_flash_backward"},
                           {"backward_naive", "attention_backward_naive"}};

bool ComputesAttention(const KernelRow& row) {
  return row.forward != nullptr || row.backward != nullptr;
}

}  // namespace

std::string FullKernelName(const std::string& name) {
  for (const Name& entry : kNames) {
    if (name == entry.brief || name == entry.full) return std::string(entry.full);
  }
  return {};
}

std::string ShortKernelName(const std::string& name) {
  for (const Name& entry : kNames) {
    if (name == entry.full) return std::string(entry.brief);
  }
  return name;
}

std::vector<std::string> RegisteredKernels() {
  std::vector<std::string> names;
  for (const KernelRow& row : Registry()) {
    if (!ComputesAttention(row)) continue;
    if (std::find(names.begin(), names.end(), row.name) == names.end())
      names.emplace_back(row.name);
  }
  return names;
}

bool IsRegistered(const std::string& name) { return KernelByName(name).has_value(); }

Status NotRegistered(const std::string& name) {
  return Status::Unsupported("kernel " + Quoted(name) + " is not in the registry (" +
                             Join(RegisteredKernels(), ", ") + ")");
}

std::optional<RegisteredKernel> KernelByName(const std::string& name) {
  for (const KernelRow& row : Registry()) {
    if (ComputesAttention(row) && name == row.name) {
      return RegisteredKernel{row.kernel, row.operation};
    }
  }
  return std::nullopt;
}

}  // namespace flashlane::cli
