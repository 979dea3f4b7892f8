// Register tiles alone: what the gates count, and what their own tests make worse.
#ifndef FLASHLANE_TESTS_GATES_TILE_PROBE_H_
#define FLASHLANE_TESTS_GATES_TILE_PROBE_H_

#include <cstdint>

namespace flashlane::testing {

// Multiplies a panel of f32 by `rows` rows on `target`. Aligned as the kernels' scratch; the sizes
// are the caller's, so that the compiler knows no more than it does in a kernel.
struct TileOperands {
  const float* a;  // [rows][depth]
  const float* b;  // [depth][kMostPanelRows]
  int64_t depth;
  int64_t rows;
  float* c;  // [rows][kMostPanelRows]
};
inline constexpr int64_t kMostPanelRows = 64;  // of the widest target

void MultiplyByTiles(int64_t target, const TileOperands& operands);

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_GATES_TILE_PROBE_H_
