// The rows of a tile that streams: which query and head each is, what it sees, what is added to its
// scores, where its results go.

#if defined(FLASHLANE_KERNELS_STREAM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_ROWS_INL_H_
#undef FLASHLANE_KERNELS_STREAM_ROWS_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/convert-inl.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/stream_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One row when all its keys are in; out is the weighted sum of the values.
template <typename C>
struct RowResult {
  C m;
  C l;
  C exact_l;
  C* out;  // aligned, with room for whole vectors
};

// The rows of a kv head in bundles that are as long, but for the last. Bundle b is of head
// b / per_head() of the tile; row i of a head is query i / group of that group's head i % group.
class StreamTileRows {
 public:
  StreamTileRows(const ForwardArgs& args, const Tile& tile, const Sequence& sequence)
      : args_(args),
        tile_(tile),
        sequence_(sequence),
        mask_(SequenceMask::Of(args, sequence)),
        group_(args.group()),
        rows_(sequence.seqlen_q * group_),
        per_head_((rows_ + kBundleRows - 1) / kBundleRows),
        longest_((rows_ + per_head_ - 1) / per_head_) {}

  int64_t per_head() const { return per_head_; }
  int64_t longest() const { return longest_; }
  size_t Count(int64_t bundle) const {
    return static_cast<size_t>(std::min(longest_, rows_ - bundle % per_head_ * longest_));
  }
  KeyRange VisibleToAny() const { return mask_.VisibleToAny(0, sequence_.seqlen_q); }

  // Whether every row sees keys [begin, end), all of which are in `keys`.
  bool AllVisible(int64_t begin, int64_t end, const KeyRange& keys) const {
    const KeyRange all = mask_.VisibleToAll(0, sequence_.seqlen_q);
    return begin >= std::max(keys.begin, all.begin) && end <= std::min(keys.end, all.end);
  }

  // Row r of bundle b of an operand with one row per query and head.
  template <typename P, typename Void>
  P* At(Void* data, const RowStrides& strides, int64_t b, size_t r) const {
    return static_cast<P*>(data) + tile_.batch * strides.batch + Head(b, r) * strides.head +
           (sequence_.q_begin + Query(b, r)) * strides.row;
  }

  bool HasAdditive() const {
    return args_.alibi_slopes.data != nullptr || args_.bias.data != nullptr ||
           args_.mask.data != nullptr;
  }

  template <typename C>
  StreamTerms<C> Terms() const {
    StreamTerms<C> terms{static_cast<C>(args_.softmax_scale)};
    if (args_.softcap != 0.0) {
      // A tiny softcap makes the quotient infinite; tanh has long been 1 there.
      constexpr C kMost = std::numeric_limits<C>::max();
      terms.softcap = static_cast<C>(args_.softcap);
      terms.scale_by_softcap = std::clamp(terms.scale / terms.softcap, -kMost, kMost);
    }
    return terms;
  }

  // ALiBi, bias and mask of the scores of keys [begin, begin + kUnitKeys), -inf where a row does
  // not see the key.
  template <typename T, class Shape, typename C = typename Shape::C>
  HWY_NOINLINE void FillAdditive(int64_t b, int64_t begin, const KeyRange& keys,
                                 C* additive) const {
    std::fill(additive, additive + Shape::kScores, C{0});
    for (size_t r = 0; r < Count(b); ++r) {
      const KeyRange any = mask_.Visible(Query(b, r));
      const KeyRange visible{std::max(any.begin, keys.begin), std::min(any.end, keys.end)};
      const C slope =
          args_.alibi_slopes.data == nullptr
              ? C{0}
              : LoadOperand<T>(args_.alibi_slopes, Head(b, r) * args_.alibi_slopes.stride);
      const int64_t position = mask_.Position(Query(b, r));
      for (size_t i = 0; i < kUnitKeys; ++i) {
        const int64_t key = begin + static_cast<int64_t>(i);
        C& term = additive[Shape::At(r, i)];
        if (key < visible.begin || key >= visible.end || IsMasked(b, r, key)) {
          term = -kInfinity<C>;
          continue;
        }
        if (args_.alibi_slopes.data != nullptr) term = slope * static_cast<C>(key - position);
        if (args_.bias.data == nullptr) continue;
        const C bias = LoadOperand<T>(args_.bias, ScoreIndex(args_.bias, b, r, key));
        term = bias == -kInfinity<C> ? bias : term + bias;
      }
    }
  }

