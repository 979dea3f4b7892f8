// Attention, each registry row x target x shape, as a fraction of what the machine can do.
//
//   attention_bench                                      the default rows, within three minutes
//   attention_bench --benchmark_filter=attention/flash/f32/AVX2
//   attention_bench --benchmark_filter=.                 every row, about ten minutes
//   (more options: rows.h)
//
// Rows:
// attention/<flash|naive|paged|paged_naive|backward|backward_naive>/<f32|f64|bf16|f16>/<TARGET|best>/<shape>/threads:<n>;
// "best" is what dispatch chooses. Counters:
//   gflops         2 (D + Dv) flops per visible pair of query and key (backward, with out and lse
//                  kept: 2 (3 D + 2 Dv)), median of the kept groups
//   gbs            q, k, v, bias, mask and out (and lse, dout, dq, dk, dv) once, in GB/s
//   peak_fraction  of the multiply-adds that this many cores do in registers on the same target;
//                  _min: of the worst kept group
//   read_fraction  (decode) live k and v once, of what one thread reads from memory in one stream;
//                  read16_fraction: in 16 streams
//   tile_fraction  what the L1-hot register tile reached of the same peak
//   kept, groups   groups whose probes found a quiet core, and all groups
// rope/<dtype>/<TARGET|best>/<shape>/threads:<n>, of rope_rows.h,
// and peaks/<what>: the probes themselves, the median and the maximum of their readings.
//
// Trust peak_fraction, and only where `kept` is 5 or more; gflops depends on the clock of the
// moment. With one thread, time is that of the thread: what other processes take does not count.
// With more it is wall time, and other processes do count.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/amx_probe.h"
#include "bench/measure.h"
#include "bench/operands.h"
#include "bench/peaks.h"
#include "bench/rope_rows.h"
#include "bench/rows.h"
#include "bench/shapes.h"
#include "dispatch/amx.h"
#include "dispatch/dtype.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "flashlane/attention.h"
#include "kernels/amx_config.h"
#include "threading/parallel_for.h"

