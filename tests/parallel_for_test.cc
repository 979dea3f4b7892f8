#include "threading/parallel_for.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flashlane::threading {
namespace {

// Waits until `count` threads are here, so that a test can demand that they run at once. A bound
// on the wait makes a missing worker a failure instead of a hang.
bool Rendezvous(std::atomic<int>& arrived, int count) {
  ++arrived;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (arrived < count) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Runs body in an arena of `threads`, with as many threads granted, whatever the machine has.
void InArena(int threads, const std::function<void()>& body) {
  tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 8);
  tbb::task_arena arena(threads);
  arena.execute(body);
}

// The whole control state: on x86 with FTZ and DAZ, but without the sticky exception flags.
uint32_t ControlState() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu;
#else
  return static_cast<uint32_t>(std::fegetround());
#endif
}

TEST(ParallelFor, NoTasks) {
  const auto never = [](int64_t, void*) noexcept { FAIL(); };
  EXPECT_TRUE(ParallelFor(0, {}, never));
  EXPECT_TRUE(ParallelFor(-5, {}, never));
  EXPECT_TRUE(ParallelFor(0, {0, SIZE_MAX}, never));
}

TEST(ParallelFor, InlineRunsInOrderOnTheCaller) {
  for (const auto& [num_tasks, max_threads] : {std::pair{1, 0}, {1, 8}, {100, 1}}) {
    std::vector<int64_t> order;
    const std::thread::id caller = std::this_thread::get_id();
    EXPECT_TRUE(ParallelFor(num_tasks, {max_threads, 100}, [&](int64_t task, void* s) noexcept {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(s) % 64, 0u);
      std::memset(s, 1, 100);
      order.push_back(task);
    }));
    ASSERT_EQ(order.size(), static_cast<size_t>(num_tasks));
    for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<int64_t>(i));
  }
}

TEST(ParallelFor, NoScratchIsNull) {
  EXPECT_TRUE(ParallelFor(3, {1, 0}, [](int64_t, void* s) noexcept { EXPECT_EQ(s, nullptr); }));
}

TEST(ParallelFor, EachTaskOnceWithItsOwnScratchAndWithinTheLimit) {
  constexpr size_t kScratch = 10000;
  for (const int arena : {1, 2, 8}) {
    for (const int limit : {0, 1, 2, 3, 8}) {
      for (const int64_t num_tasks : {2, 3, 7, 40}) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
        std::atomic<int> running{0}, most{0};
        std::mutex mutex;
        std::set<std::thread::id> threads;
        const auto task = [&](int64_t t, void* s) noexcept {
          const int now = ++running;
          for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
          }
          std::memset(s, static_cast<int>(t % 251), kScratch);
          ++runs[static_cast<size_t>(t)];
          {
            const std::lock_guard lock(mutex);
            threads.insert(std::this_thread::get_id());
          }
          // Long enough for every sleeping worker to wake and join, if it wrongly may.
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          const auto* bytes = static_cast<const unsigned char*>(s);
          EXPECT_TRUE(std::all_of(bytes, bytes + kScratch, [&](int b) { return b == t % 251; }));
          --running;
        };
        InArena(arena, [&] { EXPECT_TRUE(ParallelFor(num_tasks, {limit, kScratch}, task)); });
        for (const auto& count : runs) ASSERT_EQ(count, 1);
        const int bound = limit == 0 ? arena : std::min(limit, arena);
        EXPECT_LE(most, bound);
        EXPECT_LE(threads.size(), static_cast<size_t>(bound));
      }
    }
  }
}

TEST(ParallelFor, UsesAsManyThreadsAsItMay) {
  for (const int threads : {2, 3, 8}) {
    InArena(8, [&] {
      std::atomic<int> arrived{0};
      EXPECT_TRUE(ParallelFor(threads, {threads, 64}, [&](int64_t, void*) noexcept {
        EXPECT_TRUE(Rendezvous(arrived, threads));
      }));
    });
  }
}