  // Divides and stores out and lse, or those of the tile's split.
  template <typename T, typename C>
  void Store(int64_t b, size_t r, RowResult<C> result) const {
    using Lse = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (tile_.partial == nullptr) {
      const C scale = JoinSink<T>(b, r, &result);
      StoreOut(result, scale, At<T>(args_.out, args_.out_strides, b, r));
      if (args_.lse != nullptr) *At<Lse>(args_.lse, args_.lse_strides, b, r) = LseOf(result);
      return;
    }
    const Partial partial = Partial::Of<C>(args_, sequence_.seqlen_q, tile_.partial);
    const auto at = [&](const RowStrides& strides) {
      return Head(b, r) * strides.head + Query(b, r) * strides.row;
    };
    StoreOut(result, C{1}, static_cast<C*>(partial.out) + at(partial.out_strides));
    static_cast<C*>(partial.lse)[at(partial.lse_strides)] = LseOf(result);
  }

 private:
  int64_t Row(int64_t b, size_t r) const {
    return b % per_head_ * longest_ + static_cast<int64_t>(r);
  }
  int64_t Query(int64_t b, size_t r) const { return Row(b, r) / group_; }
  int64_t Head(int64_t b, size_t r) const {
    return (tile_.kv_head + b / per_head_) * group_ + Row(b, r) % group_;
  }

  int64_t ScoreIndex(const ScoreOperand& operand, int64_t b, size_t r, int64_t key) const {
    const int64_t first_key = args_.mask_from_q_start ? mask_.q_start : 0;
    return tile_.batch * operand.batch + Head(b, r) * operand.head + Query(b, r) * operand.row +
           (key - first_key) * operand.col;
  }

  bool IsMasked(int64_t b, size_t r, int64_t key) const {
    if (args_.mask.data == nullptr) return false;
    if (args_.mask_from_q_start && key < mask_.q_start) return false;
    return static_cast<const uint8_t*>(args_.mask.data)[ScoreIndex(args_.mask, b, r, key)] == 0;
  }

  // Lets the sink join the denominator; returns what out must be multiplied by. A row whose keys
  // weigh nothing stays empty.
  template <typename T, typename C>
  C JoinSink(int64_t b, size_t r, RowResult<C>* result) const {
    if (args_.sinks.data == nullptr || result->l == C{0}) return C{1};
    const C sink = LoadOperand<T>(args_.sinks, Head(b, r) * args_.sinks.stride);
    const C m = std::max(result->m, sink);
    const C scale = std::exp(result->m - m);
    const C weight = std::exp(sink - m);
    result->l = result->l * scale + weight;
    result->exact_l = result->exact_l * scale + weight;
    result->m = m;
    return scale;
  }

  template <typename C>
  static C LseOf(const RowResult<C>& result) {
    const C lse = result.exact_l == C{0} ? -kInfinity<C> : result.m + std::log(result.exact_l);
    return std::isnan(lse) ? std::numeric_limits<C>::quiet_NaN() : lse;
  }

  // out * scale / l, 0 for a row without any weight; one NaN and one zero only, as PanelStore.
  template <typename T, typename C>
  void StoreOut(const RowResult<C>& result, C scale, T* to) const {
    const hn::ScalableTag<C> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto nan = hn::Set(d, std::numeric_limits<C>::quiet_NaN());
    const auto zero = hn::Zero(d);
    for (int64_t i = 0; i < args_.head_dim_v; i += lanes) {
      const auto o = hn::Mul(hn::Load(d, result.out + i), hn::Set(d, scale));
      const auto l = hn::Set(d, result.l);
      const auto empty = hn::Or(hn::Eq(l, zero), hn::Eq(o, zero));
      const auto out = hn::IfThenZeroElse(empty, hn::Div(o, l));
      hn::Store(hn::IfThenElse(hn::IsNaN(out), nan, out), d, result.out + i);
    }
    DemoteRow(result.out, args_.head_dim_v, to);
  }

  const ForwardArgs& args_;
  const Tile& tile_;
  const Sequence sequence_;
  const SequenceMask mask_;
  const int64_t group_;
  const int64_t rows_;      // of a kv head
  const int64_t per_head_;  // bundles
  const int64_t longest_;   // rows of a bundle
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_ROWS_INL_H_
