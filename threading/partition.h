// Cuts ordered, independent units of work into tasks of like cost. Pure arithmetic: starts nothing.
#ifndef FLASHLANE_THREADING_PARTITION_H_
#define FLASHLANE_THREADING_PARTITION_H_

#include <array>
#include <cstdint>
#include <span>

#include "threading/function_ref.h"
#include "threading/scratch.h"

namespace flashlane::threading {

// Units [begin, end). Without initialisers: a Partition on the stack must cost nothing to make.
struct Task {
  int64_t begin;
  int64_t end;
  uint64_t cost;  // saturates
};

// The cost of one unit, in any unit of measure; cheap, and the same whenever it is asked.
using UnitCost = FunctionRef<uint64_t(int64_t unit) noexcept>;

// Tasks at most. 16 for each of 256 workers, so the last task to end costs a worker at most a few
// percent; and their list (96 KiB, twice for the sort) stays in L2.
inline constexpr int64_t kMaxTasks = 4096;

// Tasks whose list needs no memory but the Partition itself (twice 1.5 KiB of the caller's stack).
inline constexpr int64_t kInlineTasks = 64;

// How long a task should last at least to be worth spawning.
inline constexpr uint64_t kMinTaskNanoseconds = 20000;

// A list of tasks. Make one per call on the stack: longer lists borrow from the thread's scratch
// cache, so after warm-up nothing is allocated.
class Partition {
 public:
  Partition() noexcept {}  // not "= default": value-initialisation would clear 3 KiB
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  // Groups consecutive units until each task costs at least min_task_cost; a remainder that costs
  // less joins the task before it, so only the one task of a small call may cost less. Where there
  // would be more than kMaxTasks, the least cost is raised instead. Costs may be 0 and their sum
  // saturates. O(num_units); asks each cost once, twice above kMaxTasks units. Cannot fail: without
  // memory the tasks become fewer.
  void Cut(int64_t num_units, UnitCost unit_cost, uint64_t min_task_cost) noexcept;
  void Cut(std::span<const uint64_t> unit_costs, uint64_t min_task_cost) noexcept;

  // Every unit in exactly one task; longest tasks first, to within a quarter of an octave: of two
  // tasks whose costs are nearer than 25 % the one with the earlier units may come first, because
  // neighbours share what is in cache (K and V of one head). Deterministic.
  std::span<const Task> tasks() const noexcept { return {tasks_, static_cast<size_t>(num_tasks_)}; }

 private:
  void Reserve(int64_t num_units) noexcept;
  void OrderLongestFirst() noexcept;

  std::array<Task, 2 * kInlineTasks> inline_tasks_;
  Scratch storage_;
  Task* tasks_ = inline_tasks_.data();
  Task* spare_ = inline_tasks_.data() + kInlineTasks;
  int64_t capacity_ = kInlineTasks;
  int64_t num_tasks_ = 0;
};

// The rows to cut and who shares the work.
struct TileShape {
  int64_t rows = 0;                  // of one unit, such as one kv head of one sequence
  int64_t block_rows = 1;            // a tile's best size, and its largest
  int64_t granule = 1;               // tiles start at multiples of it; divides block_rows
  int64_t other_parallel_units = 1;  // how many units like this there are
};

// Rows per tile: block_rows where that gives every thread some three tiles, else fewer, down to
// granule, and then of even size. Always a multiple of granule.
int64_t RowsPerTile(const TileShape& shape, int threads) noexcept;

}  // namespace flashlane::threading

#endif  // FLASHLANE_THREADING_PARTITION_H_
