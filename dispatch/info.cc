#include "flashlane/info.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/registry.h"
#include "dispatch/target.h"

namespace flashlane {
namespace {

std::vector<std::string> NamesOf(const std::vector<Target>& targets) {
  std::vector<std::string> names;
  names.reserve(targets.size());
  for (const Target& target : targets) names.emplace_back(target.name);
  return names;
}

}  // namespace

const char* Version() noexcept { return FLASHLANE_VERSION; }

std::string CpuName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::vector<std::string> CompiledTargets() { return NamesOf(CompiledTargetList()); }
std::vector<std::string> SupportedTargets() { return NamesOf(SupportedTargetList()); }

Status ChosenTarget(std::string* name) {
  Target target;
  if (Status status = ResolveTarget(nullptr, &target); !status.ok()) return status;
  *name = target.name;
  return {};
}

std::vector<KernelInfo> Kernels() {
  std::vector<KernelInfo> kernels;
  for (const KernelRow& row : Registry()) {
    KernelInfo info{row.name, row.dtype, row.vectorised, {}};
    for (const Target& target : SupportedTargetList()) {
      if (row.forward != nullptr) info.units.emplace_back(row.forward(target.bit).unit);
      if (row.backward != nullptr) info.units.emplace_back(row.backward(target.bit).unit);
    }
    kernels.push_back(std::move(info));
  }
  return kernels;
}

}  // namespace flashlane
