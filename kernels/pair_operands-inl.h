// Operands of the products of bf16 pairs, in words of two neighbours in depth (tile_pairs-inl.h):
// rows copied with zeros behind them, rows transposed to panels, rows transposed to rows.

#if defined(FLASHLANE_KERNELS_PAIR_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_PAIR_OPERANDS_INL_H_
#undef FLASHLANE_KERNELS_PAIR_OPERANDS_INL_H_
#else
#define FLASHLANE_KERNELS_PAIR_OPERANDS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/transpose-inl.h"

#if FLASHLANE_HAS_PAIRS

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<uint32_t>;
inline constexpr int64_t kWordLanes = static_cast<int64_t>(hn::MaxLanes(Words()));

// Magnitudes of bf16 from here on are infinity or NaN.
inline constexpr uint32_t kInfinityBits = 0x7F80;
inline constexpr uint32_t kMagnitudeBits = 0x7FFF;

constexpr int64_t RoundUp(int64_t size, int64_t granule) {
  return (size + granule - 1) / granule * granule;
}

// How TileRows packs rows of bf16 as words; `negate`: with the other sign.
struct PairPack {
  PairPack(int64_t size, bool negate)
      : sign_one(negate ? 0x80008000u : 0u),
        sign(hn::Set(Words(), sign_one)),
        width(size),
        whole(size / 2) {}
  HWY_INLINE hn::Vec<Words> Load(const hwy::bfloat16_t* row, int64_t at) const {
    const hn::Repartition<uint16_t, Words> d16;
    const auto elements = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row) + 2 * at);
    return hn::Xor(hn::BitCast(Words(), elements), sign);
  }
  HWY_INLINE uint32_t One(const hwy::bfloat16_t* row, int64_t at) const {
    uint32_t word = 0;
    std::memcpy(&word, row + 2 * at, (2 * at + 1 < width ? 2 : 1) * sizeof(hwy::bfloat16_t));
    return word ^ sign_one;
  }

  uint32_t sign_one;
  hn::Vec<Words> sign;
  int64_t width;
  int64_t whole;  // words; the last of an odd width is half of one
};

// What is packed to panels: `width` elements of every row, with zeros up to `depth` words.
template <class Rows>
struct PanelSource {
  typename Rows::RowSource rows;
  int64_t width;
  int64_t depth;
  bool negate;
};

// Rows of the tile as panels of [depth][kRows] words.
template <class Panel>
void PackPairPanels(const TileRows<Panel>& rows, const PanelSource<TileRows<Panel>>& source,
                    uint32_t* to) {
  const int64_t packed = hwy::DivCeil(source.width, int64_t{2});
  const int64_t panel_size = source.depth * Panel::kRows;
  rows.template PackRows<hwy::bfloat16_t>(source.rows, PairPack(source.width, source.negate),
                                          packed, panel_size, to);
  for (int64_t panel = 0; panel < rows.num_panels(); ++panel, to += panel_size) {
    std::fill(to + packed * Panel::kRows, to + panel_size, 0u);
  }
}

// `width` elements of a row, with zeros up to `depth` words; a null `from` is a row of zeros.
inline void CopyPairs(const hwy::bfloat16_t* from, int64_t width, int64_t depth, uint32_t* to) {
  const Words words;
  const hn::Repartition<uint16_t, Words> d16;
  constexpr int64_t kElements = 2 * kWordLanes;
  const int64_t size = from == nullptr ? 0 : width;
  const uint16_t* elements = reinterpret_cast<const uint16_t*>(from);
  int64_t i = 0;
  for (; i + kElements <= size; i += kElements) {
    hn::StoreU(hn::BitCast(words, hn::LoadU(d16, elements + i)), words, to + i / 2);
  }
  if (i < size) {
    const auto rest = hn::LoadN(d16, elements + i, static_cast<size_t>(size - i));
    hn::StoreN(hn::BitCast(words, rest), words, to + i / 2,
               static_cast<size_t>(std::min(kWordLanes, depth - i / 2)));
    i += kElements;
  }
  std::fill(to + std::min(i / 2, depth), to + depth, 0u);
}

// Lanes of u32 from u16 in memory.
struct WholeVector {
  HWY_INLINE hn::Vec<Words> operator()(const uint16_t* from) const {
    return hn::PromoteTo(Words(), hn::LoadU(hn::Rebind<uint16_t, Words>(), from));
  }
};
struct PartOfVector {
  size_t count;
  HWY_INLINE hn::Vec<Words> operator()(const uint16_t* from) const {
    return hn::PromoteTo(Words(), hn::LoadN(hn::Rebind<uint16_t, Words>(), from, count));
  }
};

// Keys of a block transposed to [columns][keys / 2], numbers that are not finite as 0.
class PairColumns {
 public:
  using T = hwy::bfloat16_t;

