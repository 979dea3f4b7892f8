// The two products of a few rows with multiply-adds, K and V read as they lie and promoted in
// registers: s = q K^T with the head size in the lanes, o += p V with the columns in the lanes.
//
// Cost per step of one vector: for scores kKeys loads of K and kRows of q for kRows * kKeys
// multiply-adds; for values one load of V and kRows broadcasts for kRows of them. K and V come from
// memory once, prefetched one step ahead.

#if defined(FLASHLANE_KERNELS_STREAM_FMA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_FMA_INL_H_
#undef FLASHLANE_KERNELS_STREAM_FMA_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_FMA_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/convert-inl.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows of K or V of one step, and what it asks for of the next.
template <typename T>
struct StreamRows {
  const T* now[kUnitKeys];
  const T* next[kUnitKeys];
};

// Asks for the next rows line by line in the order of memory, whatever the order of the work that
// it accompanies, so that the prefetchers of the machine see streams, too.
template <typename T>
class Prefetcher {
 public:
  HWY_INLINE Prefetcher(const StreamRows<T>& rows, int64_t width)
      : row_(rows.next), end_(rows.next + kUnitKeys), width_(width) {}

  // About as many elements as the work has just read.
  template <size_t kCount>
  HWY_INLINE void Advance() {
    due_ += kCount;
    for (; due_ >= kLine; due_ -= kLine) {
      if (row_ == end_) return;
      hwy::Prefetch(*row_ + at_);
      at_ += kLine;
      if (at_ >= width_) {
        at_ = 0;
        ++row_;
      }
    }
  }

 private:
  static constexpr int64_t kLine = static_cast<int64_t>(kScratchAlignment / sizeof(T));
  const T* const* row_;
  const T* const* const end_;
  const int64_t width_;
  int64_t at_ = 0;
  int64_t due_ = 0;
};

template <typename T_>
struct FmaStream {
  using T = T_;
  using C = Compute<T>;
  using Q = C;       // q as the product takes it
  using Weight = C;  // p as the product takes it
  using V = hn::Vec<Tag<C>>;
  static constexpr bool kRoundsWeights = false;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<C>()));
  // Elements of K per vector; rows of q are padded to it.
  static constexpr int64_t kStep = kLanes;
  // Columns of O per vector of V.
  static constexpr int64_t kOutStep = kLanes;

  static HWY_INLINE V LoadK(const T* from) { return LoadPromoted(Tag<C>(), from); }
  static HWY_INLINE V LoadKPart(const T* from, size_t count) {
    return LoadPromotedN(Tag<C>(), from, count);
  }
  static HWY_INLINE V LoadQ(const Q* from) { return hn::Load(Tag<C>(), from); }
  static HWY_INLINE V MultiplyAdd(V q, V k, V sum) { return hn::MulAdd(q, k, sum); }

  static void PackQuery(const T* row, int64_t width, Q* to) {
    PromoteRow(row, width, to);
    for (int64_t i = width; i % kStep != 0; ++i) to[i] = C{0};
  }

  static HWY_INLINE void StoreWeights(V p, Weight* to) { hn::Store(p, Tag<C>(), to); }

  // o[row] += the values of one step, weighed; columns in steps of kOutStep.
  template <class Shape>
  static HWY_NOINLINE void AddValues(const Weight* weights, const StreamRows<T>& v, int64_t width,
                                     int64_t o_stride, C* o) {
    constexpr int64_t kTile = static_cast<int64_t>(Shape::kOutVectors) * kLanes;
    Prefetcher<T> ahead(v, width);
    int64_t column = 0;
    for (; column + kTile <= width; column += kTile) {
      AddColumns<Shape, Shape::kOutVectors>(weights, v, column, Whole{}, o_stride, o + column,
                                            ahead);
    }
    for (; column + kLanes <= width; column += kLanes) {
      AddColumns<Shape, 1>(weights, v, column, Whole{}, o_stride, o + column, ahead);
    }
    if (column == width) return;
    AddColumns<Shape, 1>(weights, v, column, Part{static_cast<size_t>(width - column)}, o_stride,
                         o + column, ahead);
  }

  // A row of O in order of the columns.
  static void CopyOut(const C* o, int64_t o_stride, C* to) { std::copy(o, o + o_stride, to); }

 private:
  struct Whole {
    HWY_INLINE V operator()(const T* from) const { return LoadK(from); }
  };
  struct Part {
    size_t count;
    HWY_INLINE V operator()(const T* from) const { return LoadKPart(from, count); }
  };

  template <class Shape, size_t kVecs, class Load>
  static HWY_INLINE void AddColumns(const Weight* weights, const StreamRows<T>& v, int64_t column,
                                    const Load& load, int64_t o_stride, C* o,
                                    Prefetcher<T>& ahead) {
    const Tag<C> d;
    V acc[Shape::kRows][kVecs];
    HWY_UNROLL(8)
    for (size_t r = 0; r < Shape::kRows; ++r) {
      HWY_UNROLL(8)
      for (size_t i = 0; i < kVecs; ++i) {
        acc[r][i] = hn::Load(d, o + static_cast<int64_t>(r) * o_stride + i * kLanes);
      }
    }
    for (size_t tile = 0; tile < Shape::kTiles; ++tile) {
      const Weight* w = weights + tile * Shape::kSums;
      HWY_UNROLL(1)
      for (size_t key = 0; key < Shape::kKeys; ++key, ++w) {
        const T* from = v.now[tile * Shape::kKeys + key] + column;
        ahead.template Advance<kVecs * kLanes>();
        V value[kVecs];
        HWY_UNROLL(8)
        for (size_t i = 0; i < kVecs; ++i) value[i] = load(from + i * kLanes);
        HWY_UNROLL(8)
        for (size_t r = 0; r < Shape::kRows; ++r) {
          const V p = hn::Set(d, w[r * Shape::kKeys]);
          HWY_UNROLL(8)
          for (size_t i = 0; i < kVecs; ++i) acc[r][i] = hn::MulAdd(p, value[i], acc[r][i]);
        }
      }
    }
    HWY_UNROLL(8)
    for (size_t r = 0; r < Shape::kRows; ++r) {
      HWY_UNROLL(8)
      for (size_t i = 0; i < kVecs; ++i) {
        hn::Store(acc[r][i], d, o + static_cast<int64_t>(r) * o_stride + i * kLanes);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_FMA_INL_H_
