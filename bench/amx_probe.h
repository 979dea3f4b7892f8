// Probes of the AMX matrix unit (bf16 products, f32 sums).
#ifndef FLASHLANE_BENCH_AMX_PROBE_H_
#define FLASHLANE_BENCH_AMX_PROBE_H_

#include "bench/measure.h"

namespace flashlane::bench {

// Absent where WhyNoAmx() (dispatch/amx.h) gives a reason. The unit has been seen to run at two
// speeds, for seconds at a time: trust ratios within one run only.
Probe AmxRegistersProbe();  // tile registers only
Probe AmxL1Probe();         // 4 sums; 2 left and 2 right tiles loaded from L1 for every 4 products

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_AMX_PROBE_H_
