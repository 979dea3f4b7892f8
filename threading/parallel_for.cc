#include "threading/parallel_for.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>

#include <algorithm>
#include <atomic>

#include "threading/scratch.h"

namespace flashlane::threading {
namespace {

namespace tbb = oneapi::tbb;

// One call. Workers take the next index themselves, so tasks start in order whichever worker is
// free, and a worker that never comes leaves nothing undone.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): padding is what alignas is for.
struct Call {
  int64_t num_tasks;
  size_t scratch_bytes;
  TaskFunction run;
  // On its own cache line: every worker writes it, while the fields above are only read.
  alignas(kScratchAlignment) std::atomic<int64_t> next{0};

  bool Exhausted() const noexcept { return next.load(std::memory_order_relaxed) >= num_tasks; }

  void TakeTasks(void* scratch) noexcept {
    while (true) {
      // Relaxed: the index is all that is shared here; oneTBB's spawn and wait order the rest.
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks) return;
      run(task, scratch);
    }
  }
};

// Worker 0 uses the scratch that the calling thread holds, whoever runs it; others get their own.
void RunWorkers(Call& call, int workers, void* caller_scratch) {
  const auto work = [&call, caller_scratch](const tbb::blocked_range<int>& range) noexcept {
    for (int worker = range.begin(); worker != range.end(); ++worker) {
      if (worker == 0) {
        call.TakeTasks(caller_scratch);
      } else if (!call.Exhausted()) {
        const Scratch scratch(call.scratch_bytes);
        if (scratch.ok()) call.TakeTasks(scratch.data());
      }
    }
  };
  // Isolated: a caller that cancels its own group must not get half an answer with success.
  // fp_settings: captures the caller's control state here; oneTBB sets it around every worker.
  tbb::task_group_context context(tbb::task_group_context::isolated,
                                  tbb::task_group_context::fp_settings);
  // isolate: while waiting, the calling thread takes up no task from outside this call, which
  // could run for long or want what the caller has locked.
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(tbb::blocked_range<int>(0, workers, 1), work, tbb::simple_partitioner(),
                      context);
  });
}

}  // namespace

int AvailableThreads() noexcept {
  try {
    const int arena = tbb::this_task_arena::max_concurrency();
    const size_t allowed =
        tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
    return std::max(1,
                    static_cast<int>(std::min(static_cast<size_t>(std::max(arena, 1)), allowed)));
  } catch (...) {
    return 1;
  }
}

bool ParallelFor(int64_t num_tasks, const ParallelOptions& options, TaskFunction run) noexcept {
  if (num_tasks <= 0) return true;
  const Scratch borrowed(options.caller_scratch == nullptr ? options.scratch_bytes : 0);
  if (!borrowed.ok()) return false;
  void* const scratch =
      options.caller_scratch == nullptr ? borrowed.data() : options.caller_scratch;

  int64_t workers = 1;
  if (num_tasks > 1 && options.max_threads != 1) {
    workers = std::min<int64_t>(num_tasks, AvailableThreads());
    if (options.max_threads > 0) workers = std::min<int64_t>(workers, options.max_threads);
  }
  if (workers == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) run(task, scratch);
    return true;
  }

  Call call{num_tasks, options.scratch_bytes, run};
  try {
    RunWorkers(call, static_cast<int>(workers), scratch);
  } catch (...) {
    // Tasks do not throw: oneTBB lacked memory or threads. All workers that started have ended.
  }
  call.TakeTasks(scratch);  // whatever nobody took; commonly nothing
  return true;
}

}  // namespace flashlane::threading
