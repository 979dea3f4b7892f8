// Decode and the merging of split keys on every vector target: stream-inl.h, dispatched.

#include <cstdint>
#include <iterator>

#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_stream.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/stream-inl.h"
#include "kernels/stream_fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

StreamEntry StreamF32() { return StreamEntryOf<FmaStream<float>>(); }
StreamEntry StreamF64() { return StreamEntryOf<FmaStream<double>>(); }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(StreamF32);
HWY_EXPORT(StreamF64);

template <>
StreamEntry AttentionStream<float>(int64_t target) {
  return FLASHLANE_DISPATCH(StreamF32, target)();
}
template <>
StreamEntry AttentionStream<double>(int64_t target) {
  return FLASHLANE_DISPATCH(StreamF64, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
