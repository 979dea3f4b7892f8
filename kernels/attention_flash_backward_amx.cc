// Gradients of attention in bf16 on AMX tiles, with the vectors of the targets that have bf16
// instructions beside them.

#include <cstdint>
#include <iterator>

#include "kernels/amx_config.h"
#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_flash_backward_amx.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/backward_entry-inl.h"
#include "kernels/backward_pairs-inl.h"
#include "kernels/tile_amx-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

#if FLASHLANE_HAS_PAIRS && FLASHLANE_HAS_AMX
BackwardEntry BackwardAmx() { return BackwardEntryOf<PairGradients<AmxTiles>>(); }
#else
BackwardEntry BackwardAmx() { return {}; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(BackwardAmx);

BackwardEntry AttentionFlashBackwardAmx(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardAmx, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
