// The rotation of one head of one token: (x, y) become (x cos - y sin, x sin + y cos). An element
// is computed by the same operations wherever it stands, in whole vectors or at the end, so that
// its bits depend on nothing else.

#if defined(FLASHLANE_KERNELS_ROPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_ROPE_INL_H_
#undef FLASHLANE_KERNELS_ROPE_INL_H_
#else
#define FLASHLANE_KERNELS_ROPE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/convert-inl.h"
#include "kernels/rope_args.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One row of the tables.
template <typename C>
struct RopeRow {
  const C* cos;
  const C* sin;
  int64_t pairs;
  C sign;  // -0 turns back, +0 does not: exclusive or with sin

  static RopeRow Of(const RopeTables& tables, int64_t row) {
    return {static_cast<const C*>(tables.cos) + row * tables.cos_stride,
            static_cast<const C*>(tables.sin) + row * tables.sin_stride, tables.pairs,
            tables.inverse ? C{-0.0} : C{0.0}};
  }
};

template <class V>
struct RopePairs {
  V x, y;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE RopePairs<V> Turn(V x, V y, V cos, V sin) {
  return {hn::NegMulAdd(y, sin, hn::Mul(x, cos)), hn::MulAdd(x, sin, hn::Mul(y, cos))};
}

// Pairs i and i + pairs.
template <typename T>
HWY_INLINE void RotateHalves(const RopeRow<Compute<T>>& row, const T* from, T* to) {
  const hn::ScalableTag<Compute<T>> d;
  using D = decltype(d);
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V sign = hn::Set(d, row.sign);
  const int64_t half = row.pairs;
  const auto turned = [&](int64_t at) HWY_ATTR {
    return Turn<D>(LoadPromoted(d, from + at), LoadPromoted(d, from + half + at),
                   hn::LoadU(d, row.cos + at), hn::Xor(hn::LoadU(d, row.sin + at), sign));
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= half; i += 2 * lanes) {
    const RopePairs<V> p = turned(i), next = turned(i + lanes);
    StoreOneNaN(d, p.x, next.x, to + i);
    StoreOneNaN(d, p.y, next.y, to + half + i);
  }
  if (i + lanes <= half) {
    const RopePairs<V> p = turned(i);
    StoreOneNaN(d, p.x, to + i);
    StoreOneNaN(d, p.y, to + half + i);
    i += lanes;
  }
  if (i == half) return;
  const size_t rest = static_cast<size_t>(half - i);
  const RopePairs<V> p =
      Turn<D>(LoadPromotedN(d, from + i, rest), LoadPromotedN(d, from + half + i, rest),
              hn::LoadN(d, row.cos + i, rest), hn::Xor(hn::LoadN(d, row.sin + i, rest), sign));
  StoreRoundedN(d, OneNaN(d, p.x), rest, to + i);
  StoreRoundedN(d, OneNaN(d, p.y), rest, to + half + i);
}

// Pairs 2i and 2i + 1.
template <typename T>
HWY_INLINE void RotateInterleaved(const RopeRow<Compute<T>>& row, const T* from, T* to) {
  const hn::ScalableTag<Compute<T>> d;
  using D = decltype(d);
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V sign = hn::Set(d, row.sign);
  int64_t i = 0;
  for (; i + lanes <= row.pairs; i += lanes) {
    const EvenOdd<V> v = LoadEvenOdd(d, from + 2 * i);
    const RopePairs<V> p =
        Turn<D>(v.even, v.odd, hn::LoadU(d, row.cos + i), hn::Xor(hn::LoadU(d, row.sin + i), sign));
    StoreEvenOdd(d, EvenOdd<V>{p.x, p.y}, to + 2 * i);
  }
  if (i == row.pairs) return;
  // The rest by way of a whole vector of pairs.
  HWY_ALIGN T pairs[2 * hn::MaxLanes(d)] = {};
  std::copy(from + 2 * i, from + 2 * row.pairs, pairs);
  const size_t rest = static_cast<size_t>(row.pairs - i);
  const EvenOdd<V> v = LoadEvenOdd(d, pairs);
  const RopePairs<V> p = Turn<D>(v.even, v.odd, hn::LoadN(d, row.cos + i, rest),
                                 hn::Xor(hn::LoadN(d, row.sin + i, rest), sign));
  StoreEvenOdd(d, EvenOdd<V>{p.x, p.y}, pairs);
  std::copy(pairs, pairs + 2 * rest, to + 2 * i);
}

// Asks for the row that lies kAhead bytes further on, if there is one.
template <int64_t kAhead, typename T>
HWY_INLINE void PrefetchAhead(const T* row, int64_t head_dim) {
  constexpr int64_t kLine = 64 / sizeof(T);
  const T* ahead = row + kAhead / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < head_dim; i += kLine) hwy::Prefetch(ahead + i);
}

template <typename T, bool kInterleaved>
HWY_INLINE void RotateRow(const RopeRow<Compute<T>>& row, const T* from, int64_t head_dim, T* to) {
  if constexpr (kInterleaved) {
    RotateInterleaved(row, from, to);
  } else {
    RotateHalves(row, from, to);
  }
  if (from != to) std::copy(from + 2 * row.pairs, from + head_dim, to + 2 * row.pairs);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_ROPE_INL_H_
