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

// Row r of head h (of the tile) is query r / group of query head (kv_head + h) * group + r % group.
class StreamTileRows {
 public:
  StreamTileRows(const ForwardArgs& args, const Tile& tile, const Sequence& sequence)
      : args_(args),
        tile_(tile),
        sequence_(sequence),
        mask_(SequenceMask::Of(args, sequence)),
        group_(args.group()) {}

  int64_t size() const { return sequence_.seqlen_q * group_; }
  KeyRange VisibleToAny() const { return mask_.VisibleToAny(0, sequence_.seqlen_q); }

  // Whether every row sees keys [begin, end), all of which are in `keys`.
  bool AllVisible(int64_t begin, int64_t end, const KeyRange& keys) const {
    const KeyRange all = mask_.VisibleToAll(0, sequence_.seqlen_q);
    return begin >= std::max(keys.begin, all.begin) && end <= std::min(keys.end, all.end);
  }

  // Row r of head h of an operand with one row per query and head.
  template <typename P, typename Void>
  P* Row(Void* data, const RowStrides& strides, int64_t h, size_t r) const {
    return static_cast<P*>(data) + tile_.batch * strides.batch + Head(h, r) * strides.head +
           (sequence_.q_begin + Query(r)) * strides.row;
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
  HWY_NOINLINE void FillAdditive(int64_t h, int64_t begin, const KeyRange& keys,
                                 C* additive) const {
    std::fill(additive, additive + Shape::kScores, C{0});
    for (size_t r = 0; r < static_cast<size_t>(size()); ++r) {
      const KeyRange any = mask_.Visible(Query(r));
      const KeyRange visible{std::max(any.begin, keys.begin), std::min(any.end, keys.end)};
      const C slope =
          args_.alibi_slopes.data == nullptr
              ? C{0}
              : LoadOperand<T>(args_.alibi_slopes, Head(h, r) * args_.alibi_slopes.stride);
      const int64_t position = mask_.Position(Query(r));
      for (size_t i = 0; i < kUnitKeys; ++i) {
        const int64_t key = begin + static_cast<int64_t>(i);
        C& term = additive[Shape::At(r, i)];
        if (key < visible.begin || key >= visible.end || IsMasked(h, r, key)) {
          term = -kInfinity<C>;
          continue;
        }
        if (args_.alibi_slopes.data != nullptr) term = slope * static_cast<C>(key - position);
        if (args_.bias.data == nullptr) continue;
        const C bias = LoadOperand<T>(args_.bias, ScoreIndex(args_.bias, h, r, key));
        term = bias == -kInfinity<C> ? bias : term + bias;
      }
    }
  }

  // Divides and stores out and lse, or those of the tile's split.
  template <typename T, typename C>
  void Store(int64_t h, size_t r, RowResult<C> result) const {
    using Lse = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (tile_.partial == nullptr) {
      const C scale = JoinSink<T>(h, r, &result);
      StoreOut(result, scale, Row<T>(args_.out, args_.out_strides, h, r));
      if (args_.lse != nullptr) *Row<Lse>(args_.lse, args_.lse_strides, h, r) = LseOf(result);
      return;
    }
    const Partial partial = Partial::Of<C>(args_, sequence_.seqlen_q, tile_.partial);
    const auto at = [&](const RowStrides& strides) {
      return Head(h, r) * strides.head + Query(r) * strides.row;
    };
    StoreOut(result, C{1}, static_cast<C*>(partial.out) + at(partial.out_strides));
    static_cast<C*>(partial.lse)[at(partial.lse_strides)] = LseOf(result);
  }

 private:
  int64_t Query(size_t r) const { return static_cast<int64_t>(r) / group_; }
  int64_t Head(int64_t h, size_t r) const {
    return (tile_.kv_head + h) * group_ + static_cast<int64_t>(r) % group_;
  }

  int64_t ScoreIndex(const ScoreOperand& operand, int64_t h, size_t r, int64_t key) const {
    const int64_t first_key = args_.mask_from_q_start ? mask_.q_start : 0;
    return tile_.batch * operand.batch + Head(h, r) * operand.head + Query(r) * operand.row +
           (key - first_key) * operand.col;
  }

  bool IsMasked(int64_t h, size_t r, int64_t key) const {
    if (args_.mask.data == nullptr) return false;
    if (args_.mask_from_q_start && key < mask_.q_start) return false;
    return static_cast<const uint8_t*>(args_.mask.data)[ScoreIndex(args_.mask, h, r, key)] == 0;
  }

  // Lets the sink join the denominator; returns what out must be multiplied by. A row whose keys
  // weigh nothing stays empty.
  template <typename T, typename C>
  C JoinSink(int64_t h, size_t r, RowResult<C>* result) const {
    if (args_.sinks.data == nullptr || result->l == C{0}) return C{1};
    const C sink = LoadOperand<T>(args_.sinks, Head(h, r) * args_.sinks.stride);
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
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_ROWS_INL_H_
