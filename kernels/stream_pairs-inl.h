// The two products of a few rows in bf16 pairs (stream_products-inl.h): K is multiplied as it lies,
// without promotion, and V by pairs of keys. Also where the instruction has half the rate of f32
// multiply-adds (Sapphire Rapids), because it takes two pairs without any conversion.

#if defined(FLASHLANE_KERNELS_STREAM_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_PAIRS_INL_H_
#undef FLASHLANE_KERNELS_STREAM_PAIRS_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/tile_matmul-inl.h"

#if FLASHLANE_HAS_PAIRS

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct PairStream {
  using T = hwy::bfloat16_t;
  using C = float;
  using Q = hwy::bfloat16_t;
  using Weight = hwy::bfloat16_t;
  using V = hn::Vec<Tag<float>>;
  using D16 = hn::Repartition<hwy::bfloat16_t, Tag<float>>;
  using V16 = hn::Vec<D16>;
  using Value = V16;
  static constexpr bool kRoundsWeights = true;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<float>()));
  static constexpr int64_t kStep = 2 * kLanes;
  static constexpr int64_t kOutStep = 2 * kLanes;

  static HWY_INLINE V16 LoadK(const T* from) { return hn::LoadU(D16(), from); }
  static HWY_INLINE V16 LoadKPart(const T* from, size_t count) {
    const hn::RebindToUnsigned<D16> du;
    return hn::BitCast(D16(), hn::LoadN(du, reinterpret_cast<const uint16_t*>(from), count));
  }
  static HWY_INLINE V16 LoadQ(const Q* from) { return hn::Load(D16(), from); }
  static HWY_INLINE V MultiplyAdd(V16 q, V16 k, V sum) {
    V none = hn::Zero(Tag<float>());  // the instruction adds both products of a pair to one sum
    return hn::ReorderWidenMulAccumulate(Tag<float>(), q, k, sum, none);
  }

  static void PackQuery(const T* row, int64_t width, Q* to) {
    std::memcpy(to, row, static_cast<size_t>(width) * sizeof(T));
    for (int64_t i = width; i % kStep != 0; ++i) to[i] = hwy::ConvertScalarTo<T>(0.0f);
  }

  static HWY_INLINE void StoreWeights(V p, Weight* to) {
    const hn::Rebind<hwy::bfloat16_t, Tag<float>> dh;
    hn::Store(hn::DemoteTo(dh, p), dh, to);
  }

  // The values of two keys at a time, pair by pair.
  static constexpr size_t kKeysAtOnce = 2;
  static HWY_INLINE V16 LoadWeights(const Weight* p) {
    uint32_t pair = 0;
    std::memcpy(&pair, p, sizeof(pair));
    return hn::BitCast(D16(), hn::Set(hn::ScalableTag<uint32_t>(), pair));
  }
  template <size_t kVecs, class Load>
  static HWY_INLINE void LoadValues(const Load& load, const T* const* rows, int64_t column,
                                    V16* value) {
    static_assert(kVecs % 2 == 0);
    const hn::RebindToUnsigned<D16> du16;
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVecs; i += 2) {
      const auto a = hn::BitCast(du16, load(rows[0] + column + i * kLanes));
      const auto b = hn::BitCast(du16, load(rows[1] + column + i * kLanes));
      value[i] = hn::BitCast(D16(), hn::InterleaveLower(du16, a, b));
      value[i + 1] = hn::BitCast(D16(), hn::InterleaveUpper(du16, a, b));
    }
  }

  // Interleaving two rows leaves the lower four columns of every eight in one vector and the upper
  // four in the next.
  static void CopyOut(const C* o, int64_t o_stride, C* to) {
    for (; o_stride > 0; o_stride -= kOutStep, o += kOutStep) {
      for (int64_t i = 0; i < kLanes; i += 4, to += 8) {
        std::copy(o + i, o + i + 4, to);
        std::copy(o + kLanes + i, o + kLanes + i + 4, to + 4);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_STREAM_PAIRS_INL_H_
