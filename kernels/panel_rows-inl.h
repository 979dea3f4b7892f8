// The rows of a tile: which query each lane of a panel is, what it sees, where its operands live.

#if defined(FLASHLANE_KERNELS_PANEL_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_PANEL_ROWS_INL_H_
#undef FLASHLANE_KERNELS_PANEL_ROWS_INL_H_
#else
#define FLASHLANE_KERNELS_PANEL_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/flash_scratch.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows [begin, end) of one panel, in the numbering of Tile.
struct PanelRange {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};

// One panel against the keys of one chunk that any of its rows sees.
struct PanelStep {
  int64_t panel;
  PanelRange range;
  KeyRange keys;
  KeyRange span;  // keys, out to whole steps of the unit; what lies beyond keys is hidden
  int64_t chunk;  // where the chunk that keys lie in begins
  bool select;    // v holds a NaN or an infinity: hidden keys must be left out, not multiplied by 0
};

template <class Panel>
class TileRows {
 public:
  using C = typename Panel::C;

  TileRows(const ForwardArgs& args, const Tile& tile, const Sequence& sequence)
      : args_(args),
        tile_(tile),
        q_begin_(sequence.q_begin),
        mask_(SequenceMask::Of(args, sequence)),
        group_(args.group()) {}

  int64_t num_panels() const { return hwy::DivCeil(tile_.row_end - tile_.row_begin, kRows); }

  PanelRange Range(int64_t panel) const {
    const int64_t begin = tile_.row_begin + panel * kRows;
    return {begin, std::min(begin + kRows, tile_.row_end)};
  }

  KeyRange VisibleToAny() const { return VisibleToAny({tile_.row_begin, tile_.row_end}); }
  KeyRange VisibleToAny(const PanelRange& range) const {
    return mask_.VisibleToAny(Query(range.begin), Query(range.end - 1) + 1);
  }
  KeyRange VisibleToAll(const PanelRange& range) const {
    return mask_.VisibleToAll(Query(range.begin), Query(range.end - 1) + 1);
  }

  // Q^T of every panel.
  template <typename T, class Pack, typename E>
  void PackQueries(const Pack& pack, int64_t width, int64_t stride, E* packed) const {
    PackRows<T>(Queries(), pack, width, stride, packed);
  }

  // An operand with one row per query and head.
  struct RowSource {
    const void* data;
    const RowStrides& strides;
  };
  RowSource Queries() const { return {args_.q, args_.q_strides}; }

  // The rows of every panel transposed, `width` elements of each; panels are `stride` elements
  // apart.
  // pack.Load(row, at) gives elements [at, at + kLanes) as a vector, pack.One(row, at) element at;
  // vectors are loaded from the first pack.whole elements only.
  template <typename T, class Pack, typename E>
  void PackRows(const RowSource& source, const Pack& pack, int64_t width, int64_t stride,
                E* packed) const {
    const hn::ScalableTag<E> d;
    static_assert(hn::MaxLanes(hn::ScalableTag<E>()) == kLanes);
    for (int64_t panel = 0; panel < num_panels(); ++panel) {
      const PanelRange range = Range(panel);
      E* to = packed + panel * stride;
      for (int64_t lane = 0; lane < range.size(); lane += kLanes) {
        const T* rows[kLanes];  // missing rows repeat the last; their lanes are never looked at
        for (int64_t i = 0; i < kLanes; ++i) {
          rows[i] = RowPointer<const T>(source.data, source.strides,
                                        std::min(range.begin + lane + i, range.end - 1));
        }
        int64_t at = 0;
        for (; at + kLanes <= pack.whole; at += kLanes) {
          hn::Vec<hn::ScalableTag<E>> v[kLanes];
          HWY_UNROLL(16)
          for (int64_t i = 0; i < kLanes; ++i) v[i] = pack.Load(rows[i], at);
          Transpose(d, v);
          HWY_UNROLL(16)
          for (int64_t i = 0; i < kLanes; ++i) hn::Store(v[i], d, to + (at + i) * kRows + lane);
        }
        for (; at < width; ++at) {
          for (int64_t i = 0; i < kLanes; ++i) to[at * kRows + lane + i] = pack.One(rows[i], at);
        }
      }
    }
  }

  // Fills the per-lane limits for the span of `work`; lanes without a row see nothing.
  RowLimits<C> Limits(const PanelStep& work, const TermScratch<Panel>& scratch) const {
    std::fill(scratch.lane_a, scratch.lane_a + kRows, C{0});
    std::fill(scratch.lane_b, scratch.lane_b + kRows, C{0});
    for (int64_t r = work.range.begin; r < work.range.end; ++r) {
      const KeyRange visible = mask_.Visible(Query(r));
      const int64_t lane = r - work.range.begin;
      scratch.lane_a[lane] = static_cast<C>(Offset(visible.begin, work.span));
      scratch.lane_b[lane] = static_cast<C>(Offset(visible.end, work.span));
    }
    return {scratch.lane_a, scratch.lane_b};
  }

  int64_t q_start() const { return mask_.q_start; }
  // Where row r stands among the keys.
  int64_t Position(int64_t r) const { return mask_.Position(Query(r)); }
  bool SeesAKey(int64_t r) const { return !mask_.Visible(Query(r)).empty(); }

  // Query and query head of row r.
  int64_t Query(int64_t r) const { return group_ == 1 ? r : r / group_; }
  int64_t Head(int64_t r) const { return tile_.kv_head * group_ + (r - Query(r) * group_); }

  // Row r of an operand with one row per query and head.
  template <typename P, typename Void>
  P* RowPointer(Void* data, const RowStrides& strides, int64_t r) const {
    return static_cast<P*>(data) + tile_.batch * strides.batch + Head(r) * strides.head +
           (q_begin_ + Query(r)) * strides.row;
  }

  // Index of key 0 in row r of bias or mask.
  int64_t ScoreOffset(const ScoreOperand& operand, int64_t r) const {
    const int64_t first_key = args_.mask_from_q_start ? mask_.q_start : 0;
    return tile_.batch * operand.batch + Head(r) * operand.head + Query(r) * operand.row -
           first_key * operand.col;
  }

 private:
  static constexpr int64_t kRows = Panel::kRows;
  static constexpr int64_t kLanes = Panel::kLanes;

  // Offset of a key bound within `span`.
  static int64_t Offset(int64_t bound, const KeyRange& span) {
    return std::clamp(bound, span.begin, span.end) - span.begin;
  }

  const ForwardArgs& args_;
  const Tile& tile_;
  const int64_t q_begin_;
  const SequenceMask mask_;
  const int64_t group_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_PANEL_ROWS_INL_H_
