// The two products of a few rows in bf16 pairs (see stream_fma-inl.h): K is multiplied as it lies,
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
#include "kernels/stream_fma-inl.h"
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

  template <class Shape>
  static HWY_NOINLINE void AddValues(const Weight* weights, const StreamRows<T>& v, int64_t width,
                                     int64_t o_stride, C* o) {
    constexpr size_t kSteps = std::max<size_t>(Shape::kOutVectors / 2, 1);
    constexpr int64_t kTile = static_cast<int64_t>(kSteps) * kOutStep;
    Prefetcher<T> ahead(v, width);
    int64_t column = 0;
    for (; column + kTile <= width; column += kTile) {
      AddColumns<Shape, kSteps>(weights, v, column, Whole{}, o_stride, o + column, ahead);
    }
    for (; column + kOutStep <= width; column += kOutStep) {
      AddColumns<Shape, 1>(weights, v, column, Whole{}, o_stride, o + column, ahead);
    }
    if (column == width) return;
    AddColumns<Shape, 1>(weights, v, column, Part{static_cast<size_t>(width - column)}, o_stride,
                         o + column, ahead);
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

 private:
  struct Whole {
    HWY_INLINE V16 operator()(const T* from) const { return LoadK(from); }
  };
  struct Part {
    size_t count;
    HWY_INLINE V16 operator()(const T* from) const { return LoadKPart(from, count); }
  };

  template <class Shape, size_t kSteps, class Load>
  static HWY_INLINE void AddColumns(const Weight* weights, const StreamRows<T>& v, int64_t column,
                                    const Load& load, int64_t o_stride, C* o,
                                    Prefetcher<T>& ahead) {
    static_assert(Shape::kKeys % 2 == 0);
    const Tag<float> d;
    const hn::RebindToUnsigned<D16> du16;
    const hn::ScalableTag<uint32_t> du32;
    V acc[Shape::kRows][2 * kSteps];
    HWY_UNROLL(8)
    for (size_t r = 0; r < Shape::kRows; ++r) {
      HWY_UNROLL(8)
      for (size_t i = 0; i < 2 * kSteps; ++i) {
        acc[r][i] = hn::Load(d, o + static_cast<int64_t>(r) * o_stride + i * kLanes);
      }
    }
    for (size_t tile = 0; tile < Shape::kTiles; ++tile) {
      const Weight* w = weights + tile * Shape::kSums;
      HWY_UNROLL(1)
      for (size_t key = 0; key < Shape::kKeys; key += 2, w += 2) {
        const size_t at = tile * Shape::kKeys + key;
        ahead.template Advance<2 * kSteps * kOutStep>();
        V16 value[2 * kSteps];
        HWY_UNROLL(4)
        for (size_t i = 0; i < kSteps; ++i) {
          const auto a = hn::BitCast(du16, load(v.now[at] + column + i * kOutStep));
          const auto b = hn::BitCast(du16, load(v.now[at + 1] + column + i * kOutStep));
          value[2 * i] = hn::BitCast(D16(), hn::InterleaveLower(du16, a, b));
          value[2 * i + 1] = hn::BitCast(D16(), hn::InterleaveUpper(du16, a, b));
        }
        HWY_UNROLL(8)
        for (size_t r = 0; r < Shape::kRows; ++r) {
          uint32_t pair = 0;
          std::memcpy(&pair, w + r * Shape::kKeys, sizeof(pair));
          const V16 p = hn::BitCast(D16(), hn::Set(du32, pair));
          HWY_UNROLL(8)
          for (size_t i = 0; i < 2 * kSteps; ++i) {
            acc[r][i] = MultiplyAdd(p, value[i], acc[r][i]);
          }
        }
      }
    }
    HWY_UNROLL(8)
    for (size_t r = 0; r < Shape::kRows; ++r) {
      HWY_UNROLL(8)
      for (size_t i = 0; i < 2 * kSteps; ++i) {
        hn::Store(acc[r][i], d, o + static_cast<int64_t>(r) * o_stride + i * kLanes);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_STREAM_PAIRS_INL_H_