  // `out_rows`: columns of the block, padded to the granule of the tiles.
  PairColumns(int64_t block_k, int64_t width, int64_t out_rows, Carver* carver)
      : width_(width), out_rows_(out_rows), stride_(block_k / 2) {
    words_ = carver->Take<uint32_t>(out_rows * stride_);
    zeros_ = carver->Take<T>(width);
    non_finite_ = carver->Take<uint8_t>(block_k);
  }

  // Packs keys [step.begin, step.end) of the block that begins at `block_begin`, with zeros in the
  // rest of its keys [span.begin, span.end). Returns whether any number was not finite.
  HWY_NOINLINE bool Pack(const KvRows<T>& source, const KeyRange& step, int64_t block_begin,
                         const KeyRange& span) {
    std::fill(zeros_, zeros_ + width_, hwy::ConvertScalarTo<T>(0.0f));
    auto largest = hn::Zero(Words());
    for (int64_t pair = span.begin / 2; pair < span.end / 2; pair += kWordLanes) {
      const T* rows[2 * kWordLanes];
      for (int64_t i = 0; i < 2 * kWordLanes; ++i) {
        const int64_t key = block_begin + 2 * pair + i;
        rows[i] = key >= step.begin && key < step.end ? source.Row(key) : zeros_;
      }
      for (int64_t column = 0; column < out_rows_; column += kWordLanes) {
        hn::Vec<Words> square[kWordLanes];
        if (column + kWordLanes <= width_) {
          LoadSquare(rows, column, WholeVector{}, square, &largest);
        } else {
          const int64_t columns = std::max<int64_t>(width_ - column, 0);
          LoadSquare(rows, column, PartOfVector{static_cast<size_t>(columns)}, square, &largest);
        }
        Transpose(Words(), square);
        StoreSquare(square, pair, column);
      }
    }
    if (hn::AllTrue(Words(), hn::Lt(largest, hn::Set(Words(), kInfinityBits)))) return false;
    ClearNonFinite(span.begin / 2, span.end / 2);
    return true;
  }

  // Key `key` of the block, which is even, in the first column.
  const uint32_t* At(int64_t key) const { return words_ + key / 2; }
  int64_t stride() const { return stride_; }

  // Of a key of the block; after Pack returned true.
  bool HoldsNonFinite(int64_t key) const { return non_finite_[key] != 0; }

 private:
  // square[i]: columns [column, column + kWordLanes) of rows 2 i (low halves) and 2 i + 1.
  template <class Load>
  static HWY_INLINE void LoadSquare(const T* const* rows, int64_t column, const Load& load,
                                    hn::Vec<Words>* square, hn::Vec<Words>* largest) {
    const auto magnitude = hn::Set(Words(), kMagnitudeBits);
    HWY_UNROLL(16)
    for (int64_t i = 0; i < kWordLanes; ++i) {
      const auto first = load(reinterpret_cast<const uint16_t*>(rows[2 * i] + column));
      const auto second = load(reinterpret_cast<const uint16_t*>(rows[2 * i + 1] + column));
      *largest = hn::Max(*largest, hn::Max(hn::And(first, magnitude), hn::And(second, magnitude)));
      square[i] = hn::Or(first, hn::ShiftLeft<16>(second));
    }
  }

  HWY_INLINE void StoreSquare(const hn::Vec<Words>* square, int64_t pair, int64_t column) const {
    const int64_t pairs = std::min(kWordLanes, stride_ - pair);
    const int64_t columns = std::min(kWordLanes, out_rows_ - column);
    uint32_t* to = words_ + column * stride_ + pair;
    for (int64_t i = 0; i < columns; ++i, to += stride_) {
      if (pairs == kWordLanes) {
        hn::StoreU(square[i], Words(), to);
      } else {
        hn::StoreN(square[i], Words(), to, static_cast<size_t>(pairs));
      }
    }
  }

  HWY_NOINLINE void ClearNonFinite(int64_t pair_begin, int64_t pair_end) {
    std::fill(non_finite_ + 2 * pair_begin, non_finite_ + 2 * pair_end, uint8_t{0});
    for (int64_t column = 0; column < width_; ++column) {
      for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
        uint32_t& word = words_[column * stride_ + pair];
        if ((word & kMagnitudeBits) >= kInfinityBits) {
          word &= 0xFFFF0000u;
          non_finite_[2 * pair] = 1;
        }
        if ((word >> 16 & kMagnitudeBits) >= kInfinityBits) {
          word &= 0x0000FFFFu;
          non_finite_[2 * pair + 1] = 1;
        }
      }
    }
  }

  const int64_t width_;
  const int64_t out_rows_;
  const int64_t stride_;  // words of a column
  uint32_t* words_;
  T* zeros_;             // [width]
  uint8_t* non_finite_;  // [block_k]
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_PAIR_OPERANDS_INL_H_
