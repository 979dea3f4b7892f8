// As attention_stream.cc, for the types of two bytes; a file of its own to halve the time to
// compile.

#include <cstdint>
#include <iterator>

#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_stream_half.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/stream-inl.h"
#include "kernels/stream_fma-inl.h"
#include "kernels/stream_pairs-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

#if FLASHLANE_HAS_PAIRS
StreamEntry StreamBF16() { return StreamEntryOf<PairStream>(); }
#else
StreamEntry StreamBF16() { return StreamEntryOf<FmaStream<hwy::bfloat16_t>>(); }
#endif
StreamEntry StreamF16() { return StreamEntryOf<FmaStream<hwy::float16_t>>(); }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(StreamBF16);
HWY_EXPORT(StreamF16);

template <>
StreamEntry AttentionStream<hwy::bfloat16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(StreamBF16, target)();
}
template <>
StreamEntry AttentionStream<hwy::float16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(StreamF16, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
