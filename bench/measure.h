// How a speed is measured so that the machine's noise and its clock cancel: beside every reading of
// a kernel stand readings of probes whose speed is known to depend on one resource only, taken just
// before and just after it. Only ratios within one such group are to be trusted.
#ifndef FLASHLANE_BENCH_MEASURE_H_
#define FLASHLANE_BENCH_MEASURE_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace flashlane::bench {

// A loop that keeps one resource busy.
struct Probe {
  std::function<void(int64_t rounds)> run;  // empty where the CPU or the target lacks the resource
  double work = 0;                          // flops or bytes of one round

  bool exists() const { return static_cast<bool>(run); }
};

// kThread: time that the calling thread ran. Other processes on the core do not count, so it is
// what single-threaded work is measured in. kWall: for work on several threads.
enum class Clock { kThread, kWall };

double Seconds(Clock clock);

// Long enough that reading the clock is nothing (1 us), short enough to lie close to the kernel.
inline constexpr double kProbeSeconds = 1.5e-3;

// A probe with the number of rounds that takes about `seconds`.
class Meter {
 public:
  explicit Meter(Probe probe, double seconds = kProbeSeconds);

  bool exists() const { return probe_.exists(); }
  // Work per second of thread time, of one run.
  double Rate() const;
  // Rates of runs for about `seconds` in all, at least 5, in ascending order.
  std::vector<double> Rates(double seconds) const;

 private:
  Probe probe_;
  int64_t rounds_ = 1;
};

// What a kernel is measured against.
class Yardstick {
 public:
  // Reads both for a fifth of a second to learn their ratio on a quiet core.
  Yardstick(Meter peak, Meter tile);

  struct Reading {
    double peak = 0;
    double tile = 0;
  };
  Reading Read() const;
  bool IsQuiet(const Reading& reading) const;

 private:
  Meter peak_;  // registers only: blind to what neighbours do to the caches
  Meter tile_;  // the kernels' register tile with operands in L1: loses speed on a contended core
  double quiet_ratio_ = 0;
};

// Of the groups that were kept, or of all of them when none was: medians.
struct Comparison {
  double seconds = 0;        // of one call
  double peak = 0;           // work per second of the peak probe
  double fraction = 0;       // rate of the calls / peak
  double fraction_min = 0;   // the smallest instead of the median
  double tile_fraction = 0;  // rate of the tile probe / peak
  int kept = 0;
  int groups = 0;
};

// The label of a row without a kept group.
inline constexpr char kNoQuietGroup[] = "no quiet group: not to be trusted";

struct Workload {
  std::function<void()> call;
  double work = 0;  // of one call, in the unit of the peak probe
  Clock clock = Clock::kThread;
  int threads = 1;  // the peak of so many cores
};

// Alternates probes and calls, after at least one call that is not timed, for about `seconds`, up
// to three times that while fewer than 5 groups are kept, but at least 3 groups. A group is kept if
// the two peak readings around the calls agree within 3 % and both tile readings are those of a
// quiet core.
Comparison CompareWithPeak(const Workload& workload, const Yardstick& yardstick, double seconds);

// Of a non-empty list: the middle value, or the mean of the middle two.
double Median(std::vector<double> values);

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_MEASURE_H_
