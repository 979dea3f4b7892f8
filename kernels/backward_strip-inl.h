// Some rows of the backward, packed, and P^T and dS^T of these rows and one block of keys.

#if defined(FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/backward_rows-inl.h"
#include "kernels/backward_weights-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/panel_terms-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/unit_fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
BackwardBlocks BlocksOf(const ForwardArgs& args) {
  using C = Compute<T>;
  return ChooseBackwardBlocks(args.head_dim, args.head_dim_v, FmaPanel<C>::kRows,
                              static_cast<int64_t>(sizeof(C)));
}

// Scores of the backward are natural ones times this.
inline double ScoreUnit(const ForwardArgs& args) {
  return NeedsExactDomain(args, /*folds_scale=*/true) ? 1.0 : kLog2E;
}

// Working memory of strips of at most blocks.block_q rows. `needs_ds`: dS, too.
template <typename T>
struct StripScratch {
  using C = Compute<T>;
  using Panel = FmaPanel<C>;

  StripScratch(const ForwardArgs& args, const BackwardBlocks& blocks, bool needs_ds,
               Carver* carver) {
    const int64_t panels = blocks.block_q / Panel::kRows;
    q = carver->Take<C>(blocks.block_q * args.head_dim);
    shift = carver->Take<C>(blocks.block_q);
    factor = carver->Take<C>(blocks.block_q);
    delta = carver->Take<C>(blocks.block_q);
    seen = carver->Take<KeyRange>(panels);
    has_dead = carver->Take<uint8_t>(panels);
    has_factor = carver->Take<uint8_t>(panels);
    p = carver->Take<C>(blocks.block_q * blocks.block_k);
    if (kPromotes<T>) {
      k = carver->Take<C>(blocks.block_k * args.head_dim);
      v = carver->Take<C>(blocks.block_k * args.head_dim_v);
    }
    terms.TakeFrom(carver, blocks.block_k);
    if (!needs_ds) return;
    dout = carver->Take<C>(blocks.block_q * args.head_dim_v);
    ds = carver->Take<C>(blocks.block_q * blocks.block_k);
    if (args.softcap != 0) slope = carver->Take<C>(blocks.block_k * Panel::kRows);
  }

  C* q;                 // panels of [head_dim][kRows]
  C* dout = nullptr;    // panels of [head_dim_v][kRows]
  C* shift;             // [block_q], in the domain's unit; +inf where no key is seen
  C* factor;            // [block_q]
  C* delta;             // [block_q]
  KeyRange* seen;       // [panels]: keys of the block that any row of the panel sees
  uint8_t* has_dead;    // [panels]: whether a row sees no key
  uint8_t* has_factor;  // [panels]: whether a row's factor is not 1
  C* p;                 // panels of [block_k][kRows]
  C* ds = nullptr;      // as p
  C* slope = nullptr;   // [block_k][kRows]
  C* k = nullptr;       // [block_k][head_dim]: promoted
  C* v = nullptr;       // [block_k][head_dim_v]: promoted
  TermScratch<Panel> terms;
};

// Keys [keys.begin, keys.end) of the block that begins at `begin`.
template <typename C>
struct KeyBlock {
  int64_t begin;
  KeyRange keys;
  MatrixRows<C> k, v;  // of key keys.begin
};

template <typename T_>
class BackwardStrip {
 public:
  using T = T_;
  using C = Compute<T>;
  using Panel = FmaPanel<C>;
  static constexpr int64_t kRows = Panel::kRows;

  BackwardStrip(const BackwardArgs& args, const Tile& tile, const Sequence& sequence,
                const StripScratch<T>& scratch)
      : args_(args),
        tile_(tile),
        rows_(args.forward, tile_, sequence),
        blocks_(BlocksOf<T>(args.forward)),
        scratch_(scratch),
        exact_(ScoreUnit(args.forward) == 1.0),
        k_(KvRows<T>::Of(args.forward, args.forward.k, args.forward.k_strides, tile.batch,
                         tile.kv_head, sequence)),
        v_(KvRows<T>::Of(args.forward, args.forward.v, args.forward.v_strides, tile.batch,
                         tile.kv_head, sequence)) {}
  BackwardStrip(const BackwardStrip&) = delete;
  BackwardStrip& operator=(const BackwardStrip&) = delete;

  const TileRows<Panel>& rows() const { return rows_; }
  int64_t num_rows() const { return tile_.row_end - tile_.row_begin; }
  int64_t num_panels() const { return rows_.num_panels(); }
  int64_t PanelVectors(int64_t panel) const {
    return hwy::DivCeil(rows_.Range(panel).size(), Panel::kLanes);
  }
  KeyRange Seen(int64_t panel) const { return scratch_.seen[panel]; }

