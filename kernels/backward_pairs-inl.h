// The five products of the backward by an instruction that multiplies pairs of bf16 and sums in
// f32. Tiles: the instruction (tile_dot-inl.h, tile_amx-inl.h). All left operands are read by rows,
// all right ones are panels. In words of two neighbours in depth:
//   product            left, by rows                right, panels of [depth][kRows]
//   S^T  = K Q^T       K    [keys][D / 2]           Q^T   [D / 2][rows]
//   dP^T = V dO^T      V    [keys][Dv / 2]          dO^T  [Dv / 2][rows]
//   dV  += P^T dO      P^T  [keys][rows / 2]        dO    [rows / 2][columns]
//   dK  += dS^T Q      dS^T [keys][rows / 2]        Q     [rows / 2][columns]
//   dQ^T += K^T dS^T   K^T  [D][keys / 2]           dS^T  [keys / 2][rows]
// P and dS are rounded to bf16, as v and q are; scores and dP stay in f32. Depth and rows are
// padded with zeros to the granules of the tiles.
//
// Cost beside the products: per score two roundings and a shuffle (dS is there in both layouts);
// per block of keys and strip of rows a copy of K and V and a transposition of K, 3 D words per 256
// rows; sums of dK and dV pass through a panel in L1 before they are added in memory.

#if defined(FLASHLANE_KERNELS_BACKWARD_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_PAIRS_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_PAIRS_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/backward_rows-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/pair_operands-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/tile_pairs-inl.h"

#if FLASHLANE_HAS_PAIRS

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Two rows of a matrix as words of their columns, numbers that are not finite as 0. Returns whether
// there were any. A null row is one of zeros.
inline bool ZipRows(const hwy::bfloat16_t* first, const hwy::bfloat16_t* second, int64_t width,
                    uint32_t* to) {
  const Words words;
  const auto infinity = hn::Set(words, kInfinityBits);
  const auto magnitude = hn::Set(words, kMagnitudeBits);
  auto any = hn::MaskFalse(words);
  const auto load = [&](const hwy::bfloat16_t* row, int64_t at) HWY_ATTR {
    if (row == nullptr) return hn::Zero(words);
    const uint16_t* from = reinterpret_cast<const uint16_t*>(row) + at;
    const auto bits = at + kWordLanes <= width
                          ? WholeVector{}(from)
                          : PartOfVector{static_cast<size_t>(width - at)}(from);
    const auto bad = hn::Ge(hn::And(bits, magnitude), infinity);
    any = hn::Or(any, bad);
    return hn::IfThenZeroElse(bad, bits);
  };
  for (int64_t at = 0; at < width; at += kWordLanes) {
    hn::Store(hn::Or(load(first, at), hn::ShiftLeft<16>(load(second, at))), words, to + at);
  }
  return !hn::AllFalse(words, any);
}

// Pairs of rows of the tile, cut to panels of columns: [panel][max_rows / 2][kRows] words, zeros
// from row `num_rows` on to the end of its panel of rows. Returns whether numbers were not finite.
template <class Panel>
HWY_NOINLINE bool ZipColumns(const TileRows<Panel>& rows,
                             const typename TileRows<Panel>::RowSource& source, int64_t num_rows,
                             const ColumnPanels<Panel>& panels, int64_t max_rows, uint32_t* to) {
  using T = hwy::bfloat16_t;
  const int64_t first = rows.Range(0).begin;
  const auto row = [&](int64_t r) -> const T* {
    return r < num_rows ? rows.template RowPointer<const T>(source.data, source.strides, first + r)
                        : nullptr;
  };
  bool any = false;
  for (int64_t r = 0; r < rows.num_panels() * Panel::kRows; r += 2) {
    const T* even = row(r);
    const T* odd = row(r + 1);
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t column = panel * panels.step;
      any |= ZipRows(even == nullptr ? nullptr : even + column,
                     odd == nullptr ? nullptr : odd + column, panels.Width(panel),
                     to + (panel * max_rows + r) / 2 * Panel::kRows);
    }
  }
  return any;
}

