// Some rows of the backward, packed, and P^T and dS^T of these rows and one block of keys.

#if defined(FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/backward_rows-inl.h"
#include "kernels/backward_weights-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/panel_terms-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Scores of the backward are natural ones times this.
template <class Unit>
double ScoreUnit(const ForwardArgs& args) {
  return NeedsExactDomain(args, Unit::kFoldsScale) ? 1.0 : kLog2E;
}

// Working memory of strips of at most blocks.block_q rows, beside the unit's.
template <class Unit>
struct StripScratch {
  using C = typename Unit::C;
  using Panel = typename Unit::Panel;

  StripScratch(const ForwardArgs& args, const BackwardBlocks& blocks, const Wanted& wanted,
               Carver* carver)
      : unit(args, blocks, wanted, carver) {
    const int64_t panels = blocks.block_q / Panel::kRows;
    shift = carver->Take<C>(blocks.block_q);
    factor = carver->Take<C>(blocks.block_q);
    delta = carver->Take<C>(blocks.block_q);
    seen = carver->Take<KeyRange>(panels);
    has_dead = carver->Take<uint8_t>(panels);
    has_factor = carver->Take<uint8_t>(panels);
    terms.TakeFrom(carver, blocks.block_k);
    if (wanted.ds && args.softcap != 0) slope = carver->Take<C>(blocks.block_k * Panel::kRows);
  }

  Unit unit;
  C* shift;             // [block_q], in the domain's unit; +inf where no key is seen
  C* factor;            // [block_q]
  C* delta;             // [block_q]
  KeyRange* seen;       // [panels]: keys of the block that any row of the panel sees
  uint8_t* has_dead;    // [panels]: whether a row sees no key
  uint8_t* has_factor;  // [panels]: whether a row's factor is not 1
  C* slope = nullptr;   // [block_k][kRows]
  TermScratch<Panel> terms;
};

// Keys [keys.begin, keys.end) of the block that begins at `begin`.
struct KeyBlock {
  int64_t begin;
  KeyRange keys;
};

template <class Unit_>
class BackwardStrip {
 public:
  using Unit = Unit_;
  using T = typename Unit::T;
  using C = typename Unit::C;
  using Panel = typename Unit::Panel;
  static constexpr int64_t kRows = Panel::kRows;

  BackwardStrip(const BackwardArgs& args, const Tile& tile, const Sequence& sequence,
                StripScratch<Unit>* scratch)
      : args_(args),
        tile_(tile),
        rows_(args.forward, tile_, sequence),
        blocks_(Unit::Blocks(args.forward)),
        scratch_(*scratch),
        unit_(scratch->unit),
        exact_(ScoreUnit<Unit>(args.forward) == 1.0),
        k_(KvRows<T>::Of(args.forward, args.forward.k, args.forward.k_strides, tile.batch,
                         tile.kv_head, sequence)),
        v_(KvRows<T>::Of(args.forward, args.forward.v, args.forward.v_strides, tile.batch,
                         tile.kv_head, sequence)) {}
  BackwardStrip(const BackwardStrip&) = delete;
  BackwardStrip& operator=(const BackwardStrip&) = delete;

  const TileRows<Panel>& rows() const { return rows_; }
  int64_t num_rows() const { return tile_.row_end - tile_.row_begin; }
  int64_t num_panels() const { return rows_.num_panels(); }
  KeyRange Seen(int64_t panel) const { return scratch_.seen[panel]; }
  const KvRows<T>& keys() const { return k_; }
  const KvRows<T>& values() const { return v_; }
  typename TileRows<Panel>::RowSource DoutRows() const { return {args_.dout, args_.dout_strides}; }

  // function(vectors) with the vectors that the panel's rows take.
  template <class Function>
  void WithPanelVectors(int64_t panel, const Function& function) const {
    WithVectors<Panel::kVectors>(hwy::DivCeil(rows_.Range(panel).size(), Panel::kLanes), function);
  }

  // Makes the rows ready for Weigh.
  void Pack(bool wants_ds) {
    unit_.PackQueries(rows_, FactorsOf().fold);
    if (wants_ds) unit_.PackDout(rows_, DoutRows());
    for (int64_t panel = 0; panel < num_panels(); ++panel) PackTerms(panel);
  }