  // Makes the rows ready for Weigh.
  void Pack() const {
    const ForwardArgs& forward = args_.forward;
    PackQueries();
    if (scratch_.ds != nullptr) {
      rows_.template PackRows<T>(DoutRows(), FoldingPack<T>(C{1}, forward.head_dim_v),
                                 forward.head_dim_v, forward.head_dim_v * kRows, scratch_.dout);
    }
    for (int64_t panel = 0; panel < num_panels(); ++panel) PackTerms(panel);
  }

  // Of every row that sees a key, over all its keys: with m within the forward's threshold of the
  // largest score, exp(s - m) summed. Both as the scores of Weigh are, rounding for rounding.
  struct WeightSums {
    const C* m;    // [rows], in the domain's unit
    const C* sum;  // [rows]
  };
  WeightSums SumWeights() const {
    PackQueries();
    std::fill(scratch_.shift, scratch_.shift + num_panels() * kRows, -kInfinity<C>);
    std::fill(scratch_.factor, scratch_.factor + num_panels() * kRows, C{0});
    const KeyRange keys = rows_.VisibleToAny();
    for (int64_t begin = keys.begin / blocks_.block_k * blocks_.block_k; begin < keys.end;
         begin += blocks_.block_k) {
      const KeyRange step = BlockKeys(begin, keys);
      const KeyBlock<C> block{begin, step, LoadKeys(step), {}};
      ForPanels(block, [&](auto domain, auto vectors, const PanelStep& work) {
        const int64_t row = work.panel * kRows;
        const PanelState<C> state{scratch_.shift + row, scratch_.factor + row, nullptr,
                                  scratch_.delta + row};
        C* const s = scratch_.p + WeightIndex(block, work.panel, work.keys.begin);
        ScorePanel<domain(), vectors()>(block, work, nullptr, s);
        UpdateMaximum<Panel, domain(), vectors()>(state, C{1}, work.keys.size(), s);
        WeighInPlace<Panel, domain(), vectors()>(state, work.keys.size(), s);
      });
    }
    return {scratch_.shift, scratch_.factor};
  }

  const KvRows<T>& keys() const { return k_; }
  const KvRows<T>& values() const { return v_; }

  typename TileRows<Panel>::RowSource DoutRows() const { return {args_.dout, args_.dout_strides}; }

  // The keys of [begin, begin + block_k) within `keys`.
  KeyBlock<C> LoadBlock(int64_t begin, const KeyRange& keys) const {
    const KeyRange step = BlockKeys(begin, keys);
    return {begin, step, LoadKeys(step),
            PromoteRows<T>(v_, step.begin, step.end, args_.forward.head_dim_v, scratch_.v)};
  }

  // P and dS of all rows and the keys of `block` that each panel sees.
  void Weigh(const KeyBlock<C>& block) const {
    ForPanels(block, [&](auto domain, auto vectors, const PanelStep& work) {
      WeighPanel<domain(), vectors()>(block, work);
    });
  }

  // P and dS of the panel from `key` of the block on.
  const C* Weights(const KeyBlock<C>& block, int64_t panel, int64_t key) const {
    return scratch_.p + WeightIndex(block, panel, key);
  }
  const C* Gradients(const KeyBlock<C>& block, int64_t panel, int64_t key) const {
    return scratch_.ds + WeightIndex(block, panel, key);
  }
  int64_t panel_size() const { return blocks_.block_k * kRows; }

 private:
  KeyRange BlockKeys(int64_t begin, const KeyRange& keys) const {
    return {std::max(keys.begin, begin), std::min(keys.end, begin + blocks_.block_k)};
  }
  MatrixRows<C> LoadKeys(const KeyRange& keys) const {
    return PromoteRows<T>(k_, keys.begin, keys.end, args_.forward.head_dim, scratch_.k);
  }

  void PackQueries() const {
    const ForwardArgs& forward = args_.forward;
    const double fold = exact_ ? 1.0 : forward.softmax_scale * kLog2E;
    rows_.template PackQueries<T>(FoldingPack<T>(static_cast<C>(fold), forward.head_dim),
                                  forward.head_dim, forward.head_dim * kRows, scratch_.q);
  }