// Rounds rows of `keys` x Panel::kRows numbers to bf16, `stride` elements apart.
template <class Panel>
HWY_NOINLINE void RoundRows(const float* from, int64_t keys, int64_t stride, hwy::bfloat16_t* to) {
  const hn::ScalableTag<float> d;
  const hn::Repartition<hwy::bfloat16_t, decltype(d)> d16;
  constexpr int64_t kLanes = Panel::kLanes;
  static_assert(Panel::kVectors % 2 == 0);
  for (int64_t j = 0; j < keys; ++j, from += Panel::kRows, to += stride) {
    HWY_UNROLL(2)
    for (int64_t i = 0; i < Panel::kRows; i += 2 * kLanes) {
      const auto both =
          hn::OrderedDemote2To(d16, hn::Load(d, from + i), hn::Load(d, from + i + kLanes));
      hn::StoreU(both, d16, to + i);
    }
  }
}

// The same as words of two neighbouring keys, [keys / 2][kRows].
template <class Panel>
HWY_NOINLINE void RoundKeyPairs(const float* from, int64_t keys, uint32_t* to) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> words;
  for (int64_t j = 0; j < keys; j += 2, from += 2 * Panel::kRows, to += Panel::kRows) {
    HWY_UNROLL(4)
    for (int64_t i = 0; i < Panel::kRows; i += Panel::kLanes) {
      const auto pairs =
          RoundToPairs(d, hn::Load(d, from + i), hn::Load(d, from + Panel::kRows + i));
      hn::Store(hn::BitCast(words, pairs), words, to + i);
    }
  }
}

// to[j] += factor * row j of a panel, for `rows` rows.
template <class Panel>
HWY_NOINLINE void AddPanelRows(const float* from, int64_t rows, const SumTarget<float>& to,
                               const NextRows& next) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = Panel::kLanes;
  const auto factor = hn::Set(d, to.factor);
  for (int64_t j = 0; j < rows; ++j, from += Panel::kRows) {
    next.Fetch(j, j + 1);
    float* row = to.data + j * to.stride;
    int64_t i = 0;
    for (; i + kLanes <= to.width; i += kLanes) {
      hn::StoreU(hn::MulAdd(hn::Load(d, from + i), factor, hn::LoadU(d, row + i)), d, row + i);
    }
    if (i == to.width) continue;
    const auto rest = static_cast<size_t>(to.width - i);
    hn::StoreN(hn::MulAdd(hn::Load(d, from + i), factor, hn::LoadN(d, row + i, rest)), d, row + i,
               rest);
  }
}

template <class Tiles>
class PairGradients {
 public:
  using T = hwy::bfloat16_t;
  using C = float;
  using Panel = typename Tiles::Panel;
  using Rows = TileRows<Panel>;
  using Session = typename Tiles::Session;
  static constexpr const char* kName = Tiles::kName;
  static constexpr bool kFoldsScale = false;  // bf16 has no digits to spare
  static constexpr int64_t kKeyGranule = Tiles::kDepthGranule;
  static_assert(Panel::kRows % Tiles::kDepthGranule == 0);

  static BackwardBlocks Blocks(const ForwardArgs& args) {
    return ChooseBackwardPairBlocks(args.head_dim, args.head_dim_v, Panel::kRows,
                                    Tiles::kBackwardKeys);
  }
  static int64_t OutRows(int64_t head_dim) { return RoundUp(head_dim, Tiles::kRowGranule); }

  PairGradients(const ForwardArgs& args, const BackwardBlocks& blocks, const Wanted& wanted,
                Carver* carver)
      : head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        depth_(RoundUp(args.head_dim, Tiles::kDepthGranule) / 2),
        depth_v_(RoundUp(args.head_dim_v, Tiles::kDepthGranule) / 2),
        blocks_(blocks),
        wanted_(wanted),
        q_columns_(args.head_dim),
        dout_columns_(args.head_dim_v),
        k_columns_(wanted.dq ? blocks.block_k : 0, args.head_dim, OutRows(args.head_dim), carver) {
    const int64_t scores = blocks.block_q * blocks.block_k;
    const int64_t panel_size = blocks.block_q / 2 * Panel::kRows;
    q_ = carver->Take<uint32_t>(blocks.block_q * depth_);
    k_ = carver->Take<uint32_t>(blocks.block_k * depth_);
    p_ = carver->Take<float>(blocks.block_k * Panel::kRows);
    if (wanted.ds) {
      dout_ = carver->Take<uint32_t>(blocks.block_q * depth_v_);
      v_ = carver->Take<uint32_t>(blocks.block_k * depth_v_);
      ds_ = carver->Take<float>(blocks.block_k * Panel::kRows);
    }
    if (wanted.dq) ds_pairs_ = carver->Take<uint32_t>(scores / 2);
    if (wanted.dk) {
      ds_rows_ = carver->Take<T>(scores);
      q_rows_ = carver->Take<uint32_t>(q_columns_.count * panel_size);
    }
    if (wanted.dv) {
      p_rows_ = carver->Take<T>(scores);
      dout_rows_ = carver->Take<uint32_t>(dout_columns_.count * panel_size);
    }
  }

