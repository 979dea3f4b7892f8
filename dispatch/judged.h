// What `flashlane judge` found out about this machine: coefficients per row of the registry and
// target, set and read at any time from any thread. They decide how work is spread, never a bit.
#ifndef FLASHLANE_DISPATCH_JUDGED_H_
#define FLASHLANE_DISPATCH_JUDGED_H_

#include <cstdint>
#include <optional>

#include "dispatch/registry.h"
#include "flashlane/fkc.h"
#include "flashlane/status.h"

namespace flashlane {

// target: a bit of CompiledTargetList(). False for one that is not.
bool SetJudged(const KernelRow& row, int64_t target, const fkc::Coefficients& coefficients);
std::optional<fkc::Coefficients> FindJudged(const KernelRow& row, int64_t target);
bool AnyJudged(const KernelRow& row);  // for any target
// For where there are none; target: null where there are none for any.
Status NotJudged(const KernelRow& row, const char* target);
void ClearJudged();

// From how much work on, in the unit of TileCost, a task of the kernel is worth spawning:
// threading::kMinTaskNanoseconds at its judged speed, or kMinTaskCost. One relaxed load: every call
// asks.
uint64_t MinTaskCost(const KernelRow& row, int64_t target) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_JUDGED_H_
