// The two products of a few rows with one step of K and V, read as they lie: s = q K^T with the
// head size in the lanes, o += p V with the columns in the lanes. A unit (stream_fma-inl.h,
// stream_pairs-inl.h) states what is loaded and how it is multiplied.
//
// Cost per vector: for scores kKeys loads of K and kRows of q for kRows * kKeys multiply-adds; for
// values one load of V and kRows broadcasts for kRows of them. K and V come from memory once,
// prefetched one step ahead (Prefetcher).

#if defined(FLASHLANE_KERNELS_STREAM_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_PRODUCTS_INL_H_
#undef FLASHLANE_KERNELS_STREAM_PRODUCTS_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/lane_sums-inl.h"
#include "kernels/stream_ahead.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How a unit loads a whole vector of elements of K or V, or the last of a row.
template <class Unit>
struct WholeVector {
  HWY_INLINE auto operator()(const typename Unit::T* from) const { return Unit::LoadK(from); }
};
template <class Unit>
struct PartOfVector {
  size_t count;
  HWY_INLINE auto operator()(const typename Unit::T* from) const {
    return Unit::LoadKPart(from, count);
  }
};

// One head's rows of q, of K and of o.
template <class Unit>
struct ScoreOperands {
  const typename Unit::Q* q;  // [kRows][q_stride], padded to whole steps
  int64_t q_stride;
  const typename Unit::T* const* k;  // kUnitKeys rows
  int64_t width;
};
template <class Unit>
struct ValueOperands {
  const typename Unit::Weight* weights;  // as Shape lays them out
  const typename Unit::T* const* v;      // kUnitKeys rows
  int64_t width;
  typename Unit::C* o;  // [kRows][o_stride], padded to whole steps
  int64_t o_stride;
};

template <class Unit, class Shape>
HWY_NOINLINE void ScoreStep(const ScoreOperands<Unit>& in, typename Shape::C* scores,
                            Prefetcher* shared_ahead) {
  Prefetcher ahead = *shared_ahead;
  using C = typename Shape::C;
  using V = hn::Vec<Tag<C>>;
  constexpr size_t kRows = Shape::kRows, kKeys = Shape::kKeys;
  const Tag<C> d;
  for (size_t tile = 0; tile < Shape::kTiles; ++tile) {
    const auto* keys = in.k + tile * kKeys;
    V sums[Shape::kSums];  // of row r and key i at r * kKeys + i
    HWY_UNROLL(16)
    for (size_t i = 0; i < Shape::kSums; ++i) sums[i] = hn::Zero(d);
    const auto add = [&](int64_t at, const auto& load) HWY_ATTR {
      decltype(Unit::LoadQ(in.q)) row[kRows];
      HWY_UNROLL(8)
      for (size_t r = 0; r < kRows; ++r) {
        row[r] = Unit::LoadQ(in.q + static_cast<int64_t>(r) * in.q_stride + at);
      }
      HWY_UNROLL(16)
      for (size_t i = 0; i < kKeys; ++i) {
        const auto key = load(keys[i] + at);
        HWY_UNROLL(8)
        for (size_t r = 0; r < kRows; ++r) {
          sums[r * kKeys + i] = Unit::MultiplyAdd(row[r], key, sums[r * kKeys + i]);
        }
      }
    };
    int64_t at = 0;
    for (; at + Unit::kStep <= in.width; at += Unit::kStep) {
      ahead.Advance<kKeys * Unit::kStep * sizeof(typename Unit::T)>();
      add(at, WholeVector<Unit>());
    }
    if (at < in.width) add(at, PartOfVector<Unit>{static_cast<size_t>(in.width - at)});
    HWY_UNROLL(4)
    for (size_t i = 0; i < Shape::kSums; i += Shape::kLanes) {
      hn::Store(SumLanes(d, sums + i), d, scores + tile * Shape::kSums + i);
    }
  }
  *shared_ahead = ahead;
}

// kVecs vectors per row of o, from `column` on.
template <class Unit, class Shape, size_t kVecs, class Load>
HWY_INLINE void AddColumns(const ValueOperands<Unit>& in, int64_t column, const Load& load,
                           Prefetcher& ahead) {
  using C = typename Shape::C;
  constexpr size_t kAtOnce = Unit::kKeysAtOnce;
  static_assert(Shape::kKeys % kAtOnce == 0);
  const Tag<C> d;
  C* const o = in.o + column;
  hn::Vec<Tag<C>> acc[Shape::kRows][kVecs];
  HWY_UNROLL(8)
  for (size_t r = 0; r < Shape::kRows; ++r) {
    HWY_UNROLL(8)
    for (size_t i = 0; i < kVecs; ++i) {
      acc[r][i] = hn::Load(d, o + static_cast<int64_t>(r) * in.o_stride + i * Shape::kLanes);
    }
  }
  for (size_t tile = 0; tile < Shape::kTiles; ++tile) {
    const auto* w = in.weights + tile * Shape::kSums;
    HWY_UNROLL(1)
    for (size_t key = 0; key < Shape::kKeys; key += kAtOnce, w += kAtOnce) {
      ahead.Advance<kAtOnce * kVecs * Shape::kLanes * sizeof(typename Unit::T)>();
      typename Unit::Value value[kVecs];
      Unit::template LoadValues<kVecs>(load, in.v + tile * Shape::kKeys + key, column, value);
      HWY_UNROLL(8)
      for (size_t r = 0; r < Shape::kRows; ++r) {
        const typename Unit::Value p = Unit::LoadWeights(w + r * Shape::kKeys);
        HWY_UNROLL(8)
        for (size_t i = 0; i < kVecs; ++i) {
          acc[r][i] = Unit::MultiplyAdd(p, value[i], acc[r][i]);
        }
      }
    }
  }
  HWY_UNROLL(8)
  for (size_t r = 0; r < Shape::kRows; ++r) {
    HWY_UNROLL(8)
    for (size_t i = 0; i < kVecs; ++i) {
      hn::Store(acc[r][i], d, o + static_cast<int64_t>(r) * in.o_stride + i * Shape::kLanes);
    }
  }
}

// o[row] += the values of one step, weighed.
template <class Unit, class Shape>
HWY_NOINLINE void AddValueStep(const ValueOperands<Unit>& in, Prefetcher* shared_ahead) {
  Prefetcher ahead = *shared_ahead;
  constexpr size_t kFewest = Unit::kOutStep / Shape::kLanes;  // vectors
  constexpr size_t kVecs = HWY_MAX(Shape::kOutVectors, kFewest);
  constexpr int64_t kTile = static_cast<int64_t>(kVecs * Shape::kLanes);
  int64_t column = 0;
  for (; column + kTile <= in.width; column += kTile) {
    AddColumns<Unit, Shape, kVecs>(in, column, WholeVector<Unit>(), ahead);
  }
  for (; column + Unit::kOutStep <= in.width; column += Unit::kOutStep) {
    AddColumns<Unit, Shape, kFewest>(in, column, WholeVector<Unit>(), ahead);
  }
  if (column < in.width) {
    AddColumns<Unit, Shape, kFewest>(
        in, column, PartOfVector<Unit>{static_cast<size_t>(in.width - column)}, ahead);
  }
  *shared_ahead = ahead;
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_PRODUCTS_INL_H_
