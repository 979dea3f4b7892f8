// What the two products of a few rows load and multiply (stream_products-inl.h), with
// multiply-adds: K and V are promoted in registers.

#if defined(FLASHLANE_KERNELS_STREAM_FMA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_FMA_INL_H_
#undef FLASHLANE_KERNELS_STREAM_FMA_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_FMA_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/convert-inl.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T_>
struct FmaStream {
  using T = T_;
  using C = Compute<T>;
  using Q = C;                // q as the product takes it
  using Weight = C;           // p as the product takes it
  using V = hn::Vec<Tag<C>>;  // of sums
  using Value = V;            // of V, and of the weights it is multiplied by
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

  // One key's values at a time, `kVecs` vectors of them from `column` on.
  static constexpr size_t kKeysAtOnce = 1;
  static HWY_INLINE V LoadWeights(const Weight* p) { return hn::Set(Tag<C>(), *p); }
  template <size_t kVecs, class Load>
  static HWY_INLINE void LoadValues(const Load& load, const T* const* rows, int64_t column,
                                    V* value) {
    HWY_UNROLL(8)
    for (size_t i = 0; i < kVecs; ++i) value[i] = load(rows[0] + column + i * kLanes);
  }

  // A row of O in order of the columns.
  static void CopyOut(const C* o, int64_t o_stride, C* to) { std::copy(o, o + o_stride, to); }
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_FMA_INL_H_
