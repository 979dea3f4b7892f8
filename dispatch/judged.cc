#include "dispatch/judged.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>

#include "dispatch/cost.h"
#include "dispatch/dtype.h"
#include "dispatch/target.h"
#include "kernels/amx_config.h"
#include "threading/parallel_for.h"

namespace flashlane {
namespace {

// Room for more rows and targets than there are (44 and 6 on x86); a test fails where it is not.
constexpr size_t kMaxRows = 96;
constexpr size_t kMaxTargets = 12;
constexpr size_t kNone = kMaxRows * kMaxTargets;

struct Table {
  std::mutex mutex;  // of coefficients, which only estimates read
  std::optional<fkc::Coefficients> coefficients[kNone];
  std::atomic<uint64_t> min_task_cost[kNone];  // 0: not judged
};

Table& TheTable() {
  static Table table;
  return table;
}

// The compiled targets, not the supported ones: asking for those may change the process. AMX is one
// target, whichever vector target it comes with here.
bool IsTarget(int64_t bit, int64_t target) {
  return bit == target || (bit & target & kernels::kAmxBit) != 0;
}

size_t SlotOf(const KernelRow& row, int64_t target) {
  const auto& targets = CompiledTargetList();
  const auto found = std::find_if(targets.begin(), targets.end(), [target](const Target& other) {
    return IsTarget(other.bit, target);
  });
  const auto column = static_cast<size_t>(found - targets.begin());
  const auto line = static_cast<size_t>(&row - Registry().data());
  if (found == targets.end() || line >= kMaxRows || column >= kMaxTargets) return kNone;
  return line * kMaxTargets + column;
}

// Clamped, so that no coefficient makes a task of nothing, or the sum of two costs wrap.
uint64_t MinTaskCostAt(double ns_per_flop) {
  if (!(ns_per_flop > 0)) return kMinTaskCost;
  constexpr double kMost = 4611686018427387904.0;  // 2^62
  const double flops = static_cast<double>(threading::kMinTaskNanoseconds) / ns_per_flop;
  return static_cast<uint64_t>(std::clamp(flops, 1.0, kMost));
}

}  // namespace

bool SetJudged(const KernelRow& row, int64_t target, const fkc::Coefficients& coefficients) {
  const size_t slot = SlotOf(row, target);
  if (slot == kNone) return false;
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  table.coefficients[slot] = coefficients;
  table.min_task_cost[slot].store(MinTaskCostAt(coefficients.ns_per_flop),
                                  std::memory_order_relaxed);
  return true;
}

std::optional<fkc::Coefficients> FindJudged(const KernelRow& row, int64_t target) {
  const size_t slot = SlotOf(row, target);
  if (slot == kNone) return std::nullopt;
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  return table.coefficients[slot];
}

bool AnyJudged(const KernelRow& row) {
  const auto& targets = CompiledTargetList();
  return std::any_of(targets.begin(), targets.end(), [&row](const Target& target) {
    const size_t slot = SlotOf(row, target.bit);
    return slot != kNone && TheTable().min_task_cost[slot].load(std::memory_order_relaxed) != 0;
  });
}

Status NotJudged(const KernelRow& row, const char* target) {
  return Status::Unsupported(std::string("coefficients: none are set of ") + row.name + " for " +
                             DTypeName(row.dtype) +
                             (target == nullptr ? "" : std::string(" on ") + target));
}

void ClearJudged() {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  for (size_t slot = 0; slot < kNone; ++slot) {
    table.coefficients[slot].reset();
    table.min_task_cost[slot].store(0, std::memory_order_relaxed);
  }
}

uint64_t MinTaskCost(const KernelRow& row, int64_t target) noexcept {
  const size_t slot = SlotOf(row, target);
  if (slot == kNone) return kMinTaskCost;
  const uint64_t cost = TheTable().min_task_cost[slot].load(std::memory_order_relaxed);
  return cost == 0 ? kMinTaskCost : cost;
}

}  // namespace flashlane
