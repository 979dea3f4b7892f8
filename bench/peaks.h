// What this machine can do at most: arithmetic in registers per target, the kernels' register tile
// on operands in L1, and reading memory per level. Kernels are reported as fractions of these,
// measured beside them (measure.h).
#ifndef FLASHLANE_BENCH_PEAKS_H_
#define FLASHLANE_BENCH_PEAKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/measure.h"

namespace flashlane::bench {

enum class Precision { kF32, kF64 };

// `target` is one bit of kernels::CompiledTargets() that this machine supports.

// Independent multiply-adds in registers; where the target has no fused instruction (SSE2),
// independent multiplications and additions.
Probe MultiplyAddProbe(Precision precision, int64_t target);

// Products of bf16 pairs added to f32, in registers; absent where the target has no instruction for
// it.
Probe DotBF16Probe(int64_t target);

// The kernels' full register tile, depth 64, with all operands in L1.
Probe TileProbe(Precision precision, int64_t target);

// The register tile of bf16 pairs, depth 64 pairs, with all operands in L1; absent like
// DotBF16Probe.
Probe DotTileProbe(int64_t target);

// A buffer that is read from one level of the memory hierarchy.
struct ReadLevel {
  std::string name;  // "l1", "l2", "l3", "dram"
  size_t bytes = 0;
};
// Of the machine's caches; a level that it does not report is left out.
std::vector<ReadLevel> ReadLevels();

// Streams that are read in turn, one cache line each: the hardware prefetches every page on its
// own, so that several streams draw more from DRAM than one.
inline constexpr int kManyStreams = 16;

// Reads the level's bytes over and over with the vectors of `target`, as one stream or as
// kManyStreams.
Probe ReadProbe(const ReadLevel& level, bool many_streams, int64_t target);

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_PEAKS_H_
