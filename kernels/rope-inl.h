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

// There is one NaN: which of two a product keeps depends on the order of its operands.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V OneNaN(D d, V v) {
  const V nan = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(v), nan, v);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE RopePairs<V> Turn(D d, const RopePairs<V>& p, V cos, V sin) {
  return {OneNaN(d, hn::NegMulAdd(p.y, sin, hn::Mul(p.x, cos))),
          OneNaN(d, hn::MulAdd(p.x, sin, hn::Mul(p.y, cos)))};
}

// Pairs i and i + pairs.
template <typename T>
HWY_INLINE void RotateHalves(const RopeRow<Compute<T>>& row, const T* from, T* to) {
  const hn::ScalableTag<Compute<T>> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V sign = hn::Set(d, row.sign);
  const int64_t half = row.pairs;
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const V cos = hn::LoadU(d, row.cos + i);
    const V sin = hn::Xor(hn::LoadU(d, row.sin + i), sign);
    const RopePairs<V> p = Turn(
        d, RopePairs<V>{LoadPromoted(d, from + i), LoadPromoted(d, from + half + i)}, cos, sin);
    StoreRounded(d, p.x, to + i);
    StoreRounded(d, p.y, to + half + i);
  }
  if (i == half) return;
  const size_t rest = static_cast<size_t>(half - i);
  const V cos = hn::LoadN(d, row.cos + i, rest);
  const V sin = hn::Xor(hn::LoadN(d, row.sin + i, rest), sign);
  const RopePairs<V> p = Turn(
      d, RopePairs<V>{LoadPromotedN(d, from + i, rest), LoadPromotedN(d, from + half + i, rest)},
      cos, sin);
  StoreRoundedN(d, p.x, rest, to + i);
  StoreRoundedN(d, p.y, rest, to + half + i);
}

// Pairs 2i and 2i + 1.
template <typename T>
HWY_INLINE void RotateInterleaved(const RopeRow<Compute<T>>& row, const T* from, T* to) {
  const hn::ScalableTag<Compute<T>> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V sign = hn::Set(d, row.sign);
  const auto turned = [&](V low, V high, V cos, V sin) HWY_ATTR {
    const RopePairs<V> p =
        Turn(d, RopePairs<V>{hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)}, cos,
             hn::Xor(sin, sign));
    return RopePairs<V>{hn::InterleaveWholeLower(d, p.x, p.y),
                        hn::InterleaveWholeUpper(d, p.x, p.y)};
  };
  int64_t i = 0;
  for (; i + lanes <= row.pairs; i += lanes) {
    const RopePairs<V> p =
        turned(LoadPromoted(d, from + 2 * i), LoadPromoted(d, from + 2 * i + lanes),
               hn::LoadU(d, row.cos + i), hn::LoadU(d, row.sin + i));
    StoreRounded(d, p.x, to + 2 * i);
    StoreRounded(d, p.y, to + 2 * i + lanes);
  }
  if (i == row.pairs) return;
  const size_t rest = static_cast<size_t>(row.pairs - i);
  const size_t low = std::min(2 * rest, static_cast<size_t>(lanes));
  const size_t high = 2 * rest - low;
  const RopePairs<V> p =
      turned(LoadPromotedN(d, from + 2 * i, low), LoadPromotedN(d, from + 2 * i + low, high),
             hn::LoadN(d, row.cos + i, rest), hn::LoadN(d, row.sin + i, rest));
  StoreRoundedN(d, p.x, low, to + 2 * i);
  StoreRoundedN(d, p.y, high, to + 2 * i + low);
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