TEST(ParallelFor, StartsInOrder) {
  InArena(8, [] {
    constexpr int64_t kTasks = 2000;
    std::atomic<int64_t> started{0};
    EXPECT_TRUE(ParallelFor(kTasks, {}, [&](int64_t task, void*) noexcept {
      // All lower indices have been taken; the other seven workers may not have counted theirs.
      EXPECT_LE(task - started.fetch_add(1), 7);
    }));
    EXPECT_EQ(started, kTasks);
  });
}

TEST(AvailableThreads, IsWhatTheArenaAndTheControlAllow) {
  EXPECT_GE(AvailableThreads(), 1);
  for (const int threads : {1, 2, 8}) {
    InArena(threads, [&] { EXPECT_EQ(AvailableThreads(), threads); });
  }
  tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  tbb::task_arena(2).execute([] { EXPECT_EQ(AvailableThreads(), 1); });
}

TEST(ParallelFor, FromPlainThreadsAtOnce) {
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call < 200; ++call) {
        EXPECT_TRUE(ParallelFor(10, {0, 256}, [&](int64_t t, void*) noexcept { sum += t; }));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 6 * 200 * 45);
}

// While the caller waits it must not take up an outer task: it could hold a lock that that wants.
// One worker is kept busy within the call; a third thread offers an outer task to the waiting
// caller and does not run it itself.
TEST(ParallelFor, WaitingDoesNotStealOuterTasks) {
  tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 8);
  tbb::task_arena arena(3, /*reserved_for_masters=*/2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> waiting{false}, offered{false}, done{false}, stolen{false};
  std::thread third([&] {
    arena.execute([&] {
      while (!waiting) std::this_thread::yield();
      tbb::task_group outer;
      outer.run([&] { stolen = std::this_thread::get_id() == caller; });
      offered = true;
      while (!done) std::this_thread::yield();
      outer.wait();
    });
  });
  arena.execute([&] {
    std::atomic<int> arrived{0};
    EXPECT_TRUE(ParallelFor(2, {2, 64}, [&](int64_t, void*) noexcept {
      EXPECT_TRUE(Rendezvous(arrived, 2));
      if (std::this_thread::get_id() == caller) {
        waiting = true;  // from here on the caller only waits
      } else {
        while (!offered) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }));
    done = true;
  });
  third.join();
  EXPECT_FALSE(stolen);
}

TEST(ParallelFor, FromManyOuterTasks) {
  InArena(4, [] {
    static thread_local int depth;
    std::atomic<int> inner{0};
    tbb::parallel_for(0, 200, [&](int) {
      EXPECT_EQ(depth++, 0);
      EXPECT_TRUE(ParallelFor(4, {0, 64}, [&](int64_t, void*) noexcept { ++inner; }));
      --depth;
    });
    EXPECT_EQ(inner, 800);
  });
}

TEST(ParallelFor, NestedScratchIsNotSharedWithTheOuterLevel) {
  constexpr size_t kScratch = 4096;
  InArena(4, [] {
    std::atomic<int> done{0};
    EXPECT_TRUE(ParallelFor(40, {0, kScratch}, [&](int64_t outer, void* s) noexcept {
      std::memset(s, static_cast<int>(outer), kScratch);
      for (const int limit : {1, 0}) {
        EXPECT_TRUE(ParallelFor(8, {limit, kScratch}, [&](int64_t inner, void* s2) noexcept {
          EXPECT_NE(s, s2);
          std::memset(s2, 100 + static_cast<int>(inner), kScratch);
        }));
      }
      // A wait that is not isolated may run this call's own other workers on this very stack.
      tbb::parallel_for(0, 16, [&](int) { std::this_thread::yield(); });
      const auto* bytes = static_cast<const unsigned char*>(s);
      EXPECT_TRUE(std::all_of(bytes, bytes + kScratch, [&](int b) { return b == outer; }));
      ++done;
    }));
    EXPECT_EQ(done, 40);
  });
}

TEST(ParallelFor, CancelledOuterGroupGetsAWholeAnswerInParallel) {
  InArena(4, [] {
    std::atomic<int> runs{0}, arrived{0};
    tbb::task_group_context context;
    tbb::parallel_for(
        0, 1,
        [&](int) {
          context.cancel_group_execution();
          EXPECT_TRUE(ParallelFor(100, {}, [&](int64_t task, void*) noexcept {
            if (task < 2) {
              EXPECT_TRUE(Rendezvous(arrived, 2));
            }
            ++runs;
          }));
        },
        context);
    EXPECT_EQ(runs, 100);
  });
}

// One task per thread of the arena, each on its own thread, so that every worker reports.
std::vector<uint32_t> StatesOnAllThreads(int threads, bool plain_tbb = false) {
  std::vector<uint32_t> states(static_cast<size_t>(threads));
  std::atomic<int> arrived{0};
  const auto task = [&](int64_t t, void*) noexcept {
    EXPECT_TRUE(Rendezvous(arrived, threads));
    states[static_cast<size_t>(t)] = ControlState();
  };
  if (plain_tbb) {
    tbb::parallel_for(
        tbb::blocked_range<int>(0, threads, 1), [&](auto& r) { task(r.begin(), nullptr); },
        tbb::simple_partitioner());
  } else {
    EXPECT_TRUE(ParallelFor(threads, {}, task));
  }
  return states;
}

TEST(ParallelFor, WorkersRunInTheCallersFloatingPointEnvironment) {
  for (const int threads : {1, 2, 4}) {
    InArena(threads, [&] {
      const uint32_t before = ControlState();
      const std::vector<uint32_t> usual(static_cast<size_t>(threads), before);
      EXPECT_EQ(StatesOnAllThreads(threads), usual);

      std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
      _mm_setcsr(_mm_getcsr() | 0x8040u);  // FTZ and DAZ
#endif
      const uint32_t odd = ControlState();
      EXPECT_NE(odd, before);
      EXPECT_EQ(StatesOnAllThreads(threads), std::vector<uint32_t>(usual.size(), odd));
      EXPECT_EQ(ControlState(), odd);

      std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
      _mm_setcsr(_mm_getcsr() & ~0x8040u);
#endif
      EXPECT_EQ(ControlState(), before);
      // Nothing odd stays behind on the workers, neither for us nor for others' tasks.
      EXPECT_EQ(StatesOnAllThreads(threads, /*plain_tbb=*/true), usual);
      EXPECT_EQ(StatesOnAllThreads(threads), usual);
    });
  }
}

TEST(ParallelFor, OutOfMemoryFailsBeforeAnyTask) {
  const auto never = [](int64_t, void*) noexcept { FAIL(); };
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2}) {
    for (const int64_t num_tasks : {1, 100}) {
      EXPECT_FALSE(ParallelFor(num_tasks, {0, bytes}, never));
      EXPECT_FALSE(ParallelFor(num_tasks, {1, bytes}, never));
    }
  }
}

// The contract "tasks do not throw" is checked where the task is written.
using Throwing = decltype([](int64_t, void*) {});
using NotThrowing = decltype([](int64_t, void*) noexcept {});
static_assert(std::is_constructible_v<TaskFunction, NotThrowing&>);
static_assert(std::is_constructible_v<TaskFunction, NotThrowing>);
static_assert(!std::is_constructible_v<TaskFunction, Throwing&>);
static_assert(std::is_constructible_v<FunctionRef<void(int64_t, void*)>, Throwing&>);
static_assert(sizeof(TaskFunction) == 2 * sizeof(void*));
static_assert(std::is_trivially_copyable_v<TaskFunction>);

}  // namespace
}  // namespace flashlane::threading