namespace flashlane::bench {
namespace {

// ---- peaks/

RowResult MeasureRate(const Probe& probe, const char* unit, double seconds) {
  const std::vector<double> rates = Meter(probe).Rates(seconds);
  const double median = Median(rates);
  RowResult result;
  result.seconds = probe.work / median;
  result.counters[unit] = median * 1e-9;
  result.counters[std::string(unit) + "_max"] = rates.back() * 1e-9;
  return result;
}

constexpr double kPeakSeconds = 0.2;  // some hundred readings

// `make` builds the probe when the row runs: buffers of other rows would take memory meanwhile.
void AddPeak(std::vector<Row>* rows, const std::string& what, const char* unit,
             std::function<Probe()> make) {
  rows->push_back({"peaks/" + what, true, [unit, make = std::move(make)](double seconds) {
                     return MeasureRate(make(), unit, std::min(seconds, kPeakSeconds));
                   }});
}

void AddPeaks(std::vector<Row>* rows) {
  for (const Target& target : SupportedTargetList()) {
    const int64_t bit = target.bit;
    const std::string name = target.name;
    AddPeak(rows, "fma_f32/" + name, "gflops",
            [bit] { return MultiplyAddProbe(Precision::kF32, bit); });
    AddPeak(rows, "fma_f64/" + name, "gflops",
            [bit] { return MultiplyAddProbe(Precision::kF64, bit); });
    if (DotBF16Probe(bit).exists()) {
      AddPeak(rows, "dpbf16/" + name, "gflops", [bit] { return DotBF16Probe(bit); });
    }
    AddPeak(rows, "tile_f32/" + name, "gflops", [bit] { return TileProbe(Precision::kF32, bit); });
    AddPeak(rows, "tile_f64/" + name, "gflops", [bit] { return TileProbe(Precision::kF64, bit); });
  }
  if (WhyNoAmx() == nullptr) {
    AddPeak(rows, "amx_bf16/registers", "gflops", AmxRegistersProbe);
    AddPeak(rows, "amx_bf16/l1", "gflops", AmxL1Probe);
  }
  const int64_t best = SupportedTargetList().front().bit;
  for (const ReadLevel& level : ReadLevels()) {
    AddPeak(rows, "read_" + level.name + "/streams:1", "gbs",
            [=] { return ReadProbe(level, /*many_streams=*/false, best); });
    AddPeak(rows, "read_" + level.name + "/streams:" + std::to_string(kManyStreams), "gbs",
            [=] { return ReadProbe(level, /*many_streams=*/true, best); });
  }
}

// ---- attention/

struct Case {
  const KernelRow* kernel;
  const Shape* shape;
  const char* target;  // null: what dispatch chooses
  int threads;
};

// The fastest way that `target` has to multiply in `dtype`.
const Yardstick& YardstickFor(DType dtype, const Target& target) {
  static std::map<std::pair<int64_t, DType>, Yardstick> made;
  const auto found = made.find({target.bit, dtype});
  if (found != made.end()) return found->second;
  if (dtype == DType::kBF16 && (target.bit & kernels::kAmxBit) != 0) {
    // What the unit does with operands in L1; it is its own evidence of a quiet core.
    Yardstick tiles{Meter(AmxL1Probe()), Meter(AmxL1Probe())};
    return made.emplace(std::pair(target.bit, dtype), std::move(tiles)).first->second;
  }
  const Precision precision = dtype == DType::kF64 ? Precision::kF64 : Precision::kF32;
  Meter peak(MultiplyAddProbe(precision, target.bit));
  Meter tile(TileProbe(precision, target.bit));
  if (dtype == DType::kBF16) {
    constexpr double kSeconds = 0.05;
    Meter dots(DotBF16Probe(target.bit));
    if (dots.exists() && Median(dots.Rates(kSeconds)) > Median(peak.Rates(kSeconds))) {
      peak = std::move(dots);
      tile = Meter(DotTileProbe(target.bit));
    }
  }
  Yardstick yardstick(std::move(peak), std::move(tile));
  return made.emplace(std::pair(target.bit, dtype), std::move(yardstick)).first->second;
}

// Against memory: live k and v once, as a fraction of what one thread reads in one stream.
RowResult MeasureDecode(const Case& test, const Operands& operands, Workload workload,
                        double seconds) {
  const ReadLevel memory = ReadLevels().back();
  const int64_t best = SupportedTargetList().front().bit;
  const Meter one(ReadProbe(memory, /*many_streams=*/false, best));
  const Meter many(ReadProbe(memory, /*many_streams=*/true, best));
  workload.work = operands.kv_bytes();
  workload.clock = Clock::kWall;  // a thread that waits for memory runs
  // The probe is its own evidence of a quiet machine.
  const Comparison comparison = CompareWithPeak(workload, Yardstick(one, one), seconds);
  const double flops = operands.Flops(*test.shape);
  RowResult result;
  result.seconds = comparison.seconds;
  const double streams = Median(many.Rates(kPeakSeconds)) / Median(one.Rates(kPeakSeconds));
  result.counters = {{"gflops", flops / comparison.seconds * 1e-9},
                     {"gbs", workload.work / comparison.seconds * 1e-9},
                     {"read_fraction", comparison.fraction},
                     {"read_fraction_min", comparison.fraction_min},
                     {"read16_fraction", comparison.fraction / streams},
                     {"kept", comparison.kept},
                     {"groups", comparison.groups}};
  if (comparison.kept == 0) result.label = kNoQuietGroup;
  return result;
}

RowResult MeasureAttention(const Case& test, double seconds) {
  RowResult result;
  ExecOptions options;
  options.kernel = test.kernel->kernel;
  options.num_threads = test.threads;
  options.target = test.target;
  Target target;
  const bool paged = test.kernel->operation == Operation::kPaged;
  const Operands operands(*test.shape, test.kernel->dtype, paged);
  Status status = ResolveTarget(test.target, &target);
  const auto call = [&] { status = operands.Call(*test.shape, options); };
  if (status.ok()) status = operands.Prepare(*test.shape, options);
  if (status.ok()) call();
  if (!status.ok()) {
    result.error = status.message();
    return result;
  }
  Workload workload;
  workload.call = call;
  if (test.shape->decodes) return MeasureDecode(test, operands, workload, seconds);
  workload.work = operands.Flops(*test.shape);
  workload.clock = test.threads == 1 ? Clock::kThread : Clock::kWall;
  workload.threads = test.threads;
  const Comparison comparison =
      CompareWithPeak(workload, YardstickFor(test.kernel->dtype, target), seconds);
  result.seconds = comparison.seconds;
  result.counters = {{"gflops", workload.work / comparison.seconds * 1e-9},
                     {"gbs", operands.bytes() / comparison.seconds * 1e-9},
                     {"peak_fraction", comparison.fraction},
                     {"peak_fraction_min", comparison.fraction_min},
                     {"tile_fraction", comparison.tile_fraction},
                     {"kept", comparison.kept},
                     {"groups", comparison.groups}};
  if (comparison.kept == 0) result.label = kNoQuietGroup;
  return result;
}

// Without a filter: F32, and what the shape says.
bool ByDefault(const Case& test) {
  const auto has = [&test](ShapeUse use) { return (test.shape->use & use) != 0; };
  const bool is_f32 = test.kernel->dtype == DType::kF32;
  if (!ByDefault(*test.shape, test.kernel->dtype)) return false;
  if (test.threads > 1) return is_f32 && has(kAllThreads);
  return test.target == nullptr || (is_f32 && has(kEveryTarget));
}

void AddCase(std::vector<Row>* rows, const Case& test) {
  constexpr std::string_view kPrefix = "attention_";
  const bool backward = test.kernel->operation == Operation::kBackward && test.kernel->vectorised;
  std::string name = "attention/";  // "backward" is that of flash
  name += backward ? "backward" : std::string(test.kernel->name).substr(kPrefix.size());
  name += std::string("/") + LowerDTypeName(test.kernel->dtype);
  name += std::string("/") + (test.target == nullptr ? "best" : test.target);
  name += std::string("/") + test.shape->name + "/threads:" + std::to_string(test.threads);
  rows->push_back(
      {name, ByDefault(test), [test](double seconds) { return MeasureAttention(test, seconds); }});
}

void AddAttention(std::vector<Row>* rows) {
  const int all_threads = threading::AvailableThreads();
  for (const KernelRow& kernel : Registry()) {
    if (kernel.forward == nullptr && kernel.backward == nullptr) continue;
    for (const Shape& shape : kShapes) {
      if ((kernel.operation == Operation::kBackward) != shape.backward) continue;
      if (kernel.operation == Operation::kPaged && !shape.decodes) continue;
      if (!kernel.vectorised) {
        if ((shape.use & kOracle) != 0) AddCase(rows, {&kernel, &shape, nullptr, 1});
        continue;
      }
      AddCase(rows, {&kernel, &shape, nullptr, 1});
      if (all_threads > 1) AddCase(rows, {&kernel, &shape, nullptr, all_threads});
      for (const Target& target : SupportedTargetList()) {
        AddCase(rows, {&kernel, &shape, target.name, 1});
      }
    }
  }
}

}  // namespace
}  // namespace flashlane::bench

int main(int argc, char** argv) {
  std::vector<flashlane::bench::Row> rows;
  flashlane::bench::AddPeaks(&rows);
  flashlane::bench::AddAttention(&rows);
  flashlane::bench::AddRope(&rows);
  if (const char* reason = flashlane::WhyNoAmx()) {
    benchmark::AddCustomContext("amx", std::string("not measured: ") + reason);
  }
  return flashlane::bench::RunRows(rows, argc, argv);
}
