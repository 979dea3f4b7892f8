// What a core can move at most: the yardstick of kernels whose arithmetic costs nothing beside the
// way of their operands through the core, such as rope.
#ifndef FLASHLANE_BENCH_MOVE_PROBE_H_
#define FLASHLANE_BENCH_MOVE_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "bench/measure.h"

namespace flashlane::bench {

// Reads `bytes` in one stream by the vectors of `target`, changes them and writes as many, back to
// where they were or to other memory, by plain stores. Work is the bytes read and those written.
Probe MoveProbe(size_t bytes, bool in_place, int64_t target);

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_MOVE_PROBE_H_
