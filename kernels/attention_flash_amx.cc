// Forward attention in bf16 on AMX tiles, with the vectors of the targets that have bf16
// instructions beside them.

#include <cstdint>
#include <iterator>

#include "kernels/amx_config.h"
#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_flash_amx.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/flash-inl.h"
#include "kernels/tile_amx-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/unit_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

#if FLASHLANE_HAS_PAIRS && FLASHLANE_HAS_AMX
ForwardEntry FlashAmx() { return FlashEntry<PairUnit<AmxTiles>>(); }
#else
ForwardEntry FlashAmx() { return {}; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(FlashAmx);

int64_t AmxTargets() {
  static_assert((HWY_TARGETS & kAmxBit) == 0, "a Highway target has the bit of AMX");
#if FLASHLANE_HAS_AMX
  return HWY_TARGETS & (HWY_AVX3_SPR | HWY_AVX3_ZEN4);
#else
  return 0;
#endif
}

ForwardEntry AttentionFlashAmx(int64_t target) { return FLASHLANE_DISPATCH(FlashAmx, target)(); }

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
