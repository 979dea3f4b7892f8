#include "threading/partition.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace flashlane::threading {
namespace {

uint64_t SaturatingAdd(uint64_t a, uint64_t b) noexcept {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) noexcept { return a / b + (a % b != 0 ? 1 : 0); }

// The position of the leading bit and the two bits after it: grows with the cost, and costs of one
// class are within 25 % of each other.
constexpr int CostClass(uint64_t cost) noexcept {
  if (cost < 4) return static_cast<int>(cost);
  const int width = std::bit_width(cost);
  return 4 * (width - 2) + static_cast<int>((cost >> (width - 3)) & 3);
}
constexpr int kCostClasses = CostClass(std::numeric_limits<uint64_t>::max()) + 1;

}  // namespace

void Partition::Reserve(int64_t num_units) noexcept {
  const int64_t wanted = std::min(num_units, kMaxTasks);
  if (wanted <= capacity_) return;
  Scratch storage(2 * static_cast<size_t>(wanted) * sizeof(Task));
  if (!storage.ok()) return;  // coarser tasks, the same results
  storage_ = std::move(storage);
  tasks_ = static_cast<Task*>(storage_.data());
  spare_ = tasks_ + wanted;
  capacity_ = wanted;
}

void Partition::Cut(int64_t num_units, UnitCost unit_cost, uint64_t min_task_cost) noexcept {
  num_tasks_ = 0;
  if (num_units <= 0) return;
  Reserve(num_units);
  if (num_units > capacity_) {
    uint64_t total = 0;
    for (int64_t unit = 0; unit < num_units; ++unit) total = SaturatingAdd(total, unit_cost(unit));
    // Each task costs more than total / capacity, so fewer than capacity fit into total.
    min_task_cost = std::max(min_task_cost, total / static_cast<uint64_t>(capacity_) + 1);
  }

  Task open{0, 0, 0};
  for (int64_t unit = 0; unit < num_units; ++unit) {
    open.end = unit + 1;
    open.cost = SaturatingAdd(open.cost, unit_cost(unit));
    // A saturated total is too small a bound; then the last task takes what is left.
    if (open.cost < min_task_cost || num_tasks_ == capacity_ - 1) continue;
    tasks_[num_tasks_++] = open;
    open = Task{unit + 1, unit + 1, 0};
  }
  if (open.begin < open.end) {
    if (num_tasks_ == 0 || open.cost >= min_task_cost) {
      tasks_[num_tasks_++] = open;
    } else {
      Task& last = tasks_[num_tasks_ - 1];
      last.end = open.end;
      last.cost = SaturatingAdd(last.cost, open.cost);
    }
  }
  OrderLongestFirst();
}

void Partition::Cut(std::span<const uint64_t> unit_costs, uint64_t min_task_cost) noexcept {
  const auto unit_cost = [unit_costs](int64_t unit) noexcept {
    return unit_costs[static_cast<size_t>(unit)];
  };
  Cut(static_cast<int64_t>(unit_costs.size()), unit_cost, min_task_cost);
}

// A counting sort: stable, and linear where std::sort would cost more than many tasks are worth
// (4096 tasks: 0.15 ms, on the one thread that all others wait for).
void Partition::OrderLongestFirst() noexcept {
  const auto before = [](const Task& a, const Task& b) noexcept {
    return CostClass(a.cost) > CostClass(b.cost);
  };
  if (std::is_sorted(tasks_, tasks_ + num_tasks_, before)) return;

  std::array<int32_t, kCostClasses> next{};
  for (const Task& task : tasks()) ++next[static_cast<size_t>(CostClass(task.cost))];
  int32_t position = 0;
  for (size_t c = next.size(); c-- > 0;) position += std::exchange(next[c], position);
  for (const Task& task : tasks()) spare_[next[static_cast<size_t>(CostClass(task.cost))]++] = task;
  std::swap(tasks_, spare_);
}

int64_t RowsPerTile(const TileShape& shape, int threads) noexcept {
  const int64_t granule = std::max<int64_t>(shape.granule, 1);
  const int64_t block_rows = std::max(shape.block_rows / granule * granule, granule);
  if (threads <= 1 || shape.rows <= granule) return block_rows;

  // Workers that take tasks from one list end within one task of each other: with three each, that
  // is a third of a share at worst and, as the last tasks are the short ones, commonly far less.
  // More tiles would read K and V more often.
  constexpr int64_t kTilesPerThread = 3;
  const int64_t tiles =
      CeilDiv(kTilesPerThread * threads, std::max<int64_t>(shape.other_parallel_units, 1));
  const int64_t rows = std::max(shape.rows / tiles / granule * granule, granule);
  if (rows >= block_rows) return block_rows;
  // The same number of tiles, none of them a small remainder.
  const int64_t even = CeilDiv(shape.rows, CeilDiv(shape.rows, rows));
  return CeilDiv(even, granule) * granule;
}

}  // namespace flashlane::threading
