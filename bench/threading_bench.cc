// What a parallel call costs, and from which size on it pays: the reason of kMinTaskNanoseconds.
// Compare rows that differ in threads only, by the counter fast_ns: the mean of the fastest tenth
// of the calls, which is what an undisturbed call takes even where the machine is shared. "asleep"
// rows let the workers go to sleep before each call, as between the requests of a server; the
// others call again at once.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "threading/parallel_for.h"
#include "threading/partition.h"

namespace flashlane::threading {
namespace {

using Clock = std::chrono::steady_clock;

double Nanoseconds(Clock::duration d) {
  return std::chrono::duration<double, std::nano>(d).count();
}

// A chain of dependent multiplications: its duration depends on nothing but the core's clock.
void Spin(int64_t steps) {
  double x = 1.0;
  for (int64_t i = 0; i < steps; ++i) {
    x *= 1.0000001;
    benchmark::DoNotOptimize(x);
  }
}

int64_t StepsFor(double nanoseconds) {
  static const double per_step = [] {
    double best = 1e9;
    for (int i = 0; i < 50; ++i) {
      const auto start = Clock::now();
      Spin(100'000);
      best = std::min(best, Nanoseconds(Clock::now() - start) / 100'000);
    }
    return best;
  }();
  return static_cast<int64_t>(nanoseconds / per_step);
}

void Run(int64_t num_tasks, int threads, int64_t steps) {
  const bool ok =
      ParallelFor(num_tasks, {threads, 65536}, [steps](int64_t, void* scratch) noexcept {
        benchmark::DoNotOptimize(scratch);
        Spin(steps);
      });
  if (!ok) std::abort();
}

// Calls too short to be timed one by one. Arguments: tasks, threads.
void BM_EmptyCall(benchmark::State& state) {
  for (auto _ : state) Run(state.range(0), static_cast<int>(state.range(1)), 0);
}
BENCHMARK(BM_EmptyCall)->ArgNames({"tasks", "threads"})->ArgsProduct({{1, 2, 64}, {1, 2}});

// Arguments: tasks, nanoseconds per task, threads.
void TimeCalls(benchmark::State& state, bool asleep) {
  const int64_t steps = StepsFor(static_cast<double>(state.range(1)));
  std::vector<double> times;
  for (auto _ : state) {
    if (asleep) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Spin(StepsFor(20'000));  // the calling core is awake, as after reading a request
    }
    const auto start = Clock::now();
    Run(state.range(0), static_cast<int>(state.range(2)), steps);
    times.push_back(Nanoseconds(Clock::now() - start));
    state.SetIterationTime(times.back() * 1e-9);
  }
  std::sort(times.begin(), times.end());
  times.resize(std::max<size_t>(times.size() / 10, 1));
  state.counters["fast_ns"] =
      std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
}

void BM_Call(benchmark::State& state) { TimeCalls(state, false); }
BENCHMARK(BM_Call)
    ->ArgNames({"tasks", "ns", "threads"})
    ->ArgsProduct({{2}, {500, 1000, 2000, 5000, 10'000, 20'000, 50'000}, {1, 2}})
    ->ArgsProduct({{64}, {1000, 20'000, 200'000}, {1, 2}})
    ->UseManualTime();

void BM_CallAsleep(benchmark::State& state) { TimeCalls(state, true); }
BENCHMARK(BM_CallAsleep)
    ->ArgNames({"tasks", "ns", "threads"})
    ->ArgsProduct({{2}, {5000, 10'000, 20'000, 50'000, 100'000, 200'000}, {1, 2}})
    ->ArgsProduct({{64}, {1000, 20'000}, {1, 2}})
    ->Iterations(1000)
    ->UseManualTime();

void BM_AvailableThreads(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(AvailableThreads());
}
BENCHMARK(BM_AvailableThreads);

// Units of random cost, so that tasks have to be sorted.
void BM_Cut(benchmark::State& state) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> costs(static_cast<size_t>(state.range(0)));
  for (uint64_t& cost : costs) cost = 1 + random() % 1000;
  for (auto _ : state) {
    Partition partition;
    partition.Cut(costs, 1);
    benchmark::DoNotOptimize(partition.tasks().data());
  }
}
BENCHMARK(BM_Cut)->ArgName("units")->Arg(1)->Arg(8)->Arg(64)->Arg(4096)->Arg(1 << 20);

}  // namespace
}  // namespace flashlane::threading

BENCHMARK_MAIN();
