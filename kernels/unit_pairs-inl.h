// A unit that multiplies bf16 pairs and sums in f32. Tiles: the instruction (tile_dot-inl.h,
// tile_amx-inl.h). Formats, all in words of two neighbours in depth:
//   Q    panels of [head_dim / 2][kRows], once per tile
//   K    [keys][head_dim / 2], once per block
//   V^T  [head_dim_v][keys / 2], once per block
//   P    [keys / 2][kRows], in place of the scores of a panel
// Depth and rows are padded with zeros to the granules of the tiles. Both products then have a left
// operand that is read by rows and a panel on the right.
//
// Cost per block and tile beside the products: one copy of K and one transposition of V, together
// about 1 % of the products of 512 rows by vectors, some 6 % of those by AMX tiles.

#if defined(FLASHLANE_KERNELS_UNIT_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_UNIT_PAIRS_INL_H_
#undef FLASHLANE_KERNELS_UNIT_PAIRS_INL_H_
#else
#define FLASHLANE_KERNELS_UNIT_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/block_sizes.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/pair_operands-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/tile_pairs-inl.h"

#if FLASHLANE_HAS_PAIRS

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Turns scores into pairs of weights. Sums the rounded weights in l, so that out is a weighted mean
// of values with the very weights of the product; and the weights themselves in exact_l, for an lse
// without the rounding.
template <class Panel, Domain kDomain, size_t kVecs>
HWY_NOINLINE void WeighToPairs(const PanelState<float>& state, float unit, int64_t keys,
                               const float* scores, uint32_t* pairs) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> du;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  const PanelWeights<Panel, kDomain, kVecs, WeightPrecision::kHalf> weights(state.m, unit);
  V sum[kVecs];
  V exact[kVecs];
  for (size_t v = 0; v < kVecs; ++v) {
    sum[v] = hn::Load(d, state.l + v * lanes);
    exact[v] = hn::Load(d, state.exact_l + v * lanes);
  }
  for (int64_t j = 0; j < keys; j += 2, pairs += Panel::kRows) {
    V p[2 * kVecs];
    if constexpr (2 * kVecs <= kVectorsInLockStep) {
      weights.Load(scores + j * Panel::kRows, p);
    } else {
      V first[kVecs], second[kVecs];
      weights.Load(scores + j * Panel::kRows, first);
      weights.Load(scores + (j + 1) * Panel::kRows, second);
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) {
        p[v] = first[v];
        p[kVecs + v] = second[v];
      }
    }
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      const auto rounded = RoundToPairs(d, p[v], p[kVecs + v]);
      sum[v] = AddPairs(d, rounded, sum[v]);
      exact[v] = hn::Add(hn::Add(exact[v], p[v]), p[kVecs + v]);
      hn::Store(hn::BitCast(du, rounded), du, pairs + v * lanes);
    }
  }
  for (size_t v = 0; v < kVecs; ++v) {
    hn::Store(sum[v], d, state.l + v * lanes);
    hn::Store(exact[v], d, state.exact_l + v * lanes);
  }
}

template <class Tiles>
class PairUnit {
 public:
  using T = hwy::bfloat16_t;
  using C = float;
  using Panel = typename Tiles::Panel;
  using Session = typename Tiles::Session;
  static constexpr const char* kName = Tiles::kName;
  static constexpr bool kFoldsScale = false;  // bf16 has no digits to spare
  static constexpr bool kRoundsWeights = true;
  static constexpr bool kWeighsInPlace = false;
  static constexpr int64_t kKeyGranule = Tiles::kDepthGranule;

  static FlashBlocks Blocks(const ForwardArgs& args) {
    return Tiles::Blocks(args.head_dim, args.head_dim_v);
  }
  static int64_t OutRows(int64_t head_dim_v) { return RoundUp(head_dim_v, Tiles::kRowGranule); }

  PairUnit(const ForwardArgs& args, const FlashBlocks& blocks, int64_t num_panels, Carver* carver)
      : head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        depth_(RoundUp(args.head_dim, Tiles::kDepthGranule) / 2),
        v_(blocks.block_k, head_dim_v_, OutRows(head_dim_v_), carver) {
    q_ = carver->Take<uint32_t>(num_panels * Panel::kRows * depth_);
    k_ = carver->Take<uint32_t>(blocks.block_k * depth_);
    p_ = carver->Take<uint32_t>(blocks.block_k / 2 * Panel::kRows);
  }

