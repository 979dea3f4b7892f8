// What threading/ allocates, and what it does when it cannot. Replaces operator new for its whole
// binary, so it is a binary of its own. oneTBB's pools use their own allocator and are not seen
// here.
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "threading/parallel_for.h"
#include "threading/partition.h"
#include "threading/scratch.h"

namespace {

std::atomic<int64_t> g_allocations{0};
std::atomic<int64_t> g_live{0};
enum class Refuse { kNobody, kEverybody, kAllButOneThread };
std::atomic<Refuse> g_refuse{Refuse::kNobody};  // aligned allocations only: those of Scratch
thread_local bool t_is_that_one = false;

void* Count(void* p) {
  if (p == nullptr) return nullptr;
  ++g_allocations;
  ++g_live;
  return p;
}

void* Plain(size_t bytes) {
  void* p = Count(std::malloc(bytes == 0 ? 1 : bytes));
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

void* Aligned(size_t bytes, std::align_val_t alignment) noexcept {
  const Refuse refuse = g_refuse;
  if (refuse == Refuse::kEverybody) return nullptr;
  if (refuse == Refuse::kAllButOneThread && !t_is_that_one) return nullptr;
  const size_t a = static_cast<size_t>(alignment);
  return Count(std::aligned_alloc(a, (bytes + a - 1) / a * a));
}

void Release(void* p) noexcept {
  if (p != nullptr) --g_live;
  std::free(p);
}

}  // namespace

void* operator new(size_t bytes) { return Plain(bytes); }
void* operator new[](size_t bytes) { return Plain(bytes); }
void* operator new(size_t bytes, std::align_val_t a, const std::nothrow_t&) noexcept {
  return Aligned(bytes, a);
}
void operator delete(void* p) noexcept { Release(p); }
void operator delete[](void* p) noexcept { Release(p); }
void operator delete(void* p, size_t) noexcept { Release(p); }
void operator delete[](void* p, size_t) noexcept { Release(p); }
void operator delete(void* p, std::align_val_t) noexcept { Release(p); }

namespace flashlane::threading {
namespace {

constexpr size_t kScratch = 100'000;

// Two tasks that wait for each other, so that both workers of the arena have warmed up.
void RunOnBoth(size_t scratch_bytes) {
  std::atomic<int> arrived{0};
  EXPECT_TRUE(ParallelFor(2, {2, scratch_bytes}, [&](int64_t, void*) noexcept {
    ++arrived;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(arrived, 2);
  }));
}

void InArenaOfTwo(auto body) {
  tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 2);
  tbb::task_arena(2).execute(body);
}

TEST(Memory, TheCounterCounts) {
  const int64_t before = g_allocations;
  { const Scratch scratch(kMaxCachedScratchBytes + 1); }
  EXPECT_EQ(g_allocations, before + 1);
}

TEST(Memory, InlineCallsDoNotAllocate) {
  const auto run = [] {
    EXPECT_TRUE(ParallelFor(1, {0, kScratch}, [](int64_t, void*) noexcept {}));
    EXPECT_TRUE(ParallelFor(5, {1, kScratch}, [](int64_t, void*) noexcept {
      EXPECT_TRUE(ParallelFor(1, {0, kScratch}, [](int64_t, void*) noexcept {}));
    }));
  };
  run();
  const int64_t before = g_allocations;
  for (int i = 0; i < 1000; ++i) run();
  EXPECT_EQ(g_allocations, before);
}

TEST(Memory, ParallelCallsDoNotAllocate) {
  InArenaOfTwo([] {
    for (int i = 0; i < 3; ++i) RunOnBoth(kScratch);
    const int64_t before = g_allocations;
    for (int i = 0; i < 1000; ++i) RunOnBoth(kScratch - static_cast<size_t>(i));
    EXPECT_EQ(g_allocations, before);
  });
}

TEST(Memory, PartitionsDoNotAllocate) {
  const auto cut = [](int64_t num_units) {
    Partition partition;
    partition.Cut(
        num_units, [](int64_t unit) noexcept { return uint64_t(unit % 7); }, 6);
    EXPECT_TRUE(ParallelFor(1, {0, kScratch}, [](int64_t, void*) noexcept {}));
  };
  std::thread([&] {  // with a cold cache
    const int64_t fresh = g_allocations;
    Partition small;
    small.Cut(
        kInlineTasks, [](int64_t unit) noexcept { return uint64_t(unit); }, 0);
    EXPECT_EQ(g_allocations, fresh);
    cut(1'000'000);
    const int64_t before = g_allocations;
    for (const int64_t n : {1, 64, 65, 5000, 100'000, 2'000'000}) cut(n);
    EXPECT_EQ(g_allocations, before);
  })
      .join();
}

TEST(Memory, GrowingNeedsKeepOneBlock) {
  std::thread([] {
    const int64_t before = g_live;
    for (size_t bytes = 1; bytes < kMaxCachedScratchBytes; bytes *= 2) {
      EXPECT_TRUE(Scratch(bytes).ok());
      EXPECT_EQ(g_live, before + 1);
    }
  }).join();
}

TEST(Memory, ThreadsAndHugeLoansLeaveNothingBehind) {
  const int64_t before = g_live;
  std::thread([] {
    const int64_t empty = g_live;
    EXPECT_TRUE(ParallelFor(1, {0, kScratch}, [](int64_t, void*) noexcept {}));
    EXPECT_EQ(g_live, empty + 1);
    { const Scratch huge(kMaxCachedScratchBytes + 1); }
    EXPECT_EQ(g_live, empty + 1);  // neither kept, nor at the cost of the one that is
  }).join();
  EXPECT_EQ(g_live, before);
}

// A destructor that runs after the cache's own must still be able to borrow.
TEST(Memory, LoansAtThreadExit) {
  struct Late {
    ~Late() { EXPECT_TRUE(Scratch(kScratch).ok()); }
  };
  const int64_t before = g_live;
  std::thread([] {
    static thread_local Late late;  // constructed first, destroyed last
    (void)&late;
    EXPECT_TRUE(Scratch(kScratch).ok());
  }).join();
  EXPECT_EQ(g_live, before);
}

TEST(Memory, LoansEndInAnyOrderOnAnyThread) {
  const int64_t before = g_live;
  std::thread([] {
    auto* first = new Scratch(kScratch);
    Scratch second(kScratch), empty;
    EXPECT_NE(first->data(), second.data());
    EXPECT_GE(second.bytes(), kScratch);
    std::thread([first] { delete first; }).join();
    empty = std::move(second);
    EXPECT_TRUE(empty.ok());
  }).join();
  EXPECT_EQ(g_live, before);
}

TEST(Memory, NoScratchForAnybodyRunsNothing) {
  std::thread([] {
    g_refuse = Refuse::kEverybody;
    for (const int64_t num_tasks : {1, 2, 100}) {
      EXPECT_FALSE(ParallelFor(num_tasks, {0, kScratch}, [](int64_t, void*) noexcept { FAIL(); }));
    }
    g_refuse = Refuse::kNobody;
    EXPECT_TRUE(ParallelFor(1, {0, kScratch}, [](int64_t, void*) noexcept {}));
  }).join();
}

TEST(Memory, TheCallerFinishesForWorkersWithoutScratch) {
  InArenaOfTwo([] {
    constexpr size_t kMoreThanCached = kMaxCachedScratchBytes + 1;  // so everyone has to ask
    RunOnBoth(0);                                                   // the other worker is awake
    t_is_that_one = true;
    g_refuse = Refuse::kAllButOneThread;
    std::atomic<int> runs{0};
    const std::thread::id caller = std::this_thread::get_id();
    EXPECT_TRUE(ParallelFor(20, {0, kMoreThanCached}, [&](int64_t, void*) noexcept {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++runs;
    }));
    g_refuse = Refuse::kNobody;
    EXPECT_EQ(runs, 20);
  });
}

TEST(Memory, PartitionWithoutMemoryIsCoarser) {
  std::thread([] {
    g_refuse = Refuse::kEverybody;
    Partition partition;
    partition.Cut(
        1000, [](int64_t) noexcept { return uint64_t{1}; }, 1);
    g_refuse = Refuse::kNobody;
    EXPECT_GT(partition.tasks().size(), 1u);
    EXPECT_LE(partition.tasks().size(), static_cast<size_t>(kInlineTasks));
    int64_t units = 0;
    for (const Task& task : partition.tasks()) units += task.end - task.begin;
    EXPECT_EQ(units, 1000);
  }).join();
}

}  // namespace
}  // namespace flashlane::threading
