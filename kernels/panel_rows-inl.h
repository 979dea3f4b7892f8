// The rows of a tile: which query each lane of a panel is, what it sees, where its operands live;
// and the scratch of a tile.

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
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename C>
FlashBlocks BlocksOf(const ForwardArgs& args) {
  return ChooseFlashBlocks(args.head_dim, args.head_dim_v, static_cast<int64_t>(kPanelRows<C>),
                           static_cast<int64_t>(sizeof(C)));
}

// Rows [begin, end) of one panel, in the numbering of Tile.
struct PanelRange {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};

// One panel against the keys of one block that any of its rows sees.
template <typename C>
struct PanelStep {
  int64_t panel;
  PanelRange range;
  KeyRange keys;
  MatrixRows<C> k;  // from keys.begin on
  MatrixRows<C> v;
  bool select;  // v holds a NaN or an infinity: masked keys must be left out, not multiplied by 0
};

// Everything a tile needs, carved from one aligned allocation. With a null base it only measures.
template <typename C>
class FlashScratch {
 public:
  // `promotes`: K and V are of another type than C.
  FlashScratch(const ForwardArgs& args, int64_t tile_rows, bool promotes, void* base)
      : base_(static_cast<uint8_t*>(base)) {
    constexpr int64_t kRows = static_cast<int64_t>(kPanelRows<C>);
    rows_ = hwy::RoundUpTo(static_cast<size_t>(std::max<int64_t>(tile_rows, 1)), kPanelRows<C>);
    const int64_t rows = static_cast<int64_t>(rows_);
    const int64_t block_k =
        std::min(BlocksOf<C>(args).block_k, std::max<int64_t>(args.seqlen_k, 1));
    o_count_ = rows * args.head_dim_v;
    q = Carve<C>(rows * args.head_dim);
    o = Carve<C>(o_count_);
    m = Carve<C>(rows);
    l = Carve<C>(rows);
    suspect = Carve<uint8_t>(rows);
    scores = Carve<C>(block_k * kRows);
    additive = Carve<C>(block_k * kRows);
    scale = Carve<C>(kRows);
    lane_a = Carve<C>(kRows);
    lane_b = Carve<C>(kRows);
    if (promotes) {
      promoted_k = Carve<C>(block_k * args.head_dim);
      promoted_v = Carve<C>(block_k * args.head_dim_v);
    }
  }

  size_t bytes() const { return offset_; }

  void Reset() {
    std::fill(m, m + rows_, -kInfinity<C>);
    std::fill(l, l + rows_, C{0});
    std::fill(o, o + o_count_, C{0});
  }

  C* q = nullptr;              // panels of [head_dim][kPanelRows]
  C* o = nullptr;              // panels of [head_dim_v][kPanelRows]
  C* m = nullptr;              // [rows]
  C* l = nullptr;              // [rows]
  uint8_t* suspect = nullptr;  // [rows]
  C* scores = nullptr;         // [block_k][kPanelRows]: S, then P
  C* additive =
      nullptr;          // [block_k][kPanelRows]: bias and mask; a copy of S where V needs selection
  C* scale = nullptr;   // [kPanelRows]
  C* lane_a = nullptr;  // [kPanelRows]: first visible key, or ALiBi slope
  C* lane_b = nullptr;  // [kPanelRows]: last visible key, or position
  C* promoted_k = nullptr;  // [block_k][head_dim]
  C* promoted_v = nullptr;  // [block_k][head_dim_v]

 private:
  template <typename U>
  U* Carve(int64_t count) {
    U* at = base_ == nullptr ? nullptr : reinterpret_cast<U*>(base_ + offset_);
    offset_ += hwy::RoundUpTo(static_cast<size_t>(count) * sizeof(U), kScratchAlignment);
    return at;
  }

  uint8_t* base_;
  size_t offset_ = 0;
  size_t rows_ = 0;
  int64_t o_count_ = 0;
};

template <typename C>
class TileRows {
 public:
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

  // Q^T of every panel, times `fold`. Lanes beyond the last row of a vector repeat it.
  template <typename T>
  void PackQueries(C fold, C* packed) const {
    const Tag<C> d;
    const auto factor = hn::Set(d, fold);
    for (int64_t panel = 0; panel < num_panels(); ++panel) {
      const PanelRange range = Range(panel);
      C* to = packed + panel * args_.head_dim * kRows;
      for (int64_t lane = 0; lane < range.size(); lane += kLanes) {
        const T* rows[kLanes];  // missing rows repeat the last; their lanes are never looked at
        for (int64_t i = 0; i < kLanes; ++i) {
          rows[i] = RowPointer<const T>(args_.q, args_.q_strides,
                                        std::min(range.begin + lane + i, range.end - 1));
        }
        int64_t at = 0;
        for (; at + kLanes <= args_.head_dim; at += kLanes) {
          hn::Vec<Tag<C>> v[kLanes];
          HWY_UNROLL(16)
          for (int64_t i = 0; i < kLanes; ++i)
            v[i] = hn::Mul(LoadPromoted(d, rows[i] + at), factor);
          Transpose(d, v);
          HWY_UNROLL(16)
          for (int64_t i = 0; i < kLanes; ++i) hn::Store(v[i], d, to + (at + i) * kRows + lane);
        }
        for (; at < args_.head_dim; ++at) {
          for (int64_t i = 0; i < kLanes; ++i) {
            to[at * kRows + lane + i] = LoadScalar(rows[i] + at) * fold;
          }
        }
      }
    }
  }

  // Fills the per-lane limits for the keys of `work`; lanes without a row see nothing.
  RowLimits<C> Limits(const PanelStep<C>& work, const FlashScratch<C>& scratch) const {
    const int64_t keys = work.keys.size();
    std::fill(scratch.lane_a, scratch.lane_a + kRows, C{0});
    std::fill(scratch.lane_b, scratch.lane_b + kRows, C{0});
    for (int64_t r = work.range.begin; r < work.range.end; ++r) {
      const KeyRange visible = mask_.Visible(Query(r));
      const int64_t lane = r - work.range.begin;
      scratch.lane_a[lane] = static_cast<C>(Offset(visible.begin, work.keys.begin, keys));
      scratch.lane_b[lane] = static_cast<C>(Offset(visible.end, work.keys.begin, keys));
    }
    return {scratch.lane_a, scratch.lane_b};
  }

  int64_t q_start() const { return mask_.q_start; }
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
    return tile_.batch * operand.batch + Head(r) * operand.head + Query(r) * operand.row;
  }

 private:
  static constexpr int64_t kRows = static_cast<int64_t>(kPanelRows<C>);
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<C>()));

  // Offset of a key bound from `begin`, within [0, keys].
  static int64_t Offset(int64_t bound, int64_t begin, int64_t keys) {
    return std::clamp(bound, begin, begin + keys) - begin;
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
