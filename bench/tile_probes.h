// The parts of the flash kernel alone, per target, on operands as the kernel has them.
#ifndef FLASHLANE_BENCH_TILE_PROBES_H_
#define FLASHLANE_BENCH_TILE_PROBES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace flashlane::bench {

// What a part is measured by.
enum class Peak { kF32, kF64, kDotBF16, kAmx };

struct Part {
  Peak peak = Peak::kF32;
  double flops = 0;     // of one call, for products; else 0
  double elements = 0;  // of one call, for all but products
  std::function<void()> call;
};

struct PartMaker {
  std::string name;  // "softmax/f32"
  std::function<Part()> make;
};

// All parts on a target that this machine supports; and those of them that are steps of a unit.
std::vector<PartMaker> PartsOf(int64_t target);
std::vector<PartMaker> UnitPartsOf(int64_t target);

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_TILE_PROBES_H_
