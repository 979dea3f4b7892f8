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
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/block_sizes.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/tile_pairs-inl.h"
#include "kernels/transpose-inl.h"

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
  static int64_t OutRows(int64_t head_dim_v) { return Up(head_dim_v, Tiles::kRowGranule); }

  PairUnit(const ForwardArgs& args, const FlashBlocks& blocks, int64_t num_panels, Carver* carver)
      : head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        depth_(Up(args.head_dim, Tiles::kDepthGranule) / 2),
        v_stride_(blocks.block_k / 2) {
    q_ = carver->Take<uint32_t>(num_panels * Panel::kRows * depth_);
    k_ = carver->Take<uint32_t>(blocks.block_k * depth_);
    v_ = carver->Take<uint32_t>(OutRows(head_dim_v_) * v_stride_);
    p_ = carver->Take<uint32_t>(v_stride_ * Panel::kRows);
    zeros_ = carver->Take<T>(head_dim_v_);
    non_finite_ = carver->Take<uint8_t>(blocks.block_k);
  }

  // `fold` is 1 or -1.
  void PackQueries(const TileRows<Panel>& rows, float fold) {
    const uint32_t sign = std::signbit(fold) ? 0x80008000u : 0u;
    rows.template PackQueries<T>(Pack{hn::Set(kWords, sign), sign, head_dim_, head_dim_ / 2},
                                 hwy::DivCeil(head_dim_, int64_t{2}), depth_ * Panel::kRows, q_);
    const int64_t packed = hwy::DivCeil(head_dim_, int64_t{2});
    for (int64_t panel = 0; panel < rows.num_panels(); ++panel) {
      uint32_t* to = q_ + panel * depth_ * Panel::kRows;
      std::fill(to + packed * Panel::kRows, to + depth_ * Panel::kRows, 0u);
    }
  }

  // Packs keys [step.begin, step.end), with zeros out to whole steps of depth. Returns whether
  // their values hold a NaN or an infinity; those are packed as 0.
  bool LoadBlock(const KvRows<T>& k, const KvRows<T>& v, const KeyRange& step,
                 int64_t block_begin) {
    block_begin_ = block_begin;
    const int64_t begin = (step.begin - block_begin) / kKeyGranule * kKeyGranule;
    const int64_t end = Up(step.end - block_begin, kKeyGranule);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t key = block_begin + j;
      const bool live = key >= step.begin && key < step.end;
      CopyRow(live ? k.Row(key) : nullptr, k_ + j * depth_);
    }
    return PackValues(v, step, begin, end);
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
    Tiles::template Multiply<kVecs>(PairProduct{v_ + (span.begin - block_begin_) / 2, v_stride_,
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
      if (non_finite_[key - block_begin_] == 0) continue;
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
  static constexpr hn::ScalableTag<uint32_t> kWords{};
  static constexpr hn::Rebind<uint16_t, hn::ScalableTag<uint32_t>> kHalves{};
  static constexpr int64_t kLanes = Panel::kLanes;

  static constexpr int64_t Up(int64_t size, int64_t granule) {
    return (size + granule - 1) / granule * granule;
  }

  struct Pack {
    hn::Vec<hn::ScalableTag<uint32_t>> sign;
    uint32_t sign_one;
    int64_t head_dim;
    int64_t whole;  // words; the last of an odd head_dim is half of one
    HWY_INLINE hn::Vec<hn::ScalableTag<uint32_t>> Load(const T* row, int64_t at) const {
      const hn::Repartition<uint16_t, hn::ScalableTag<uint32_t>> d16;
      const auto elements = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row) + 2 * at);
      return hn::Xor(hn::BitCast(kWords, elements), sign);
    }
    HWY_INLINE uint32_t One(const T* row, int64_t at) const {
      uint32_t word = 0;
      std::memcpy(&word, row + 2 * at, (2 * at + 1 < head_dim ? 2 : 1) * sizeof(T));
      return word ^ sign_one;
    }
  };

  uint32_t* Weights(const KeyRange& span) const {
    return p_ + (span.begin - block_begin_) / 2 * Panel::kRows;
  }

  // One row of K, zeros beyond its end; a null `from` is a row of zeros.
  void CopyRow(const T* from, uint32_t* to) const {
    const hn::Repartition<uint16_t, hn::ScalableTag<uint32_t>> d16;
    const int64_t lanes = 2 * kLanes;
    const int64_t size = from == nullptr ? 0 : head_dim_;
    const uint16_t* elements = reinterpret_cast<const uint16_t*>(from);
    int64_t i = 0;
    for (; i + lanes <= size; i += lanes) {
      hn::StoreU(hn::BitCast(kWords, hn::LoadU(d16, elements + i)), kWords, to + i / 2);
    }
    if (i < size) {
      const auto rest = hn::LoadN(d16, elements + i, static_cast<size_t>(size - i));
      hn::StoreN(hn::BitCast(kWords, rest), kWords, to + i / 2,
                 static_cast<size_t>(std::min(kLanes, depth_ - i / 2)));
      i += lanes;
    }
    std::fill(to + std::min(i / 2, depth_), to + depth_, 0u);
  }

  // V^T of keys [begin, end) of the block, by squares of kLanes pairs of keys x kLanes columns.
  HWY_NOINLINE bool PackValues(const KvRows<T>& v, const KeyRange& step, int64_t begin,
                               int64_t end) {
    step_ = step;
    std::fill(zeros_, zeros_ + head_dim_v_, hwy::ConvertScalarTo<T>(0.0f));
    // Magnitudes, of which a NaN's or an infinity's is at least kInfinityBits.
    auto largest = hn::Zero(kWords);
    for (int64_t pair = begin / 2; pair < end / 2; pair += kLanes) {
      const T* rows[2 * kLanes];
      for (int64_t i = 0; i < 2 * kLanes; ++i) {
        const int64_t key = block_begin_ + 2 * pair + i;
        rows[i] = key >= step.begin && key < step.end ? v.Row(key) : zeros_;
      }
      const int64_t pairs = std::min(kLanes, v_stride_ - pair);
      for (int64_t column = 0; column < OutRows(head_dim_v_); column += kLanes) {
        hn::Vec<hn::ScalableTag<uint32_t>> square[kLanes];
        if (column + kLanes <= head_dim_v_) {
          LoadSquare(rows, column, WholeVector{}, square, &largest);
        } else {
          const int64_t columns = std::max<int64_t>(head_dim_v_ - column, 0);
          LoadSquare(rows, column, PartOfVector{static_cast<size_t>(columns)}, square, &largest);
        }
        Transpose(kWords, square);
        uint32_t* to = v_ + column * v_stride_ + pair;
        const int64_t num_columns = std::min(kLanes, OutRows(head_dim_v_) - column);
        for (int64_t i = 0; i < num_columns; ++i) {
          if (pairs == kLanes) {
            hn::StoreU(square[i], kWords, to + i * v_stride_);
          } else {
            hn::StoreN(square[i], kWords, to + i * v_stride_, static_cast<size_t>(pairs));
          }
        }
      }
    }
    if (hn::AllTrue(kWords, hn::Lt(largest, hn::Set(kWords, kInfinityBits)))) return false;
    ClearNonFinite(begin / 2, end / 2);
    return true;
  }

  static constexpr uint32_t kInfinityBits = 0x7F80;

  struct WholeVector {
    HWY_INLINE auto operator()(const uint16_t* from) const { return hn::LoadU(kHalves, from); }
  };
  struct PartOfVector {
    size_t count;
    HWY_INLINE auto operator()(const uint16_t* from) const {
      return hn::LoadN(kHalves, from, count);
    }
  };

  // square[i]: columns [column, column + kLanes) of rows 2 i (low halves) and 2 i + 1.
  template <class Load>
  static HWY_INLINE void LoadSquare(const T* const* rows, int64_t column, const Load& load,
                                    hn::Vec<hn::ScalableTag<uint32_t>>* square,
                                    hn::Vec<hn::ScalableTag<uint32_t>>* largest) {
    const auto magnitude = hn::Set(kWords, 0x7FFFu);
    HWY_UNROLL(16)
    for (int64_t i = 0; i < kLanes; ++i) {
      const auto first =
          hn::PromoteTo(kWords, load(reinterpret_cast<const uint16_t*>(rows[2 * i] + column)));
      const auto second =
          hn::PromoteTo(kWords, load(reinterpret_cast<const uint16_t*>(rows[2 * i + 1] + column)));
      *largest = hn::Max(*largest, hn::Max(hn::And(first, magnitude), hn::And(second, magnitude)));
      square[i] = hn::Or(first, hn::ShiftLeft<16>(second));
    }
  }

  HWY_NOINLINE void ClearNonFinite(int64_t pair_begin, int64_t pair_end) {
    std::fill(non_finite_ + 2 * pair_begin, non_finite_ + 2 * pair_end, uint8_t{0});
    for (int64_t column = 0; column < head_dim_v_; ++column) {
      for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
        uint32_t& word = v_[column * v_stride_ + pair];
        if ((word & 0x7FFFu) >= kInfinityBits) {
          word &= 0xFFFF0000u;
          non_finite_[2 * pair] = 1;
        }
        if ((word >> 16 & 0x7FFFu) >= kInfinityBits) {
          word &= 0x0000FFFFu;
          non_finite_[2 * pair + 1] = 1;
        }
      }
    }
  }

  // One row of O^T += value * the weights of one key, but for the rows whose score was -inf.
  template <size_t kVecs>
  static HWY_NOINLINE void AddNonFinite(float value, const float* score, const uint32_t* pairs,
                                        bool second, float* o) {
    const hn::ScalableTag<float> d;
    const auto hidden = hn::Set(d, -kInfinity<float>);
    for (size_t at = 0; at < kVecs * hn::Lanes(d); at += hn::Lanes(d)) {
      const auto words = hn::Load(kWords, pairs + at);
      const auto bits =
          second ? hn::And(words, hn::Set(kWords, 0xFFFF0000u)) : hn::ShiftLeft<16>(words);
      const auto old = hn::Load(d, o + at);
      const auto sum = hn::MulAdd(hn::Set(d, value), hn::BitCast(d, bits), old);
      const auto is_hidden = hn::Eq(hn::Load(d, score + at), hidden);
      hn::Store(hn::IfThenElse(is_hidden, old, sum), d, o + at);
    }
  }

  const int64_t head_dim_;
  const int64_t head_dim_v_;
  const int64_t depth_;     // words of a row of Q and K
  const int64_t v_stride_;  // words of a row of V^T
  uint32_t* q_;
  uint32_t* k_;
  uint32_t* v_;
  uint32_t* p_;
  T* zeros_;             // [head_dim_v]
  uint8_t* non_finite_;  // [block_k], valid where LoadBlock found any
  int64_t block_begin_ = 0;
  KeyRange step_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_UNIT_PAIRS_INL_H_
