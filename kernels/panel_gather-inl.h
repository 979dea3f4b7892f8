// Bias and boolean mask of a panel as one number to add to each score, in the panel's layout.
//
// Cost, per square of lanes x lanes terms: a load per row, log2(lanes) interleavings and a store
// per vector, few beside the 2 D multiply-adds per vector of the products. What remains is reading
// the operand, once per head. On Zen 4 prefetching its rows gained nothing, and shorter stretches
// of keys lost: they leave the hardware's prefetcher less to follow.

#if defined(FLASHLANE_KERNELS_PANEL_GATHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_PANEL_GATHER_INL_H_
#undef FLASHLANE_KERNELS_PANEL_GATHER_INL_H_
#else
#define FLASHLANE_KERNELS_PANEL_GATHER_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/convert-inl.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The terms of rows `range` and keys `keys`. -inf hides the key, whatever the bias is there.
template <typename T, class Panel>
class PanelGather {
 public:
  using C = typename Panel::C;

  PanelGather(const ForwardArgs& args, const TileRows<Panel>& rows, const PanelRange& range,
              const KeyRange& keys)
      : rows_(rows),
        range_(range),
        keys_(keys),
        group_(args.group()),
        bias_(args.bias.col == 0 ? ScoreOperand() : args.bias),
        mask_(args.mask.col == 0 ? ScoreOperand() : args.mask),
        row_bias_(args.bias.col == 0 ? args.bias : ScoreOperand()),
        row_mask_(args.mask.col == 0 ? args.mask : ScoreOperand()) {}

  // Fills the vectors of `to`, [keys][kRows], that hold a row. Lanes without a row repeat the
  // last one.
  void Fill(C* to) const {
    const int64_t num_vectors = hwy::DivCeil(range_.size(), kLanes);
    for (int64_t v = 0; v < num_vectors;) {
      Sources sources;
      Collect(v, num_vectors, &sources);
      FillVectors(sources, to);
      v += sources.vectors;
    }
    if (row_bias_.data != nullptr || row_mask_.data != nullptr) AddRowTerms(num_vectors, to);
  }

 private:
  using D = Tag<C>;
  using V = hn::Vec<D>;
  using LaneIndex = hwy::MakeSigned<C>;
  static constexpr int64_t kRows = Panel::kRows;
  static constexpr int64_t kLanes = Panel::kLanes;
  static constexpr int64_t kVectors = static_cast<int64_t>(Panel::kVectors);

  // Vectors of lanes that read at most kLanes different rows of bias and mask, so that one
  // transposition serves them all: the query heads of a kv head share the rows of an operand that
  // broadcasts over heads.
  struct Sources {
    int64_t first_vector = 0;
    int64_t vectors = 0;
    int64_t count = 0;
    int64_t bias[kLanes];  // index of the first key; those past `count` repeat the last
    int64_t mask[kLanes];
    LaneIndex of_lane[kVectors][kLanes];
  };

  // Walks the rows of the panel and where they begin in an operand, without a division per row.
  class Cursor {
   public:
    Cursor(const PanelGather& gather, const ScoreOperand& operand, int64_t r)
        : head_step_(operand.head),
          query_step_(operand.row - (gather.group_ - 1) * operand.head),
          at_(gather.rows_.ScoreOffset(operand, r) + gather.keys_.begin * operand.col) {}

    int64_t at() const { return at_; }
    void Next(bool next_query) { at_ += next_query ? query_step_ : head_step_; }

   private:
    const int64_t head_step_, query_step_;
    int64_t at_;
  };

  // Takes vectors from `vector` on while their sources fit.
  void Collect(int64_t vector, int64_t num_vectors, Sources* sources) const {
    int64_t r = range_.begin + vector * kLanes;
    int64_t g = r - rows_.Query(r) * group_;
    Cursor bias(*this, bias_, r);
    Cursor mask(*this, mask_, r);
    sources->first_vector = vector;
    for (int64_t v = vector; v < num_vectors; ++v) {
      int64_t count = sources->count;
      for (int64_t i = 0; i < kLanes; ++i) {
        if (count == 0 || sources->bias[count - 1] != bias.at() ||
            sources->mask[count - 1] != mask.at()) {
          if (count == kLanes) return Repeat(sources);
          sources->bias[count] = bias.at();
          sources->mask[count] = mask.at();
          ++count;
        }
        sources->of_lane[v - vector][i] = static_cast<LaneIndex>(count - 1);
        if (r + 1 >= range_.end) continue;
        ++r;
        const bool next_query = ++g == group_;
        if (next_query) g = 0;
        bias.Next(next_query);
        mask.Next(next_query);
      }
      sources->count = count;
      ++sources->vectors;
    }
    Repeat(sources);
  }

  static void Repeat(Sources* sources) {
    const int64_t last = sources->count - 1;
    std::fill(sources->bias + last, sources->bias + kLanes, sources->bias[last]);
    std::fill(sources->mask + last, sources->mask + kLanes, sources->mask[last]);
  }

  // The instance for the operands that there are and their types.
  void FillVectors(const Sources& sources, C* to) const {
    const bool masks = mask_.data != nullptr;
    if (keys_.size() < kLanes) return FillElements(sources, to);
    if (bias_.data == nullptr) {
      return masks ? FillSquares<void, true>(sources, to) : FillSquares<void, false>(sources, to);
    }
    if (bias_.is_f32) {
      return masks ? FillSquares<float, true>(sources, to) : FillSquares<float, false>(sources, to);
    }
    return masks ? FillSquares<T, true>(sources, to) : FillSquares<T, false>(sources, to);
  }

