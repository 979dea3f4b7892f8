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
#include "kernels/backward_entry-inl.h"
#include "kernels/backward_fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

BackwardEntry BackwardF32() { return BackwardEntryOf<FmaGradients<float>>(); }
BackwardEntry BackwardF64() { return BackwardEntryOf<FmaGradients<double>>(); }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(BackwardF32);
HWY_EXPORT(BackwardF64);

template <>
BackwardEntry AttentionFlashBackward<float>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF32, target)();
}
template <>
BackwardEntry AttentionFlashBackward<double>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF64, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
