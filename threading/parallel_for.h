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
  // The calling thread's, of scratch_bytes, where it is held already: then nothing can fail.
  void* caller_scratch = nullptr;
};

// How long a task should last at least: what Partition's min_task_cost should be worth. Measured
// with bench/threading_bench on two Zen 4 cores, one against two threads:
// - workers awake: two tasks of 0.5 us take 1.0 against 1.1 us, of 1 us 2.0 : 1.6, of 5 us
//   10.0 : 5.7, of 10 us 20.0 : 10.7 (a call costs 0.1 us, and 0.65 us until the other worker
//   runs);
// - workers asleep (1 ms without work): they come some 15 us late, and waking them costs the caller
//   0.5 to 2 us: two tasks of 10 us take 20.0 : 20.4 to 22, of 20 us 40 : 39 to 42, of 50 us
//   100 : 64 to 71.
// At 10 us a call in a busy loop gains nearly all there is, and one after a pause loses at most a
// tenth; 20 us would lose nothing after a pause, but give away half of every 20 to 40 us call.
inline constexpr int64_t kMinTaskNanoseconds = 10'000;

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
