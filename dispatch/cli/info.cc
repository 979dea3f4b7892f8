#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/commands.h"
#include "dispatch/cli/text.h"
#include "dispatch/dtype.h"
#include "flashlane/info.h"

namespace flashlane::cli {
namespace {

void PrintJson(const std::string& chosen, std::ostream& out) {
  nlohmann::ordered_json json;
  json["version"] = Version();
  json["cpu"] = CpuName();
  json["targets"] = {
      {"compiled", CompiledTargets()}, {"supported", SupportedTargets()}, {"chosen", chosen}};
  json["kernels"] = nlohmann::ordered_json::array();
  for (const KernelInfo& kernel : Kernels()) {
    json["kernels"].push_back({{"name", kernel.name},
                               {"dtype", LowerDTypeName(kernel.dtype)},
                               {"vectorised", kernel.vectorised}});
  }
  out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

void PrintText(const std::string& chosen, std::ostream& out) {
  out << "flashlane  " << Version() << "\ncpu        " << CpuName() << "\ntargets\n  compiled   "
      << Join(CompiledTargets(), " ") << "\n  supported  " << Join(SupportedTargets(), " ")
      << "\n  chosen     " << chosen << "\nkernels\n";
  std::vector<std::string> names;  // each once
  std::size_t width = 0;
  for (const KernelInfo& kernel : Kernels()) {
    if (names.empty() || names.back() != kernel.name) names.push_back(kernel.name);
    width = std::max(width, kernel.name.size());
  }
  for (const std::string& name : names) {
    out << "  " << name << std::string(width - name.size(), ' ') << " ";
    bool vectorised = false;
    for (const KernelInfo& kernel : Kernels()) {
      if (kernel.name != name) continue;
      out << " " << LowerDTypeName(kernel.dtype);
      vectorised = vectorised || kernel.vectorised;
    }
    out << (vectorised ? "  (every supported target)\n" : "  (scalar)\n");
  }
}

}  // namespace

Status Info(const InfoOptions& options, std::ostream& out) {
  std::string chosen;
  if (Status status = ChosenTarget(&chosen); !status.ok()) return status;
  if (options.json) {
    PrintJson(chosen, out);
  } else {
    PrintText(chosen, out);
  }
  return {};
}

}  // namespace flashlane::cli
