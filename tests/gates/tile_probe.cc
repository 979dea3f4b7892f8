#include "tests/gates/tile_probe.h"

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "kernels/amx_config.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/gates/tile_probe.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/tile_amx-inl.h"
#include "kernels/tile_dot-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::testing {
namespace HWY_NAMESPACE {

namespace fk = kernels::HWY_NAMESPACE;

void MultiplyF32(const TileOperands& t) {
  static_assert(fk::kPanelRows<float> <= static_cast<size_t>(kMostPanelRows));
  const fk::Product<float> product{t.a, t.depth, t.b, t.depth, t.c, nullptr};
  fk::MultiplyPanel<fk::LeftLayout::kRowMajor, fk::kPanelVectors>(product, t.rows,
                                                                  fk::Accumulate::kOld);
}

#if FLASHLANE_HAS_PAIRS
// Tiles that the kernels do not take on this target have no baseline.
template <class Tiles, size_t kVecs, bool kTaken>
void MultiplyPairs(const TileOperands& t) {
  const fk::PairProduct product{nullptr, t.depth, nullptr, t.depth, t.c, nullptr};
  const auto accumulate = t.rows == 1 ? fk::Accumulate::kScaled : fk::Accumulate::kOld;
  if constexpr (kTaken) Tiles::template Multiply<kVecs>(product, t.rows, accumulate);
}
#endif

// Not run, only compiled and looked at: instructions that the machine may not have.
void CompileOnly(const TileOperands& t) {
  const fk::Product<double> product{nullptr, t.depth, nullptr, t.depth, nullptr, nullptr};
  fk::MultiplyPanel<fk::LeftLayout::kRowMajor, fk::kPanelVectors>(product, t.rows,
                                                                  fk::Accumulate::kOld);
#if FLASHLANE_HAS_PAIRS
  MultiplyPairs<fk::DotTiles, fk::kPanelVectors, fk::kPairsAreFast>(t);
#if FLASHLANE_HAS_AMX
  MultiplyPairs<fk::AmxTiles, 2, true>(t);
#endif
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::testing
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::testing {

HWY_EXPORT(MultiplyF32);
HWY_EXPORT(CompileOnly);

void MultiplyByTiles(int64_t target, const TileOperands& operands) {
  if (operands.rows < 0) FLASHLANE_DISPATCH(CompileOnly, target)(operands);
  FLASHLANE_DISPATCH(MultiplyF32, target)(operands);
}

}  // namespace flashlane::testing
#endif  // HWY_ONCE
