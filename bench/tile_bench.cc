// The parts of the flash kernel alone, per target: where a kernel's peak_fraction goes.
//
//   tile_bench                                            all rows, within three minutes
//   tile_bench --benchmark_filter=tile/softmax/f32/AVX2   (more options: rows.h)
//
// Rows: tile/<part>/<TARGET>; head size 128 unless said.
//   multiply_*  one register tile with operands in L1, by layout of the left operand (row_major: K;
//               depth_major: V), rows and vectors of accumulators
//   panel_*     Q K^T, P V, and both with the softmax between, on blocks in L2 as in the kernel
//   exp2 (half: for weights that become bf16), tanh, softmax, pack_q, load_block (K and V of one
//               block made ready: promoted or packed, and searched for NaN and infinity): passes
//               over elements
// Parts of a unit say which: fma, bf16_dot, amx.
// Counters: gflops and peak_fraction of products; of the rest ns_per_element, and
// fma_per_element = multiply-adds that the unit could have done meanwhile. The two products need
// D + Dv per score: a softmax of n takes n / (D + Dv + n) of the time.
// kept, groups: as in attention_bench.cc, and the same advice on what to trust.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/amx_probe.h"
#include "bench/measure.h"
#include "bench/peaks.h"
#include "bench/rows.h"
#include "bench/tile_probes.h"
#include "dispatch/target.h"

namespace flashlane::bench {
namespace {

// A part takes microseconds: a third of a second gives fifty groups.
constexpr double kPartSeconds = 0.3;

Yardstick MakeYardstick(Peak peak, int64_t target) {
  switch (peak) {
    case Peak::kF64:
      return {Meter(MultiplyAddProbe(Precision::kF64, target)),
              Meter(TileProbe(Precision::kF64, target))};
    case Peak::kDotBF16:  // of as many instructions as the f32 tile: their ratio tells a quiet core
      return {Meter(DotBF16Probe(target)), Meter(DotTileProbe(target))};
    case Peak::kAmx:
      return {Meter(AmxL1Probe()), Meter(AmxL1Probe())};
    case Peak::kF32:
      break;
  }
  return {Meter(MultiplyAddProbe(Precision::kF32, target)),
          Meter(TileProbe(Precision::kF32, target))};
}

const Yardstick& YardstickOf(Peak peak, int64_t target) {
  static std::map<std::pair<int64_t, Peak>, Yardstick> made;
  const std::pair key(target, peak);
  if (const auto found = made.find(key); found != made.end()) return found->second;
  return made.emplace(key, MakeYardstick(peak, target)).first->second;
}

RowResult MeasurePart(const Part& part, int64_t target, double seconds) {
  Workload workload;
  workload.call = part.call;
  workload.work = part.flops;
  const Comparison comparison =
      CompareWithPeak(workload, YardstickOf(part.peak, target), std::min(seconds, kPartSeconds));
  RowResult result;
  result.seconds = comparison.seconds;
  result.counters = {{"kept", comparison.kept}, {"groups", comparison.groups}};
  if (part.flops > 0) {
    result.counters["gflops"] = part.flops / comparison.seconds * 1e-9;
    result.counters["peak_fraction"] = comparison.fraction;
  } else {
    const double per_element = comparison.seconds / part.elements;
    result.counters["ns_per_element"] = per_element * 1e9;
    result.counters["fma_per_element"] = per_element * comparison.peak / 2;
  }
  if (comparison.kept == 0) result.label = kNoQuietGroup;
  return result;
}

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  for (const Target& target : SupportedTargetList()) {
    const int64_t bit = target.bit;
    for (PartMaker& part : PartsOf(bit)) {
      rows.push_back({"tile/" + part.name + "/" + target.name, true,
                      [bit, make = std::move(part.make)](double seconds) {
                        return MeasurePart(make(), bit, seconds);
                      }});
    }
  }
  return rows;
}

}  // namespace
}  // namespace flashlane::bench

int main(int argc, char** argv) {
  return flashlane::bench::RunRows(flashlane::bench::AllRows(), argc, argv);
}
