// The union of two partial attention results over disjoint keys (FlashDecoding, cascade and ring
// attention): lse = ln(e^lse_a + e^lse_b), out = (e^lse_a out_a + e^lse_b out_b) / e^lse.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/merge_states.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// What the two sides weigh in the union.
template <typename C>
struct MergeWeights {
  C a;
  C b;
  C lse;
};

// Both lse above -inf. A NaN or +inf makes all three NaN.
template <typename C>
MergeWeights<C> WeightsOf(C lse_a, C lse_b) {
  const C max = std::max(lse_a, lse_b);
  // One of the two is the maximum, and a row of out is short beside an exp.
  const C below_a = lse_a - max;
  const C below_b = lse_b - max;
  const C a = below_a == C{0} ? C{1} : std::exp(below_a);
  const C b = below_b == C{0} ? C{1} : std::exp(below_b);
  const C sum = a + b;
  const C lse = max + std::log(sum);
  return {a / sum, b / sum, std::isnan(lse) ? std::numeric_limits<C>::quiet_NaN() : lse};
}

// a * x + b * y by product, product, sum, and one NaN only: the same bits when the sides change
// places.
template <typename T>
HWY_INLINE void MergeRow(const T* x, const T* y, const MergeWeights<Compute<T>>& weights,
                         int64_t count, T* to) {
  using C = Compute<T>;
  constexpr C kNan = std::numeric_limits<C>::quiet_NaN();
  const hn::ScalableTag<C> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto weight_a = hn::Set(d, weights.a);
  const auto weight_b = hn::Set(d, weights.b);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto a = hn::Mul(weight_a, LoadPromoted(d, x + i));
    const auto b = hn::Mul(weight_b, LoadPromoted(d, y + i));
    const auto sum = hn::Add(a, b);
    StoreRounded(d, hn::IfThenElse(hn::IsNaN(sum), hn::Set(d, kNan), sum), to + i);
  }
  for (; i < count; ++i) {
    const C a = weights.a * LoadScalar(x + i);
    const C b = weights.b * LoadScalar(y + i);
    const C sum = a + b;
    to[i] = hwy::ConvertScalarTo<T>(std::isnan(sum) ? kNan : sum);
  }
}

// The two may be the same row.
template <typename T>
void CopyRow(const T* from, int64_t count, T* to) {
  if (from != to) std::copy(from, from + count, to);
}

// Where a row stands.
struct RowIndex {
  int64_t batch, head, query;

  static RowIndex Of(const MergeArgs& args, int64_t row) {
    const int64_t head = row / args.seqlen_q;
    return {head / args.num_heads, head % args.num_heads, row % args.seqlen_q};
  }
  void Next(const MergeArgs& args) {
    if (++query < args.seqlen_q) return;
    query = 0;
    if (++head < args.num_heads) return;
    head = 0;
    ++batch;
  }
};

template <typename P, typename Void>
HWY_INLINE P* At(Void* data, const RowStrides& strides, const RowIndex& row) {
  return static_cast<P*>(data) + row.batch * strides.batch + row.head * strides.head +
         row.query * strides.row;
}

template <typename T>
void RunMerge(const MergeArgs& args, int64_t row_begin, int64_t row_end) {
  using C = Compute<T>;  // also the type of lse
  constexpr C kEmpty = -std::numeric_limits<C>::infinity();
  if (row_begin >= row_end) return;
  RowIndex row = RowIndex::Of(args, row_begin);
  for (int64_t r = row_begin; r < row_end; ++r, row.Next(args)) {
    const T* out_a = At<const T>(args.a.out, args.a.out_strides, row);
    const T* out_b = At<const T>(args.b.out, args.b.out_strides, row);
    const C lse_a = *At<const C>(args.a.lse, args.a.lse_strides, row);
    const C lse_b = *At<const C>(args.b.lse, args.b.lse_strides, row);
    T* out = At<T>(args.out, args.out_strides, row);
    C lse = kEmpty;
    if (lse_a == kEmpty && lse_b == kEmpty) {
      std::fill(out, out + args.head_dim_v, T());
    } else if (lse_b == kEmpty) {
      CopyRow(out_a, args.head_dim_v, out);
      lse = lse_a;
    } else if (lse_a == kEmpty) {
      CopyRow(out_b, args.head_dim_v, out);
      lse = lse_b;
    } else {
      const MergeWeights<C> weights = WeightsOf(lse_a, lse_b);
      MergeRow(out_a, out_b, weights, args.head_dim_v, out);
      lse = weights.lse;
    }
    if (args.lse != nullptr) *At<C>(args.lse, args.lse_strides, row) = lse;
  }
}

MergeEntry MergeF32() { return {&RunMerge<float>}; }
MergeEntry MergeF64() { return {&RunMerge<double>}; }
MergeEntry MergeBF16() { return {&RunMerge<hwy::bfloat16_t>}; }
MergeEntry MergeF16() { return {&RunMerge<hwy::float16_t>}; }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(MergeF32);
HWY_EXPORT(MergeF64);
HWY_EXPORT(MergeBF16);
HWY_EXPORT(MergeF16);

template <>
MergeEntry MergeStates<float>(int64_t target) {
  return FLASHLANE_DISPATCH(MergeF32, target)();
}
template <>
MergeEntry MergeStates<double>(int64_t target) {
  return FLASHLANE_DISPATCH(MergeF64, target)();
}
template <>
MergeEntry MergeStates<hwy::bfloat16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(MergeBF16, target)();
}
template <>
MergeEntry MergeStates<hwy::float16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(MergeF16, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
