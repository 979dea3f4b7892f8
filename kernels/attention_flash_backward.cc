// Gradients of attention on every vector target: backward-inl.h with the units that multiply,
// dispatched.

#include <cstdint>
#include <iterator>

#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_flash_backward.cc"
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

BackwardEntry BackwardF32() { return BackwardEntryOf<FmaGradients<float>>(); }
BackwardEntry BackwardF64() { return BackwardEntryOf<FmaGradients<double>>(); }
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

HWY_EXPORT(BackwardF32);
HWY_EXPORT(BackwardF64);
HWY_EXPORT(BackwardBF16);
HWY_EXPORT(BackwardF16);

template <>
BackwardEntry AttentionFlashBackward<float>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF32, target)();
}
template <>
BackwardEntry AttentionFlashBackward<double>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF64, target)();
}
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
