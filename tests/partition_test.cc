#include "threading/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <random>
#include <span>
#include <vector>

namespace flashlane::threading {
namespace {

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

std::vector<Task> CutCosts(const std::vector<uint64_t>& costs, uint64_t min_task_cost) {
  Partition partition;
  partition.Cut(costs, min_task_cost);
  return {partition.tasks().begin(), partition.tasks().end()};
}

uint64_t Sum(const std::vector<uint64_t>& costs, const Task& task) {
  return std::accumulate(costs.begin() + task.begin, costs.begin() + task.end, uint64_t{0});
}

// Every unit in exactly one task, whose cost is the sum of its units' costs.
void ExpectCovers(const std::vector<uint64_t>& costs, std::vector<Task> tasks) {
  std::sort(tasks.begin(), tasks.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  int64_t next = 0;
  for (const Task& task : tasks) {
    ASSERT_EQ(task.begin, next);
    ASSERT_LT(task.begin, task.end);
    ASSERT_EQ(task.cost, Sum(costs, task));
    next = task.end;
  }
  ASSERT_EQ(next, static_cast<int64_t>(costs.size()));
}

// Longest first to within 25 %; equal costs in the order of their units.
void ExpectOrdered(const std::vector<Task>& tasks) {
  uint64_t shortest = kHuge;
  for (size_t i = 0; i < tasks.size(); ++i) {
    shortest = std::min(shortest, tasks[i].cost);
    ASSERT_LE(static_cast<double>(tasks[i].cost), 1.25 * static_cast<double>(shortest)) << i;
    if (i > 0 && tasks[i].cost == tasks[i - 1].cost) {
      ASSERT_LT(tasks[i - 1].begin, tasks[i].begin);
    }
  }
}

// When the last of `workers` is done, if each takes the next task whenever it is free.
uint64_t Makespan(std::span<const Task> tasks, int workers) {
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> free_at;
  for (int i = 0; i < workers; ++i) free_at.push(0);
  uint64_t end = 0;
  for (const Task& task : tasks) {
    const uint64_t done = free_at.top() + task.cost;
    free_at.pop();
    free_at.push(done);
    end = std::max(end, done);
  }
  return end;
}

TEST(Partition, NothingToCut) {
  Partition partition;
  EXPECT_TRUE(partition.tasks().empty());
  partition.Cut(std::vector<uint64_t>{}, 10);
  EXPECT_TRUE(partition.tasks().empty());
}

TEST(Partition, OneUnitIsOneTaskHoweverSmall) {
  const std::vector<Task> tasks = CutCosts({3}, 1000);
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].begin, 0);
  EXPECT_EQ(tasks[0].end, 1);
  EXPECT_EQ(tasks[0].cost, 3u);
}

TEST(Partition, RemainderJoinsTheTaskBeforeIt) {
  const std::vector<Task> tasks = CutCosts({5, 5, 5, 5, 5}, 10);
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].begin, 2);  // 15, the longer one, first
  EXPECT_EQ(tasks[0].end, 5);
  EXPECT_EQ(tasks[1].begin, 0);
  EXPECT_EQ(tasks[1].end, 2);
}

TEST(Partition, ZeroCosts) {
  const std::vector<Task> one = CutCosts(std::vector<uint64_t>(10, 0), 1);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].end, 10);
  EXPECT_EQ(CutCosts(std::vector<uint64_t>(10, 0), 0).size(), 10u);
  EXPECT_EQ(CutCosts(std::vector<uint64_t>(kMaxTasks + 1, 0), 0).size(), 1u);
}

TEST(Partition, SumsSaturate) {
  const std::vector<Task> tasks = CutCosts(std::vector<uint64_t>(3, kHuge - 1), kHuge);
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].cost, kHuge);
  // Too many units, each of half the greatest sum: the number of tasks stays within its bound.
  EXPECT_LE(CutCosts(std::vector<uint64_t>(3 * kMaxTasks, kHuge / 2), 0).size(),
            static_cast<size_t>(kMaxTasks));
}

