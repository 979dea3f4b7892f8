// As attention_flash_backward.cc, for the types of two bytes; a file of its own to halve the time
// to compile.

#include <cstdint>
#include <iterator>

#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_flash_backward_half.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/amx_config.h"
#include "kernels/backward_entry-inl.h"
#include "kernels/backward_fma-inl.h"
#include "kernels/backward_pairs-inl.h"
#include "kernels/tile_dot-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

BackwardEntry BackwardBF16() {
#if FLASHLANE_HAS_PAIRS
  if constexpr (kPairsAreFast) return BackwardEntryOf<PairGradients<DotTiles>>();
#endif
  return BackwardEntryOf<FmaGradients<hwy::bfloat16_t>>();
}
BackwardEntry BackwardF16() { return BackwardEntryOf<FmaGradients<hwy::float16_t>>(); }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(BackwardBF16);
HWY_EXPORT(BackwardF16);

template <>
BackwardEntry AttentionFlashBackward<hwy::bfloat16_t>(int64_t target) {
  return (target & kAmxBit) != 0 ? AttentionFlashBackwardAmx(target)
                                 : FLASHLANE_DISPATCH(BackwardBF16, target)();
}
template <>
BackwardEntry AttentionFlashBackward<hwy::float16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF16, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