  // function(domain, vectors, work) for the panels that see keys of the block.
  template <class Function>
  void ForPanels(const KeyBlock<C>& block, const Function& function) const {
    for (int64_t panel = 0; panel < num_panels(); ++panel) {
      const PanelRange range = rows_.Range(panel);
      const KeyRange any = rows_.VisibleToAny(range);
      const KeyRange keys{std::max(any.begin, block.keys.begin), std::min(any.end, block.keys.end)};
      scratch_.seen[panel] = keys.empty() ? KeyRange{block.begin, block.begin} : keys;
      if (keys.empty()) continue;
      const PanelStep work{panel, range, keys, keys, block.begin, false};
      WithVectors<Panel::kVectors>(PanelVectors(panel), [&](auto vectors) {
        if (exact_) {
          function(std::integral_constant<Domain, Domain::kExact>(), vectors, work);
        } else {
          function(std::integral_constant<Domain, Domain::kFast>(), vectors, work);
        }
      });
    }
  }

  int64_t WeightIndex(const KeyBlock<C>& block, int64_t panel, int64_t key) const {
    return panel * panel_size() + (key - block.begin) * kRows;
  }

  // A row without weight is dead: nothing of it may count.
  void PackTerms(int64_t panel) const {
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

  // Scores of the keys of `work`; and d score / d (scale * q.k) where scores are capped and `slope`
  // is not null.
  template <Domain kDomain, size_t kVecs>
  void ScorePanel(const KeyBlock<C>& block, const PanelStep& work, C* slope, C* scores) const {
    const int64_t row = work.keys.begin - block.keys.begin;
    const ForwardArgs& forward = args_.forward;
    MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
        Product<C>{block.k.data + row * block.k.stride, block.k.stride,
                   scratch_.q + work.panel * forward.head_dim * kRows, forward.head_dim, scores,
                   nullptr},
        work.keys.size(), Accumulate::kNothing);
    if constexpr (kDomain == Domain::kExact) {
      const PanelTerms<T, Panel> panel_terms(forward, rows_, scratch_.terms);
      ScoreTerms<C> terms = panel_terms.Fill(work, static_cast<C>(forward.softmax_scale));
      terms.softcap_slope = slope;
      ApplyScoreTerms<Panel, kVecs>(terms, work.keys.size(), scores);
    }
    MaskPanel<kVecs>(rows_, work, scratch_.terms, scores);
  }

  template <Domain kDomain, size_t kVecs>
  void WeighPanel(const KeyBlock<C>& block, const PanelStep& work) const {
    const int64_t at = WeightIndex(block, work.panel, work.keys.begin);
    const int64_t row = work.keys.begin - block.keys.begin;
    const int64_t keys = work.keys.size();
    const ForwardArgs& forward = args_.forward;
    GradientPanel<C> panel;
    panel.shift = scratch_.shift + work.panel * kRows;
    panel.factor =
        scratch_.has_factor[work.panel] != 0 ? scratch_.factor + work.panel * kRows : nullptr;
    panel.delta = scratch_.delta + work.panel * kRows;
    panel.slope = kDomain == Domain::kExact ? scratch_.slope : nullptr;
    panel.p = scratch_.p + at;
    panel.ds = scratch_.ds == nullptr ? nullptr : scratch_.ds + at;
    ScorePanel<kDomain, kVecs>(block, work, scratch_.slope, panel.p);
    if (scratch_.has_dead[work.panel] != 0) HideDead<kVecs>(work, panel.p);
    if (panel.ds != nullptr) {
      MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
          Product<C>{block.v.data + row * block.v.stride, block.v.stride,
                     scratch_.dout + work.panel * forward.head_dim_v * kRows, forward.head_dim_v,
                     panel.ds, nullptr},
          keys, Accumulate::kNothing);
    }
    WeighGradients<Panel, kDomain, kVecs>(panel, keys);
  }

  // Dead rows see no key, whatever the scores are.
  template <size_t kVecs>
  void HideDead(const PanelStep& work, C* scores) const {
    const C* shift = scratch_.shift + work.panel * kRows;
    for (int64_t lane = 0; lane < kRows; ++lane) {
      scratch_.terms.lane_a[lane] = 0;
      scratch_.terms.lane_b[lane] =
          shift[lane] == kInfinity<C> ? C{0} : static_cast<C>(work.keys.size());
    }
    ApplyRowLimits<Panel, kVecs>({scratch_.terms.lane_a, scratch_.terms.lane_b}, 0,
                                 work.keys.size(), scores);
  }

  const BackwardArgs& args_;
  const Tile tile_;
  const TileRows<Panel> rows_;
  const BackwardBlocks blocks_;
  const StripScratch<T>& scratch_;
  const bool exact_;
  const KvRows<T> k_;
  const KvRows<T> v_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_STRIP_INL_H_