  // `fold` is 1 or -1.
  void PackQueries(const TileRows<Panel>& rows, float fold) {
    PackPairPanels(rows, {rows.Queries(), head_dim_, depth_, std::signbit(fold)}, q_);
  }

  // Packs keys [step.begin, step.end), with zeros out to whole steps of depth. Returns whether
  // their values hold a NaN or an infinity; those are packed as 0.
  bool LoadBlock(const KvRows<T>& k, const KvRows<T>& v, const KeyRange& step,
                 int64_t block_begin) {
    block_begin_ = block_begin;
    const int64_t begin = (step.begin - block_begin) / kKeyGranule * kKeyGranule;
    const int64_t end = RoundUp(step.end - block_begin, kKeyGranule);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t key = block_begin + j;
      const bool live = key >= step.begin && key < step.end;
      CopyPairs(live ? k.Row(key) : nullptr, head_dim_, depth_, k_ + j * depth_);
    }
    step_ = step;
    return v_.Pack(v, step, block_begin, {begin, end});
  }

  template <size_t kVecs>
  void Scores(int64_t panel, const KeyRange& span, float* scores) const {
    Tiles::template Multiply<kVecs>(
        PairProduct{k_ + (span.begin - block_begin_) * depth_, depth_,
                    q_ + panel * depth_ * Panel::kRows, depth_, scores, nullptr},
        span.size(), Accumulate::kNothing);
  }

  template <Domain kDomain, size_t kVecs>
  void Weigh(const PanelState<float>& state, float unit, const KeyRange& span, float* scores) {
    WeighToPairs<Panel, kDomain, kVecs>(state, unit, span.size(), scores, Weights(span));
  }

  template <size_t kVecs>
  void AddValues(const KeyRange& span, Accumulate accumulate, const float* scale, float* o) const {
    Tiles::template Multiply<kVecs>(PairProduct{v_.At(span.begin - block_begin_), v_.stride(),
                                                Weights(span), span.size() / 2, o, scale},
                                    OutRows(head_dim_v_), accumulate);
  }

  // The finite values as ever; then the others, into the rows that see them.
  template <size_t kVecs>
  void AddValuesSelecting(const KvRows<T>& v, const KeyRange& span, Accumulate accumulate,
                          const float* scale, const float* hidden, float* o) const {
    AddValues<kVecs>(span, accumulate, scale, o);
    const KeyRange live{std::max(span.begin, step_.begin), std::min(span.end, step_.end)};
    for (int64_t key = live.begin; key < live.end; ++key) {
      if (!v_.HoldsNonFinite(key - block_begin_)) continue;
      const T* row = v.Row(key);
      const int64_t j = key - span.begin;
      for (int64_t i = 0; i < head_dim_v_; ++i) {
        const float value = hwy::ConvertScalarTo<float>(row[i]);
        if (std::isfinite(value)) continue;
        AddNonFinite<kVecs>(value, hidden + j * Panel::kRows, Weights(span) + j / 2 * Panel::kRows,
                            j % 2 != 0, o + i * Panel::kRows);
      }
    }
  }

 private:
  uint32_t* Weights(const KeyRange& span) const {
    return p_ + (span.begin - block_begin_) / 2 * Panel::kRows;
  }

  // One row of O^T += value * the weights of one key, but for the rows whose score was -inf.
  template <size_t kVecs>
  static HWY_NOINLINE void AddNonFinite(float value, const float* score, const uint32_t* pairs,
                                        bool second, float* o) {
    const hn::ScalableTag<float> d;
    const auto hidden = hn::Set(d, -kInfinity<float>);
    for (size_t at = 0; at < kVecs * hn::Lanes(d); at += hn::Lanes(d)) {
      const auto words = hn::Load(Words(), pairs + at);
      const auto bits =
          second ? hn::And(words, hn::Set(Words(), 0xFFFF0000u)) : hn::ShiftLeft<16>(words);
      const auto old = hn::Load(d, o + at);
      const auto sum = hn::MulAdd(hn::Set(d, value), hn::BitCast(d, bits), old);
      const auto is_hidden = hn::Eq(hn::Load(d, score + at), hidden);
      hn::Store(hn::IfThenElse(is_hidden, old, sum), d, o + at);
    }
  }

  const int64_t head_dim_;
  const int64_t head_dim_v_;
  const int64_t depth_;  // words of a row of Q and K
  uint32_t* q_;
  uint32_t* k_;
  PairColumns v_;
  uint32_t* p_;
  int64_t block_begin_ = 0;
  KeyRange step_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_UNIT_PAIRS_INL_H_