  // Squares of sources and keys, read along the keys. Bias: type of its elements, void for none.
  template <typename Bias, bool kMasks>
  HWY_NOINLINE void FillSquares(const Sources& sources, C* to) const {
    const D d;
    const int64_t last = keys_.size() - kLanes;
    for (int64_t next = 0; next < keys_.size(); next += kLanes) {
      // The last square overlaps the one before it, so that no key past the last is read.
      const int64_t j = std::min(next, last);
      V v[kLanes];
      if (sources.count == 1) {
        HWY_ALIGN C terms[kLanes];
        hn::Store(LoadTerms<Bias, kMasks>(sources.bias[0] + j, sources.mask[0] + j), d, terms);
        HWY_UNROLL(16)
        for (int64_t i = 0; i < kLanes; ++i) v[i] = hn::Set(d, terms[i]);
      } else {
        HWY_UNROLL(16)
        for (int64_t i = 0; i < kLanes; ++i) {
          v[i] = LoadTerms<Bias, kMasks>(sources.bias[i] + j, sources.mask[i] + j);
        }
        Transpose(d, v);
      }
      StoreSquare(sources, v, to + j * kRows + sources.first_vector * kLanes);
    }
  }

  // v[i]: the terms of key i, a source per lane.
  static HWY_INLINE void StoreSquare(const Sources& sources, const V* v, C* to) {
    const D d;
    // Lanes are their own sources, or all have the same one.
    const bool straight = sources.count == 1 || (sources.count == kLanes && sources.vectors == 1);
    for (int64_t u = 0; u < sources.vectors; ++u, to += kLanes) {
      if (straight) {
        HWY_UNROLL(16)
        for (int64_t i = 0; i < kLanes; ++i) hn::Store(v[i], d, to + i * kRows);
      } else {
        const auto lanes = hn::SetTableIndices(d, sources.of_lane[u]);
        HWY_UNROLL(16)
        for (int64_t i = 0; i < kLanes; ++i) {
          hn::Store(hn::TableLookupLanes(v[i], lanes), d, to + i * kRows);
        }
      }
    }
  }

  // The terms of one source for a vector of keys.
  template <typename Bias, bool kMasks>
  HWY_INLINE V LoadTerms(int64_t bias_at, int64_t mask_at) const {
    const D d;
    V terms = hn::Zero(d);
    if constexpr (!std::is_void_v<Bias>) {
      terms = LoadPromoted(d, static_cast<const Bias*>(bias_.data) + bias_at);
    }
    if constexpr (kMasks) {
      const hn::RebindToUnsigned<D> du;
      const hn::Rebind<uint8_t, D> bytes;
      const auto visible =
          hn::PromoteTo(du, hn::LoadU(bytes, static_cast<const uint8_t*>(mask_.data) + mask_at));
      const auto hidden = hn::RebindMask(d, hn::Eq(visible, hn::Zero(du)));
      terms = hn::IfThenElse(hidden, hn::Set(d, -kInfinity<C>), terms);
    }
    return terms;
  }

  // Fewer keys than a vector has lanes.
  void FillElements(const Sources& sources, C* to) const {
    for (int64_t j = 0; j < keys_.size(); ++j) {
      for (int64_t u = 0; u < sources.vectors; ++u) {
        C* vector = to + j * kRows + (sources.first_vector + u) * kLanes;
        for (int64_t i = 0; i < kLanes; ++i) {
          const LaneIndex source = sources.of_lane[u][i];
          vector[i] = Term(bias_, sources.bias[source] + j, mask_, sources.mask[source] + j);
        }
      }
    }
  }

  static C Term(const ScoreOperand& bias, int64_t bias_at, const ScoreOperand& mask,
                int64_t mask_at) {
    if (mask.data != nullptr && static_cast<const uint8_t*>(mask.data)[mask_at] == 0) {
      return -kInfinity<C>;
    }
    return bias.data == nullptr ? C{0} : LoadOperand<T>(bias, bias_at);
  }

  // Adds operands that have one value per row.
  void AddRowTerms(int64_t num_vectors, C* to) const {
    const D d;
    const V minus_inf = hn::Set(d, -kInfinity<C>);
    for (int64_t v = 0; v < num_vectors; ++v, to += kLanes) {
      HWY_ALIGN C terms[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        const int64_t r = std::min(range_.begin + v * kLanes + i, range_.end - 1);
        terms[i] = Term(row_bias_, rows_.ScoreOffset(row_bias_, r), row_mask_,
                        rows_.ScoreOffset(row_mask_, r));
      }
      const V row = hn::Load(d, terms);
      for (int64_t j = 0; j < keys_.size(); ++j) {
        const V old = hn::Load(d, to + j * kRows);
        // Hidden stays hidden, even where the bias is +inf.
        const auto hidden = hn::Or(hn::Eq(old, minus_inf), hn::Eq(row, minus_inf));
        hn::Store(hn::IfThenElse(hidden, minus_inf, hn::Add(old, row)), d, to + j * kRows);
      }
    }
  }

  const TileRows<Panel>& rows_;
  const PanelRange range_;
  const KeyRange keys_;
  const int64_t group_;
  // By whether they have a value per key or one per row; the others are absent.
  const ScoreOperand bias_, mask_;
  const ScoreOperand row_bias_, row_mask_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_PANEL_GATHER_INL_H_