  // `fold` is 1 or -1.
  void PackQueries(const Rows& rows, double fold) {
    PackPairPanels(rows, {rows.Queries(), head_dim_, depth_, fold < 0}, q_);
  }
  void PackDout(const Rows& rows, const typename Rows::RowSource& dout) {
    PackPairPanels(rows, {dout, head_dim_v_, depth_v_, false}, dout_);
  }

  bool PackColumns(const Rows& rows, int64_t num_rows, const typename Rows::RowSource& dout) {
    if (wanted_.dk) {
      ZipColumns(rows, rows.Queries(), num_rows, q_columns_, blocks_.block_q, q_rows_);
    }
    return wanted_.dv &&
           ZipColumns(rows, dout, num_rows, dout_columns_, blocks_.block_q, dout_rows_);
  }

  void LoadKeys(const KvRows<T>& k, const KeyRange& step, int64_t block_begin) {
    block_begin_ = block_begin;
    CopyKeys(k, step, head_dim_, depth_, k_);
  }
  void LoadBlock(const KvRows<T>& k, const KvRows<T>& v, const KeyRange& step,
                 int64_t block_begin) {
    LoadKeys(k, step, block_begin);
    if (wanted_.ds) CopyKeys(v, step, head_dim_v_, depth_v_, v_);
    if (wanted_.dq) k_columns_.Pack(k, step, block_begin, SpanOf(step));
  }

  // Of the panel that is weighed.
  float* Weights(int64_t /*panel*/) const { return p_; }
  float* ScoreGradients(int64_t /*panel*/) const { return ds_; }
  float WeightAt(int64_t r, int64_t key) const {
    return hwy::ConvertScalarTo<float>(p_rows_[(key - block_begin_) * blocks_.block_q + r]);
  }

  template <size_t kVecs>
  void Scores(int64_t panel, const KeyRange& span, float* scores) const {
    Tiles::template Multiply<kVecs>(
        PairProduct{k_ + (span.begin - block_begin_) * depth_, depth_,
                    q_ + panel * depth_ * Panel::kRows, depth_, scores, nullptr},
        span.size(), Accumulate::kNothing);
  }
  template <size_t kVecs>
  void WeightGradients(int64_t panel, const KeyRange& span, float* dp) const {
    Tiles::template Multiply<kVecs>(
        PairProduct{v_ + (span.begin - block_begin_) * depth_v_, depth_v_,
                    dout_ + panel * depth_v_ * Panel::kRows, depth_v_, dp, nullptr},
        span.size(), Accumulate::kNothing);
  }

  // Rounds P and dS of the panel; lanes from `rows` on, which no row has, become 0.
  void Finish(int64_t panel, int64_t rows, const KeyRange& span) const {
    const int64_t key = span.begin - block_begin_, keys = span.size();
    const int64_t at = key * blocks_.block_q + panel * Panel::kRows;
    if (wanted_.dv) {
      ClearLanes(rows, keys, p_ + key * Panel::kRows);
      RoundRows<Panel>(p_ + key * Panel::kRows, keys, blocks_.block_q, p_rows_ + at);
    }
    if (wanted_.dk) {
      ClearLanes(rows, keys, ds_ + key * Panel::kRows);
      RoundRows<Panel>(ds_ + key * Panel::kRows, keys, blocks_.block_q, ds_rows_ + at);
    }
    if (wanted_.dq) {
      RoundKeyPairs<Panel>(ds_ + key * Panel::kRows, keys, DsPairs(panel, span));
    }
  }

  template <size_t kVecs>
  void AddQueries(int64_t panel, const KeyRange& span, float* dq) const {
    Tiles::template Multiply<kVecs>(
        PairProduct{k_columns_.At(span.begin - block_begin_), k_columns_.stride(),
                    DsPairs(panel, span), span.size() / 2, dq, nullptr},
        OutRows(head_dim_), Accumulate::kOld);
  }

