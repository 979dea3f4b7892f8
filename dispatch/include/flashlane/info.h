// What this build and this machine offer.
#ifndef FLASHLANE_INFO_H_
#define FLASHLANE_INFO_H_

#include <string>
#include <vector>

#include "flashlane/export.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// Version of the library, "major.minor.patch".
FLASHLANE_API const char* Version() noexcept;

// The CPU's own name, as the operating system reports it; "unknown" where it does not.
FLASHLANE_API std::string CpuName();

// Names of the vector targets, best first: compiled into the library; those that this machine can
// also run; and the one a call without ExecOptions::target uses (FLASHLANE_TARGET or the best).
FLASHLANE_API std::vector<std::string> CompiledTargets();
FLASHLANE_API std::vector<std::string> SupportedTargets();
FLASHLANE_API Status ChosenTarget(std::string* name);

// One row of the kernel registry: a kernel that is not listed does not exist.
struct KernelInfo {
  std::string name;  // "attention_flash", "merge_states", "kv_append", ...
  DType dtype;
  bool vectorised;  // runs on the chosen target; otherwise scalar code, the same on all
  // What multiplies on each of SupportedTargets(): "fma" (multiply-adds in F32, in F64 for F64;
  // BF16 and F16 are promoted to F32. SSE2 has no fused ones and multiplies and adds separately),
  // "bf16 dot" (pairs of bf16, summed in F32), "amx" (tiles of bf16, summed in F32); "scalar" where
  // not vectorised. Empty for merge_states, rope and the kv_ kernels.
  std::vector<std::string> units;
};
FLASHLANE_API std::vector<KernelInfo> Kernels();

}  // namespace flashlane

#endif  // FLASHLANE_INFO_H_