  // Of every row that sees a key, over all its keys: with m within the forward's threshold of the
  // largest score, exp(s - m) summed. Both as the scores of Weigh are, rounding for rounding.
  struct WeightSums {
    const C* m;    // [rows], in the domain's unit
    const C* sum;  // [rows]
  };
  WeightSums SumWeights() {
    unit_.PackQueries(rows_, FactorsOf().fold);
    std::fill(scratch_.shift, scratch_.shift + num_panels() * kRows, -kInfinity<C>);
    std::fill(scratch_.factor, scratch_.factor + num_panels() * kRows, C{0});
    const KeyRange keys = rows_.VisibleToAny();
    for (int64_t begin = keys.begin / blocks_.block_k * blocks_.block_k; begin < keys.end;
         begin += blocks_.block_k) {
      const KeyBlock block{begin, BlockKeys(begin, keys)};
      unit_.LoadKeys(k_, block.keys, begin);
      ForPanels(block, [&](auto domain, auto vectors, const PanelStep& work) {
        SumPanel<domain(), vectors()>(work);
      });
    }
    return {scratch_.shift, scratch_.factor};
  }

  // The keys of [begin, begin + block_k) within `keys`.
  KeyBlock LoadBlock(int64_t begin, const KeyRange& keys) {
    const KeyBlock block{begin, BlockKeys(begin, keys)};
    unit_.LoadBlock(k_, v_, block.keys, begin);
    return block;
  }

  // P and dS of all rows and the keys of `block` that each panel sees.
  void Weigh(const KeyBlock& block) {
    ForPanels(block, [&](auto domain, auto vectors, const PanelStep& work) {
      WeighPanel<domain(), vectors()>(work);
      unit_.Finish(work.panel, work.range.size(), work.span);
    });
  }

  // The keys of a panel out to whole steps of the unit; what lies beyond has P = dS = 0.
  KeyRange SpanOf(const KeyRange& keys, int64_t block_begin) const {
    constexpr int64_t kStep = Unit::kKeyGranule;
    return {block_begin + (keys.begin - block_begin) / kStep * kStep,
            block_begin + hwy::DivCeil(keys.end - block_begin, kStep) * kStep};
  }

 private:
  // Factors of the scores: into q, in ApplyScoreTerms, in the fast domain.
  struct Factors {
    double fold;
    C terms;
    C unit;
  };
  Factors FactorsOf() const {
    const double scale = args_.forward.softmax_scale;
    if constexpr (Unit::kFoldsScale) {
      return exact_ ? Factors{1.0, static_cast<C>(scale), C{1}}
                    : Factors{scale * kLog2E, C{1}, C{1}};
    }
    // The sign goes into q, so that the largest product has the largest score.
    return {std::signbit(scale) ? -1.0 : 1.0, static_cast<C>(std::fabs(scale)),
            static_cast<C>(std::fabs(scale) * kLog2E)};
  }

  KeyRange BlockKeys(int64_t begin, const KeyRange& keys) const {
    return {std::max(keys.begin, begin), std::min(keys.end, begin + blocks_.block_k)};
  }

  // function(domain, vectors, work) for the panels that see keys of the block.
  template <class Function>
  void ForPanels(const KeyBlock& block, const Function& function) const {
    for (int64_t panel = 0; panel < num_panels(); ++panel) {
      const PanelRange range = rows_.Range(panel);
      const KeyRange any = rows_.VisibleToAny(range);
      const KeyRange keys{std::max(any.begin, block.keys.begin), std::min(any.end, block.keys.end)};
      scratch_.seen[panel] = keys.empty() ? KeyRange{block.begin, block.begin} : keys;
      if (keys.empty()) continue;
      const PanelStep work{panel, range, keys, SpanOf(keys, block.begin), block.begin, false};
      WithPanelVectors(panel, [&](auto vectors) {
        if (exact_) {
          function(std::integral_constant<Domain, Domain::kExact>(), vectors, work);
        } else {
          function(std::integral_constant<Domain, Domain::kFast>(), vectors, work);
        }
      });
    }
  }

  // A row without weight is dead: nothing of it may count.
  void PackTerms(int64_t panel) {
    const PanelRange range = rows_.Range(panel);
    scratch_.has_dead[panel] = scratch_.has_factor[panel] = 0;
    for (int64_t lane = 0; lane < kRows; ++lane) {
      const int64_t r = std::min(range.begin + lane, range.end - 1);
      const RowTerms<C>& terms = *rows_.template RowPointer<const RowTerms<C>>(
          args_.row_terms.data, args_.row_terms.strides, r);
      const bool dead = terms.shift == -kInfinity<C>;
      if (dead) scratch_.has_dead[panel] = 1;
      if (terms.factor != C{1}) scratch_.has_factor[panel] = 1;
      const int64_t at = panel * kRows + lane;
      scratch_.shift[at] = dead ? kInfinity<C> : terms.shift;
      scratch_.factor[at] = terms.factor;
      scratch_.delta[at] = terms.delta;
    }
  }