  void AddToValues(const KeyRun& run, int64_t /*num_rows*/, const KeySums<float>& to) const {
    AddToKeys({p_rows_, dout_rows_, dout_columns_}, run, to);
  }
  void AddToKeys(const KeyRun& run, int64_t /*num_rows*/, const KeySums<float>& to) const {
    AddToKeys({ds_rows_, q_rows_, q_columns_}, run, to);
  }

 private:
  struct KeyOperands {
    const T* left;          // [block_k][block_q]
    const uint32_t* right;  // [columns][block_q / 2][kRows]
    const ColumnPanels<Panel>& columns;
  };

  // Keys of the block, out to whole steps of depth.
  KeyRange SpanOf(const KeyRange& keys) const {
    return {(keys.begin - block_begin_) / kKeyGranule * kKeyGranule,
            RoundUp(keys.end - block_begin_, kKeyGranule)};
  }

  void CopyKeys(const KvRows<T>& rows, const KeyRange& step, int64_t width, int64_t depth,
                uint32_t* to) const {
    const KeyRange span = SpanOf(step);
    for (int64_t j = span.begin; j < span.end; ++j) {
      const int64_t key = block_begin_ + j;
      const bool live = key >= step.begin && key < step.end;
      CopyPairs(live ? rows.Row(key) : nullptr, width, depth, to + j * depth);
    }
  }

  static void ClearLanes(int64_t rows, int64_t keys, float* values) {
    if (HWY_LIKELY(rows == Panel::kRows)) return;
    for (int64_t j = 0; j < keys; ++j, values += Panel::kRows) {
      std::fill(values + rows, values + Panel::kRows, 0.0f);
    }
  }

  uint32_t* DsPairs(int64_t panel, const KeyRange& span) const {
    return ds_pairs_ + (panel * blocks_.block_k + span.begin - block_begin_) / 2 * Panel::kRows;
  }

  void AddToKeys(const KeyOperands& operands, const KeyRun& run, const KeySums<float>& to) const {
    const int64_t key = run.keys.begin - block_begin_;
    const int64_t first = key / Tiles::kRowGranule * Tiles::kRowGranule;
    const int64_t keys = RoundUp(key + run.keys.size() - first, Tiles::kRowGranule);
    const int64_t row = run.panel_begin * Panel::kRows / 2;  // words
    const auto* left = reinterpret_cast<const uint32_t*>(operands.left);
    for (int64_t panel = 0; panel < operands.columns.count; ++panel) {
      const int64_t width = operands.columns.Width(panel);
      const int64_t column = panel * operands.columns.step;
      const PairProduct product{
          left + first * (blocks_.block_q / 2) + row,
          blocks_.block_q / 2,
          operands.right + (panel * (blocks_.block_q / 2) + row) * Panel::kRows,
          (run.panel_end - run.panel_begin) * Panel::kRows / 2,
          p_,  // its numbers were rounded
          nullptr};
      for (int64_t j = 0; j < run.keys.size(); ++j) {
        PrefetchSums(to.data + column + j * to.stride, width);
      }
      WithVectors<Panel::kVectors>(hwy::DivCeil(width, Panel::kLanes), [&](auto vectors) {
        Tiles::template Multiply<vectors()>(product, keys, Accumulate::kNothing);
      });
      AddPanelRows<Panel>(p_ + (key - first) * Panel::kRows, run.keys.size(),
                          {to.data + column, to.stride, width, to.factor},
                          to.next.Columns(column, width, sizeof(T)));
    }
  }

  const int64_t head_dim_, head_dim_v_;
  const int64_t depth_, depth_v_;  // words of a row of Q and K, of dO and V
  const BackwardBlocks blocks_;
  const Wanted wanted_;
  const ColumnPanels<Panel> q_columns_, dout_columns_;
  PairColumns k_columns_;
  uint32_t* q_;
  uint32_t* k_;
  float* p_;  // [block_k][kRows]: of one panel; then products on their way to dK and dV
  uint32_t* dout_ = nullptr;
  uint32_t* v_ = nullptr;
  float* ds_ = nullptr;           // as p_
  uint32_t* ds_pairs_ = nullptr;  // panels of [block_k / 2][kRows]
  T* ds_rows_ = nullptr;          // [block_k][block_q]
  T* p_rows_ = nullptr;           // [block_k][block_q]
  uint32_t* q_rows_ = nullptr;    // [columns][block_q / 2][kRows]
  uint32_t* dout_rows_ = nullptr;
  int64_t block_begin_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_BACKWARD_PAIRS_INL_H_
