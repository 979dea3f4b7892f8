#include "bench/measure.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace flashlane::bench {
namespace {

constexpr int kMinReadings = 5;
constexpr int kMinGroups = 3;
constexpr int kMinKept = 5;
constexpr double kMaxPatience = 3.0;     // times the seconds asked for
constexpr double kMaxPeakSpread = 0.03;  // between the two peak readings of a group

// The speeds of a quiet core are those of the best tenth of readings, each on its own: the best
// ratio would be one whose peak reading slipped. Their ratio is 0.95 to 0.99 where there is FMA.
// Contention costs a quarter of the tile's speed or more, noise 1 to 2 %: 5 % tells them apart.
constexpr double kLearnSeconds = 0.2;
constexpr size_t kBestPart = 10;
constexpr double kQuietPart = 0.95;

// The calls between two readings.
struct Group {
  double seconds = 0;  // of one call
  double peak = 0;
  double fraction = 0;
  double tile_fraction = 0;
  bool kept = false;
};

double TimeCalls(const Workload& workload, int64_t calls) {
  const double start = Seconds(workload.clock);
  for (int64_t i = 0; i < calls; ++i) workload.call();
  return (Seconds(workload.clock) - start) / static_cast<double>(calls);
}

// So many calls that a group's calls take as long as its probes.
int64_t CallsPerGroup(const Workload& workload) {
  int64_t calls = 1;
  for (;; calls *= 4) {
    const double seconds = TimeCalls(workload, calls) * static_cast<double>(calls);
    if (seconds >= kProbeSeconds) {
      const double wanted = static_cast<double>(calls) * 2 * kProbeSeconds / seconds;
      return std::max<int64_t>(1, std::llround(wanted));
    }
  }
}

Group Evaluate(const Workload& workload, double seconds, const Yardstick::Reading& before,
               const Yardstick::Reading& after) {
  Group group;
  group.seconds = seconds;
  group.peak = (before.peak + after.peak) / 2;
  group.fraction = workload.work / seconds / (group.peak * workload.threads);
  group.tile_fraction = std::min(before.tile / before.peak, after.tile / after.peak);
  group.kept = std::abs(before.peak - after.peak) <= kMaxPeakSpread * group.peak;
  return group;
}

Comparison Summarise(std::vector<Group> groups) {
  Comparison result;
  result.groups = static_cast<int>(groups.size());
  const auto kept_end =
      std::partition(groups.begin(), groups.end(), [](const Group& group) { return group.kept; });
  result.kept = static_cast<int>(kept_end - groups.begin());
  if (result.kept > 0) groups.erase(kept_end, groups.end());
  const auto median = [&groups](double Group::*member) {
    std::vector<double> values;
    for (const Group& group : groups) values.push_back(group.*member);
    return Median(std::move(values));
  };
  result.seconds = median(&Group::seconds);
  result.peak = median(&Group::peak);
  result.fraction = median(&Group::fraction);
  result.tile_fraction = median(&Group::tile_fraction);
  result.fraction_min =
      std::min_element(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
        return a.fraction < b.fraction;
      })->fraction;
  return result;
}

}  // namespace

double Seconds(Clock clock) {
  timespec now;
  clock_gettime(clock == Clock::kThread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Meter::Meter(Probe probe, double seconds) : probe_(std::move(probe)) {
  if (!exists()) return;
  for (rounds_ = 1;; rounds_ *= 2) {
    const double start = Seconds(Clock::kThread);
    probe_.run(rounds_);
    if (Seconds(Clock::kThread) - start >= seconds / 2) break;
  }
}

double Meter::Rate() const {
  const double start = Seconds(Clock::kThread);
  probe_.run(rounds_);
  return probe_.work * static_cast<double>(rounds_) / (Seconds(Clock::kThread) - start);
}

std::vector<double> Meter::Rates(double seconds) const {
  std::vector<double> rates;
  const double end = Seconds(Clock::kWall) + seconds;
  while (rates.size() < kMinReadings || Seconds(Clock::kWall) < end) rates.push_back(Rate());
  std::sort(rates.begin(), rates.end());
  return rates;
}

Yardstick::Yardstick(Meter peak, Meter tile) : peak_(std::move(peak)), tile_(std::move(tile)) {
  std::vector<double> peaks, tiles;
  const double end = Seconds(Clock::kWall) + kLearnSeconds;
  while (peaks.size() < kBestPart || Seconds(Clock::kWall) < end) {
    const Reading reading = Read();
    peaks.push_back(reading.peak);
    tiles.push_back(reading.tile);
  }
  const auto best_tenth = [](std::vector<double>& rates) {
    std::sort(rates.rbegin(), rates.rend());
    return rates[rates.size() / kBestPart];
  };
  quiet_ratio_ = best_tenth(tiles) / best_tenth(peaks);
}

Yardstick::Reading Yardstick::Read() const {
  Reading reading;
  reading.peak = peak_.Rate();
  reading.tile = tile_.Rate();
  return reading;
}

bool Yardstick::IsQuiet(const Reading& reading) const {
  return reading.tile >= kQuietPart * quiet_ratio_ * reading.peak;
}

Comparison CompareWithPeak(const Workload& workload, const Yardstick& yardstick, double seconds) {
  const int64_t calls = CallsPerGroup(workload);
  std::vector<Group> groups;
  int kept = 0;
  const double start = Seconds(Clock::kWall);
  Yardstick::Reading before = yardstick.Read();
  for (;;) {
    const double call_seconds = TimeCalls(workload, calls);
    const Yardstick::Reading after = yardstick.Read();
    Group group = Evaluate(workload, call_seconds, before, after);
    group.kept = group.kept && yardstick.IsQuiet(before) && yardstick.IsQuiet(after);
    groups.push_back(group);
    kept += group.kept ? 1 : 0;
    before = after;
    const double elapsed = Seconds(Clock::kWall) - start;
    if (groups.size() < kMinGroups || elapsed < seconds) continue;
    if (kept >= kMinKept || elapsed >= kMaxPatience * seconds) break;
  }
  return Summarise(std::move(groups));
}

}  // namespace flashlane::bench
