// The one place that knows vector targets by name: what is compiled, what the machine runs, what a
// call gets.
#ifndef FLASHLANE_DISPATCH_TARGET_H_
#define FLASHLANE_DISPATCH_TARGET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flashlane/status.h"

namespace flashlane {

// A Highway target bit, perhaps with kernels::kAmxBit, and its name.
struct Target {
  int64_t bit = 0;
  const char* name = "";
};

// Best first.
const std::vector<Target>& CompiledTargetList();
const std::vector<Target>& SupportedTargetList();

// The target for a call: `requested` if not null, else FLASHLANE_TARGET, else the best supported.
// Names are compared without case. An unknown name is InvalidArgument; one that this build or this
// machine lacks is Unsupported; both messages list what there is.
Status ResolveTarget(const char* requested, Target* target);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_TARGET_H_