  // Scores of the span of `work`, -inf where a row does not see the key; and d score / d (scale *
  // q.k) where scores are capped and `slope` is not null.
  template <Domain kDomain, size_t kVecs>
  void ScorePanel(const PanelStep& work, C* slope, C* scores) {
    unit_.template Scores<kVecs>(work.panel, work.span, scores);
    if constexpr (kDomain == Domain::kExact) {
      const PanelTerms<T, Panel> panel_terms(args_.forward, rows_, scratch_.terms);
      ScoreTerms<C> terms = panel_terms.Fill(work, FactorsOf().terms);
      const int64_t first = (work.keys.begin - work.span.begin) * kRows;
      terms.softcap_slope = slope == nullptr ? nullptr : slope + first;
      ApplyScoreTerms<Panel, kVecs>(terms, work.keys.size(), scores + first);
    }
    MaskPanel<kVecs>(rows_, work, scratch_.terms, scores);
    if (work.keys.size() != work.span.size()) HideBeyond(work, scores);
  }

  // What lies in the span beyond the keys may be visible by the mask, but is not of this block.
  static void HideBeyond(const PanelStep& work, C* scores) {
    const int64_t first = (work.keys.begin - work.span.begin) * kRows;
    const int64_t last = first + work.keys.size() * kRows;
    std::fill(scores, scores + first, -kInfinity<C>);
    std::fill(scores + last, scores + work.span.size() * kRows, -kInfinity<C>);
  }

  C* At(C* panel, const PanelStep& work) const {
    return panel == nullptr ? nullptr : panel + (work.span.begin - work.chunk) * kRows;
  }

  template <Domain kDomain, size_t kVecs>
  void SumPanel(const PanelStep& work) {
    const int64_t row = work.panel * kRows, keys = work.span.size();
    const PanelState<C> state{scratch_.shift + row, scratch_.factor + row, nullptr,
                              scratch_.delta + row};
    C* const s = At(unit_.Weights(work.panel), work);
    ScorePanel<kDomain, kVecs>(work, nullptr, s);
    const C unit = FactorsOf().unit;
    if (kDomain == Domain::kFast && unit != C{1}) {
      for (int64_t i = 0; i < keys * kRows; ++i) s[i] *= unit;
    }
    UpdateMaximum<Panel, kDomain, kVecs>(state, C{1}, keys, s);
    WeighInPlace<Panel, kDomain, kVecs>(state, keys, s);
  }

  template <Domain kDomain, size_t kVecs>
  void WeighPanel(const PanelStep& work) {
    const int64_t row = work.panel * kRows;
    GradientPanel<C> panel;
    panel.shift = scratch_.shift + row;
    panel.factor = scratch_.has_factor[work.panel] != 0 ? scratch_.factor + row : nullptr;
    panel.delta = scratch_.delta + row;
    panel.slope = kDomain == Domain::kExact ? scratch_.slope : nullptr;
    panel.unit = kDomain == Domain::kExact ? static_cast<C>(kLog2E) : FactorsOf().unit;
    panel.p = At(unit_.Weights(work.panel), work);
    panel.ds = At(unit_.ScoreGradients(work.panel), work);
    ScorePanel<kDomain, kVecs>(work, scratch_.slope, panel.p);
    if (scratch_.has_dead[work.panel] != 0) HideDead<kVecs>(work, panel.p);
    if (panel.ds != nullptr) {
      unit_.template WeightGradients<kVecs>(work.panel, work.span, panel.ds);
    }
    WeighGradients<Panel, kDomain, Unit::kFoldsScale, kVecs>(panel, work.span.size());
  }

  // Dead rows see no key, whatever the scores are.
  template <size_t kVecs>
  void HideDead(const PanelStep& work, C* scores) const {
    const C* shift = scratch_.shift + work.panel * kRows;
    const int64_t keys = work.span.size();
    for (int64_t lane = 0; lane < kRows; ++lane) {
      scratch_.terms.lane_a[lane] = 0;
      scratch_.terms.lane_b[lane] = shift[lane] == kInfinity<C> ? C{0} : static_cast<C>(keys);
    }
    ApplyRowLimits<Panel, kVecs>({scratch_.terms.lane_a, scratch_.terms.lane_b}, 0, keys, scores);
  }

  const BackwardArgs& args_;
  const Tile tile_;
  const TileRows<Panel> rows_;
  const BackwardBlocks blocks_;
  const StripScratch<Unit>& scratch_;
  Unit& unit_;
  const bool exact_;
  const KvRows<T> k_;
  const KvRows<T> v_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
