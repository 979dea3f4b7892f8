// The parts of the flash kernel alone, per target, on operands as the kernel has them.
#ifndef FLASHLANE_BENCH_TILE_PROBES_H_
#define FLASHLANE_BENCH_TILE_PROBES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/peaks.h"

namespace flashlane::bench {

struct Part {
  Precision precision = Precision::kF32;
  double flops = 0;     // of one call, for products; else 0
  double elements = 0;  // of one call, for all but products
  std::function<void()> call;
};

struct PartMaker {
  std::string name;  // "softmax/f32"
  std::function<Part()> make;
};

// All parts on a target that this machine supports.
std::vector<PartMaker> PartsOf(int64_t target);

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_TILE_PROBES_H_
