#include "dispatch/target.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/amx.h"
#include "dispatch/environment.h"
#include "hwy/targets.h"
#include "kernels/amx_config.h"
#include "kernels/kernels.h"

namespace flashlane {
namespace {

// Every target that Highway can name on any architecture: tells a misspelt name from one that is
// only absent here.
bool IsKnownName(std::string_view name);

bool SameName(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

bool IsKnownName(std::string_view name) {
  // hwy/targets.h up to Highway 1.3, which brought AVX10_2.
  static constexpr std::string_view kElsewhere[] = {
      "AMX",   "AVX10_2", "AVX3_SPR", "AVX3_ZEN4", "AVX3_DL",   "AVX3",        "AVX2",
      "SSE4",  "SSSE3",   "SSE2",     "NEON",      "NEON_BF16", "SVE",         "NEON_WITHOUT_AES",
      "SVE2",  "SVE_256", "SVE2_128", "RVV",       "PPC8",      "PPC9",        "PPC10",
      "Z14",   "Z15",     "WASM",     "LSX",       "LASX",      "WASM_EMU256", "EMU128",
      "SCALAR"};
  return std::any_of(std::begin(kElsewhere), std::end(kElsewhere),
                     [&](std::string_view known) { return SameName(known, name); });
}

// Lower bits are better targets (hwy/detect_targets.h). AMX comes first, with the best of the
// vector targets that can work with it.
std::vector<Target> ListOf(int64_t bits, bool has_amx) {
  std::vector<Target> list;
  const int64_t with_amx = has_amx ? bits & kernels::AmxTargets() : 0;
  if (with_amx != 0) list.push_back({(with_amx & -with_amx) | kernels::kAmxBit, "AMX"});
  for (uint64_t rest = static_cast<uint64_t>(bits); rest != 0; rest &= rest - 1) {
    const int64_t bit = static_cast<int64_t>(rest & (~rest + 1));
    list.push_back({bit, hwy::TargetName(bit)});
  }
  return list;
}

const Target* Find(const std::vector<Target>& list, std::string_view name) {
  const auto found = std::find_if(
      list.begin(), list.end(), [&](const Target& target) { return SameName(target.name, name); });
  return found == list.end() ? nullptr : &*found;
}

std::string Names(const std::vector<Target>& list) {
  std::string names;
  for (const Target& target : list) names += (names.empty() ? "" : ", ") + std::string(target.name);
  return names;
}

}  // namespace

const std::vector<Target>& CompiledTargetList() {
  static const std::vector<Target> list = ListOf(kernels::CompiledTargets(), true);
  return list;
}

const std::vector<Target>& SupportedTargetList() {
  // Asked once: CPUID traps in virtual machines and costs tens of microseconds there.
  static const std::vector<Target> list =
      ListOf(kernels::CompiledTargets() & hwy::SupportedTargets(), WhyNoAmx() == nullptr);
  return list;
}

namespace {

// Without asking the operating system for AMX tiles: the permission changes the process (its signal
// stacks must hold the tiles from then on), so a call that names another target does not ask.
const Target* FindSupported(std::string_view name) {
  static const std::vector<Target> vectors =
      ListOf(kernels::CompiledTargets() & hwy::SupportedTargets(), false);
  const Target* found = Find(vectors, name);
  return found != nullptr ? found : Find(SupportedTargetList(), name);
}

}  // namespace

Status ResolveTarget(const char* requested, Target* target) {
  const std::string& forced = Environment::Get().target;
  if (requested == nullptr && forced.empty()) {
    *target = SupportedTargetList().front();  // the baseline runs everywhere, so there is one
    return {};
  }
  const std::string_view name = requested != nullptr ? std::string_view(requested) : forced;
  if (const Target* found = FindSupported(name)) {
    *target = *found;
    return {};
  }
  const std::vector<Target>& supported = SupportedTargetList();
  const std::string subject = std::string(requested != nullptr ? "target" : "FLASHLANE_TARGET") +
                              ": '" + std::string(name) + "' ";
  if (Find(CompiledTargetList(), name) != nullptr) {
    const bool is_amx = (Find(CompiledTargetList(), name)->bit & kernels::kAmxBit) != 0;
    return Status::Unsupported(
        subject + "is compiled in but this CPU does not run it" +
        (is_amx && WhyNoAmx() != nullptr ? " (" + std::string(WhyNoAmx()) + ")" : "") +
        "; it runs " + Names(supported));
  }
  if (IsKnownName(name)) {
    return Status::Unsupported(subject + "is not in this build; this CPU runs " + Names(supported));
  }
  return Status::InvalidArgument(subject + "is not a target; this CPU runs " + Names(supported));
}

}  // namespace flashlane