TEST(Partition, RandomCosts) {
  std::mt19937_64 random(1);
  Partition reused;
  for (int round = 0; round < 400; ++round) {
    const size_t num_units = random() % (round % 20 == 0 ? 20000 : 300);
    std::vector<uint64_t> costs(num_units);
    const int bits = static_cast<int>(random() % 40);
    for (uint64_t& cost : costs) cost = random() >> (63 - random() % (bits + 1));
    const uint64_t total = std::accumulate(costs.begin(), costs.end(), uint64_t{0});
    const uint64_t min_task_cost = random() % (total / (1 + random() % 50) + 2);

    reused.Cut(costs, min_task_cost);
    const std::vector<Task> tasks(reused.tasks().begin(), reused.tasks().end());
    ASSERT_NO_FATAL_FAILURE(ExpectCovers(costs, tasks));
    ASSERT_NO_FATAL_FAILURE(ExpectOrdered(tasks));
    ASSERT_LE(tasks.size(), static_cast<size_t>(kMaxTasks));
    for (const Task& task : tasks) {
      if (tasks.size() > 1) {
        ASSERT_GE(task.cost, min_task_cost);
      }
    }
    const std::vector<Task> again = CutCosts(costs, min_task_cost);
    ASSERT_TRUE(std::equal(tasks.begin(), tasks.end(), again.begin(), again.end(),
                           [](auto& a, auto& b) { return a.begin == b.begin && a.end == b.end; }));
  }
}

TEST(Partition, FewUnitsAreNotMergedMoreThanAsked) {
  for (const int64_t n : {kInlineTasks - 1, kInlineTasks, kInlineTasks + 1, kMaxTasks}) {
    EXPECT_EQ(CutCosts(std::vector<uint64_t>(n, 7), 7).size(), static_cast<size_t>(n));
  }
}

TEST(Partition, MillionsOfUnits) {
  constexpr int64_t kUnits = 3'000'000;
  Partition partition;
  partition.Cut(
      kUnits, [](int64_t unit) noexcept { return uint64_t(1 + unit % 5); }, 1);
  EXPECT_LE(partition.tasks().size(), static_cast<size_t>(kMaxTasks));
  EXPECT_GE(partition.tasks().size(), static_cast<size_t>(kMaxTasks * 9 / 10));
  EXPECT_LE(Makespan(partition.tasks(), 256) * 256, 3u * kUnits * 107 / 100);
}

// The profile that longest-first is for: tiles of a causal head cost 1 ... n.
TEST(Partition, CausalWorkIsBalanced) {
  for (const int workers : {1, 2, 3, 8, 32}) {
    const int heads = 8;
    const int tiles = std::max(8, 3 * workers);
    std::vector<uint64_t> costs;
    for (int i = 0; i < heads * tiles; ++i) costs.push_back(static_cast<uint64_t>(1 + i % tiles));
    const uint64_t total = std::accumulate(costs.begin(), costs.end(), uint64_t{0});
    const std::vector<Task> tasks = CutCosts(costs, 1);
    EXPECT_LE(static_cast<double>(Makespan(tasks, workers)),
              1.02 * static_cast<double>(total) / workers + 1)
        << workers;
  }
}

TEST(RowsPerTile, OneThreadKeepsTheBlock) {
  EXPECT_EQ(RowsPerTile({4096, 192, 16, 1}, 1), 192);
  EXPECT_EQ(RowsPerTile({1, 192, 16, 1}, 1), 192);
}

TEST(RowsPerTile, EnoughOtherUnitsKeepTheBlock) {
  EXPECT_EQ(RowsPerTile({128, 128, 16, 96}, 8), 128);
  EXPECT_EQ(RowsPerTile({8192, 128, 16, 1}, 8), 128);
}

TEST(RowsPerTile, FewUnitsAreCutEvenly) {
  EXPECT_EQ(RowsPerTile({2048, 512, 16, 1}, 2), 304);  // 7 tiles instead of 6 of 336 and one of 32
  EXPECT_EQ(RowsPerTile({64, 256, 16, 1}, 8), 16);
}

TEST(RowsPerTile, Properties) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 20000; ++round) {
    TileShape shape;
    shape.granule = 1 + static_cast<int64_t>(random() % 32);
    shape.block_rows = shape.granule * (1 + static_cast<int64_t>(random() % 16));
    shape.rows = static_cast<int64_t>(random() % 5000);
    shape.other_parallel_units = 1 + static_cast<int64_t>(random() % 40);
    const int threads = 1 + static_cast<int>(random() % 64);
    const int64_t rows = RowsPerTile(shape, threads);
    ASSERT_GE(rows, shape.granule);
    ASSERT_LE(rows, shape.block_rows);
    ASSERT_EQ(rows % shape.granule, 0);
    const int64_t tiles = (shape.rows + rows - 1) / rows * shape.other_parallel_units;
    if (threads > 1 && rows > shape.granule && shape.rows > shape.granule) {
      ASSERT_GE(tiles, int64_t{3} * threads);
    }
  }
}

TEST(RowsPerTile, BadArgumentsGiveALegalSize) {
  EXPECT_EQ(RowsPerTile({0, 0, 0, 0}, 0), 1);
  EXPECT_EQ(RowsPerTile({100, 8, 16, 0}, 4), 16);
}

}  // namespace
}  // namespace flashlane::threading
