// Forward attention by tiled online softmax on every vector target: flash-inl.h, dispatched.

#include <cstdint>
#include <iterator>

#include "kernels/amx_config.h"
#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_flash.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/flash-inl.h"
#include "kernels/tile_dot-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/unit_fma-inl.h"
#include "kernels/unit_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

ForwardEntry FlashF32() { return FlashEntry<FmaUnit<float>>(); }
ForwardEntry FlashF64() { return FlashEntry<FmaUnit<double>>(); }
ForwardEntry FlashBF16() {
#if FLASHLANE_HAS_PAIRS
  if constexpr (kPairsAreFast) return FlashEntry<PairUnit<DotTiles>>();
#endif
  return FlashEntry<FmaUnit<hwy::bfloat16_t>>();
}
ForwardEntry FlashF16() { return FlashEntry<FmaUnit<hwy::float16_t>>(); }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

size_t DispatchIndex(int64_t target, size_t table_size) {
  if (table_size == 1) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target & ~kAmxBit);
  return chosen.GetIndex();
}

HWY_EXPORT(FlashF32);
HWY_EXPORT(FlashF64);
HWY_EXPORT(FlashBF16);
HWY_EXPORT(FlashF16);

int64_t CompiledTargets() { return HWY_TARGETS; }

namespace {
template <typename T>
ForwardEntry WithStreams(ForwardEntry entry, int64_t target) {
  entry.streams = AttentionStream<T>(target);
  return entry;
}
}  // namespace

template <>
ForwardEntry AttentionFlash<float>(int64_t target) {
  return WithStreams<float>(FLASHLANE_DISPATCH(FlashF32, target)(), target);
}
template <>
ForwardEntry AttentionFlash<double>(int64_t target) {
  return WithStreams<double>(FLASHLANE_DISPATCH(FlashF64, target)(), target);
}
template <>
ForwardEntry AttentionFlash<hwy::bfloat16_t>(int64_t target) {
  const ForwardEntry entry =
      (target & kAmxBit) != 0 ? AttentionFlashAmx(target) : FLASHLANE_DISPATCH(FlashBF16, target)();
  return WithStreams<hwy::bfloat16_t>(entry, target);
}
template <>
ForwardEntry AttentionFlash<hwy::float16_t>(int64_t target) {
  return WithStreams<hwy::float16_t>(FLASHLANE_DISPATCH(FlashF16, target)(), target);
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
