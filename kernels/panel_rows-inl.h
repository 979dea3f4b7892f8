// The rows of a tile: which query each lane of a panel is, what it sees, where its operands and its
// results live; and the scratch of a tile.

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

// Per-lane results of a panel; each array [kPanelRows].
template <typename C>
struct RowSums {
  C* m;
  C* l;
  C* scale;          // what O is multiplied by before the division
  uint8_t* suspect;  // the row must be computed in the exact domain
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
    if (args.bias.data != nullptr || args.mask.data != nullptr)
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
  C* additive = nullptr;       // [block_k][kPanelRows]: bias and mask of the panel
  C* scale = nullptr;          // [kPanelRows]
  C* lane_a = nullptr;         // [kPanelRows]: first visible key, or ALiBi slope
  C* lane_b = nullptr;         // [kPanelRows]: last visible key, or position
  C* promoted_k = nullptr;     // [block_k][head_dim]
  C* promoted_v = nullptr;     // [block_k][head_dim_v]

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

  // Fills the per-lane and per-score terms for the keys of `work`.
  template <typename T>
  ScoreTerms<C> Terms(const PanelStep<C>& work, const FlashScratch<C>& scratch) const {
    ScoreTerms<C> terms;
    terms.scale = static_cast<C>(args_.softmax_scale);
    terms.softcap = static_cast<C>(args_.softcap);
    if (args_.alibi_slopes.data != nullptr) {
      const int64_t first_query = Query(work.range.begin);
      std::fill(scratch.lane_a, scratch.lane_a + kRows, C{0});
      std::fill(scratch.lane_b, scratch.lane_b + kRows, C{0});
      for (int64_t r = work.range.begin; r < work.range.end; ++r) {
        const int64_t lane = r - work.range.begin;
        scratch.lane_a[lane] =
            LoadOperand<T>(args_.alibi_slopes, Head(r) * args_.alibi_slopes.stride);
        scratch.lane_b[lane] = static_cast<C>(Query(r) - first_query);
      }
      terms.slopes = scratch.lane_a;
      terms.row_offsets = scratch.lane_b;
      terms.first_key = static_cast<C>(work.keys.begin - (mask_.q_start + first_query));
    }
    if (scratch.additive != nullptr) {
      FillAdditive<T>(work, scratch.additive);
      terms.additive = scratch.additive;
    }
    return terms;
  }

  // Marks rows that see keys yet have no finite maximum and positive sum.
  bool MarkSuspects(const PanelRange& range, const RowSums<C>& sums) const {
    bool any = false;
    for (int64_t r = range.begin; r < range.end; ++r) {
      const int64_t lane = r - range.begin;
      const bool fine =
          std::isfinite(sums.m[lane]) && sums.l[lane] > C{0} && std::isfinite(sums.l[lane]);
      sums.suspect[lane] = !fine && !mask_.Visible(Query(r)).empty();
      any |= sums.suspect[lane] != 0;
    }
    return any;
  }

  // Lets the sinks join m and l; `unit` converts a natural score to the domain's. Rows whose keys
  // weigh nothing stay empty. Without sinks the scale is 1.
  template <typename T>
  void JoinSinks(const PanelRange& range, const RowSums<C>& sums, C unit) const {
    std::fill(sums.scale, sums.scale + kRows, C{1});
    if (args_.sinks.data == nullptr) return;
    for (int64_t r = range.begin; r < range.end; ++r) {
      const int64_t lane = r - range.begin;
      if (sums.l[lane] == C{0}) continue;
      const C sink = LoadOperand<T>(args_.sinks, Head(r) * args_.sinks.stride) * unit;
      const C m = std::max(sums.m[lane], sink);
      const C to_log2 = static_cast<C>(kLog2E) / unit;  // domain unit to powers of two
      sums.scale[lane] = std::exp2((sums.m[lane] - m) * to_log2);
      sums.l[lane] = sums.l[lane] * sums.scale[lane] + std::exp2((sink - m) * to_log2);
      sums.m[lane] = m;
    }
  }

