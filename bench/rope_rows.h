// Rows rope/<dtype>/<TARGET|best>/<shape>/threads:<n>: ApplyRope of q and k, as a fraction of what
// one core can read and write of memory (move_probe.h). Counters: gbs (read and written), and
// move_fraction, kept and groups as in attention_bench.cc.
#ifndef FLASHLANE_BENCH_ROPE_ROWS_H_
#define FLASHLANE_BENCH_ROPE_ROWS_H_

#include <vector>

#include "bench/rows.h"

namespace flashlane::bench {

void AddRope(std::vector<Row>* rows);

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_ROPE_ROWS_H_
