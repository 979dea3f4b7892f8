// Runs tasks on the threads of the caller's oneTBB arena.
#ifndef FLASHLANE_THREADING_PARALLEL_FOR_H_
#define FLASHLANE_THREADING_PARALLEL_FOR_H_

#include <cstddef>
#include <cstdint>

#include "threading/function_ref.h"

namespace flashlane::threading {

struct ParallelOptions {
  int max_threads = 0;       // the calling thread counts; 0 or less: as many as the arena has
  size_t scratch_bytes = 0;  // per worker
};

// What a task does. scratch is aligned to 64 bytes, holds at least scratch_bytes of undefined
// contents, and is this worker's alone until the task returns; null where 0 bytes were asked for.
using TaskFunction = FunctionRef<void(int64_t task, void* scratch) noexcept>;

// Threads that ParallelFor may use when called from here: the current arena's, and not more than
// tbb::global_control grants. At least 1.
int AvailableThreads() noexcept;

// Calls run(0, ...) ... run(num_tasks - 1, ...), each once, started in this order, and returns when
// all have ended. One task or one thread: on the calling thread, without oneTBB. Otherwise in the
// current arena; no arena and no thread is ever made for it here.
// - False, and no task has run, where the calling thread cannot get its scratch. A further worker
//   that cannot get it, or that oneTBB cannot start, leaves its share to the others.
// - Tasks run in the caller's floating-point environment (rounding, FTZ, DAZ), on every worker.
// - May be called from within oneTBB tasks and from within run. While it waits, the calling thread
//   runs nothing but tasks of this call. Cancelling an enclosing oneTBB group does not stop it.
// - After warm-up it allocates nothing itself; oneTBB keeps its task objects in per-thread pools.
[[nodiscard]] bool ParallelFor(int64_t num_tasks, const ParallelOptions& options,
                               TaskFunction run) noexcept;

}  // namespace flashlane::threading

#endif  // FLASHLANE_THREADING_PARALLEL_FOR_H_