  // Stores O * scale / l (0 for rows without any weight) of the panel's rows, or of the suspects
  // only.
  template <typename T>
  void StoreOut(const PanelRange& range, const RowSums<C>& sums, const C* o,
                bool only_suspects) const {
    const Tag<C> d;
    for (int64_t lane = 0; lane < range.size(); lane += kLanes) {
      const int64_t rows = std::min(kLanes, range.size() - lane);
      const auto l = hn::Load(d, sums.l + lane);
      const auto scale = hn::Load(d, sums.scale + lane);
      const auto empty = hn::Eq(l, hn::Zero(d));
      const auto row_at = [&](const C* from) HWY_ATTR {
        return hn::IfThenZeroElse(empty, hn::Div(hn::Mul(hn::Load(d, from), scale), l));
      };
      int64_t at = 0;
      for (; at + kLanes <= args_.head_dim_v; at += kLanes) {
        hn::Vec<Tag<C>> v[kLanes];
        HWY_UNROLL(16)
        for (int64_t i = 0; i < kLanes; ++i) v[i] = row_at(o + (at + i) * kRows + lane);
        Transpose(d, v);
        for (int64_t i = 0; i < rows; ++i) {
          if (only_suspects && !sums.suspect[lane + i]) continue;
          StoreRounded(d, v[i], OutRow<T>(range.begin + lane + i) + at);
        }
      }
      for (; at < args_.head_dim_v; ++at) {
        HWY_ALIGN C column[kLanes];
        hn::Store(row_at(o + at * kRows + lane), d, column);
        for (int64_t i = 0; i < rows; ++i) {
          if (only_suspects && !sums.suspect[lane + i]) continue;
          OutRow<T>(range.begin + lane + i)[at] = hwy::ConvertScalarTo<T>(column[i]);
        }
      }
    }
  }

  template <typename T>
  void StoreLse(int64_t r, C lse) const {
    using Lse = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (args_.lse != nullptr) *RowPointer<Lse>(args_.lse, args_.lse_strides, r) = lse;
  }

 private:
  static constexpr int64_t kRows = static_cast<int64_t>(kPanelRows<C>);
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<C>()));

  template <typename T>
  T* OutRow(int64_t r) const {
    return RowPointer<T>(args_.out, args_.out_strides, r);
  }

  int64_t Query(int64_t r) const { return group_ == 1 ? r : r / group_; }
  int64_t Head(int64_t r) const { return tile_.kv_head * group_ + (r - Query(r) * group_); }

  // Offset of a key bound from `begin`, within [0, keys].
  static int64_t Offset(int64_t bound, int64_t begin, int64_t keys) {
    return std::clamp(bound, begin, begin + keys) - begin;
  }

  template <typename P, typename Void>
  P* RowPointer(Void* data, const RowStrides& strides, int64_t r) const {
    return static_cast<P*>(data) + tile_.batch * strides.batch + Head(r) * strides.head +
           (q_begin_ + Query(r)) * strides.row;
  }

  int64_t ScoreOffset(const ScoreOperand& operand, int64_t r, int64_t key) const {
    return tile_.batch * operand.batch + Head(r) * operand.head + Query(r) * operand.row +
           key * operand.col;
  }

  // bias + mask of row r at `key`, as one number to add: -inf hides the key.
  template <typename T>
  C AdditiveTerm(int64_t r, int64_t key) const {
    if (args_.mask.data != nullptr &&
        static_cast<const uint8_t*>(args_.mask.data)[ScoreOffset(args_.mask, r, key)] == 0) {
      return -kInfinity<C>;
    }
    if (args_.bias.data == nullptr) return C{0};
    return LoadOperand<T>(args_.bias, ScoreOffset(args_.bias, r, key));
  }

  static bool SameForAllRows(const ScoreOperand& operand) {
    return operand.data == nullptr || (operand.head == 0 && operand.row == 0);
  }

  template <typename T>
  void FillAdditive(const PanelStep<C>& work, C* additive) const {
    const int64_t keys = work.keys.size();
    // The padding mask of an encoder: one term per key.
    if (SameForAllRows(args_.bias) && SameForAllRows(args_.mask)) {
      for (int64_t j = 0; j < keys; ++j) {
        const C term = AdditiveTerm<T>(work.range.begin, work.keys.begin + j);
        std::fill(additive + j * kRows, additive + (j + 1) * kRows, term);
      }
      return;
    }
    for (int64_t lane = 0; lane < kRows; ++lane) {
      const int64_t r = work.range.begin + lane;
      for (int64_t j = 0; j < keys; ++j) {
        additive[j * kRows + lane] =
            r < work.range.end ? AdditiveTerm<T>(r, work.keys.begin + j) : C{0};
      }
    }
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
