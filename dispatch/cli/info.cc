#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/commands.h"
#include "dispatch/cli/machine.h"
#include "dispatch/cli/text.h"
#include "dispatch/dtype.h"
#include "flashlane/info.h"

namespace flashlane::cli {
namespace {

nlohmann::ordered_json UnitsByTarget(const KernelInfo& kernel) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const std::vector<std::string> targets = SupportedTargets();
  for (std::size_t i = 0; i < kernel.units.size(); ++i) json[targets[i]] = kernel.units[i];
  return json;
}

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
                               {"vectorised", kernel.vectorised},
                               {"units", UnitsByTarget(kernel)}});
  }
  out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

// "AVX3_ZEN4: bf16 dot; AVX3 AVX2 SSE2: fma", or the one unit of all targets.
std::string UnitsOf(const KernelInfo& kernel) {
  if (kernel.units.empty()) return kernel.vectorised ? "every supported target" : "scalar";
  const std::vector<std::string> targets = SupportedTargets();
  std::string text;
  bool alike = true;
  for (std::size_t i = 0; i < kernel.units.size(); ++i) {
    const bool last = i + 1 == kernel.units.size();
    text += targets[i];
    if (last || kernel.units[i + 1] != kernel.units[i]) {
      text += ": " + kernel.units[i] + (last ? "" : "; ");
    } else {
      text += " ";
    }
    alike = alike && kernel.units[i] == kernel.units[0];
  }
  if (!alike) return text;
  return kernel.vectorised ? kernel.units[0] + " on every supported target" : kernel.units[0];
}

bool Holds(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// What the names of units mean, of those that are shown.
void PrintLegend(std::ostream& out) {
  struct Meaning {
    const char *unit, *text;
  };
  static constexpr Meaning kMeanings[] = {
      {"fma",
       "multiply-adds in f32, in f64 for f64; bf16 and f16 are promoted to f32.\n"
       "            SSE2 has no fused ones: it multiplies and adds separately"},
      {"bf16 dot", "products of bf16 pairs, summed in f32"},
      {"amx", "tiles of bf16, summed in f32"},
      {"scalar", "plain code, the same on all targets"},
  };
  std::vector<std::string> shown;
  for (const KernelInfo& kernel : Kernels()) {
    shown.insert(shown.end(), kernel.units.begin(), kernel.units.end());
  }
  constexpr std::size_t kUnitWidth = 10;
  out << "units\n";
  for (const Meaning& meaning : kMeanings) {
    std::string unit = meaning.unit;
    if (!Holds(shown, unit)) continue;
    unit.resize(kUnitWidth, ' ');
    out << "  " << unit << meaning.text << "\n";
  }
}

void PrintText(const std::string& chosen, std::ostream& out) {
  out << "flashlane  " << Version() << "\ncpu        " << CpuName() << "\ntargets\n  compiled   "
      << Join(CompiledTargets(), " ") << "\n  supported  " << Join(SupportedTargets(), " ")
      << "\n  chosen     " << chosen << "\n";
  const std::string unused = Join(UnusedTargets(), ", ");
  if (!unused.empty()) out << "  unused     " << unused << "\n";
  out << "kernels\n";
  std::size_t width = 0;
  for (const KernelInfo& kernel : Kernels()) width = std::max(width, kernel.name.size());
  std::string previous;
  for (const KernelInfo& kernel : Kernels()) {
    const std::string name = kernel.name == previous ? "" : kernel.name;
    const std::string dtype = LowerDTypeName(kernel.dtype);
    constexpr std::size_t kDTypeWidth = 4;  // of "bf16"
    out << "  " << name << std::string(width + 2 - name.size(), ' ') << dtype
        << std::string(kDTypeWidth + 2 - dtype.size(), ' ') << UnitsOf(kernel) << "\n";
    previous = kernel.name;
  }
  PrintLegend(out);
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
