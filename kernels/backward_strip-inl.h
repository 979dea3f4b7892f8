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

// Working memory of strips of at most blocks.block_q rows. `needs_ds`: dS, too.
template <typename T>
struct StripScratch {
  using C = Compute<T>;
  using Panel = FmaPanel<C>;

  StripScratch(const ForwardArgs& args, const BackwardBlocks& blocks, bool needs_ds,
               Carver* carver) {
    const int64_t panels = blocks.block_q / Panel::kRows;
    q = carver->Take<C>(blocks.block_q * args.head_dim);
    lse = carver->Take<C>(blocks.block_q);
    delta = carver->Take<C>(blocks.block_q);
    seen = carver->Take<KeyRange>(panels);
    has_dead = carver->Take<uint8_t>(panels);
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

  C* q;                // panels of [head_dim][kRows]
  C* dout = nullptr;   // panels of [head_dim_v][kRows]
  C* lse;              // [block_q], in the domain's unit; +inf where no key is seen
  C* delta;            // [block_q]
  KeyRange* seen;      // [panels]: keys of the block that any row of the panel sees
  uint8_t* has_dead;   // [panels]: whether a row's lse is -inf
  C* p;                // panels of [block_k][kRows]
  C* ds = nullptr;     // as p
  C* slope = nullptr;  // [block_k][kRows]
  C* k = nullptr;      // [block_k][head_dim]: promoted
  C* v = nullptr;      // [block_k][head_dim_v]: promoted
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
        exact_(NeedsExactDomain(args.forward, /*folds_scale=*/true)),
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
    const double fold = exact_ ? 1.0 : forward.softmax_scale * kLog2E;
    rows_.template PackQueries<T>(FoldingPack<T>(static_cast<C>(fold), forward.head_dim),
                                  forward.head_dim, forward.head_dim * kRows, scratch_.q);
    if (scratch_.ds != nullptr) {
      rows_.template PackRows<T>(DoutRows(), FoldingPack<T>(C{1}, forward.head_dim_v),
                                 forward.head_dim_v, forward.head_dim_v * kRows, scratch_.dout);
    }
    for (int64_t panel = 0; panel < num_panels(); ++panel) PackSums(panel);
  }

  const KvRows<T>& keys() const { return k_; }
  const KvRows<T>& values() const { return v_; }

  typename TileRows<Panel>::RowSource DoutRows() const { return {args_.dout, args_.dout_strides}; }

  // The keys of [begin, begin + block_k) within `keys`.
  KeyBlock<C> LoadBlock(int64_t begin, const KeyRange& keys) const {
    const KeyRange step{std::max(keys.begin, begin), std::min(keys.end, begin + blocks_.block_k)};
    return {begin, step,
            PromoteRows<T>(k_, step.begin, step.end, args_.forward.head_dim, scratch_.k),
            PromoteRows<T>(v_, step.begin, step.end, args_.forward.head_dim_v, scratch_.v)};
  }

  // P and dS of all rows and the keys of `block` that each panel sees.
  void Weigh(const KeyBlock<C>& block) const {
    for (int64_t panel = 0; panel < num_panels(); ++panel) {
      const PanelRange range = rows_.Range(panel);
      const KeyRange any = rows_.VisibleToAny(range);
      const KeyRange keys{std::max(any.begin, block.keys.begin), std::min(any.end, block.keys.end)};
      scratch_.seen[panel] = keys.empty() ? KeyRange{block.begin, block.begin} : keys;
      if (keys.empty()) continue;
      const PanelStep work{panel, range, keys, keys, block.begin, false};
      WithVectors<Panel::kVectors>(PanelVectors(panel), [&](auto vectors) {
        if (exact_) {
          WeighPanel<Domain::kExact, vectors()>(block, work);
        } else {
          WeighPanel<Domain::kFast, vectors()>(block, work);
        }
      });
    }
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
  int64_t WeightIndex(const KeyBlock<C>& block, int64_t panel, int64_t key) const {
    return panel * panel_size() + (key - block.begin) * kRows;
  }

  // lse in the domain's unit and delta. A row without weight is dead: nothing of it may count.
  void PackSums(int64_t panel) const {
    const PanelRange range = rows_.Range(panel);
    const ForwardArgs& forward = args_.forward;
    C* lse = scratch_.lse + panel * kRows;
    C* delta = scratch_.delta + panel * kRows;
    scratch_.has_dead[panel] = 0;
    for (int64_t lane = 0; lane < kRows; ++lane) {
      const int64_t r = std::min(range.begin + lane, range.end - 1);
      const C natural = *rows_.template RowPointer<const C>(forward.lse, forward.lse_strides, r);
      const bool dead = natural == -kInfinity<C>;
      if (dead) scratch_.has_dead[panel] = 1;
      lse[lane] = dead     ? kInfinity<C>
                  : exact_ ? natural
                           : static_cast<C>(static_cast<double>(natural) * kLog2E);
      delta[lane] = *rows_.template RowPointer<const C>(args_.delta.data, args_.delta.strides, r);
    }
  }

  template <Domain kDomain, size_t kVecs>
  void WeighPanel(const KeyBlock<C>& block, const PanelStep& work) const {
    const int64_t at = WeightIndex(block, work.panel, work.keys.begin);
    const int64_t row = work.keys.begin - block.keys.begin;
    const int64_t keys = work.keys.size();
    const ForwardArgs& forward = args_.forward;
    GradientPanel<C> panel{scratch_.lse + work.panel * kRows, scratch_.delta + work.panel * kRows,
                           nullptr, scratch_.p + at, nullptr};
    MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
        Product<C>{block.k.data + row * block.k.stride, block.k.stride,
                   scratch_.q + work.panel * forward.head_dim * kRows, forward.head_dim, panel.p,
                   nullptr},
        keys, Accumulate::kNothing);
    if constexpr (kDomain == Domain::kExact) {
      const PanelTerms<T, Panel> panel_terms(forward, rows_, scratch_.terms);
      ScoreTerms<C> terms = panel_terms.Fill(work, static_cast<C>(forward.softmax_scale));
      panel.slope = terms.softcap_slope = scratch_.slope;
      ApplyScoreTerms<Panel, kVecs>(terms, keys, panel.p);
    }
    MaskPanel<kVecs>(rows_, work, scratch_.terms, panel.p);
    if (scratch_.has_dead[work.panel] != 0) HideDead<kVecs>(work, panel.p);
    if (scratch_.ds != nullptr) {
      panel.ds = scratch_.ds + at;
      MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
          Product<C>{block.v.data + row * block.v.stride, block.v.stride,
                     scratch_.dout + work.panel * forward.head_dim_v * kRows, forward.head_dim_v,
                     panel.ds, nullptr},
          keys, Accumulate::kNothing);
    }
    WeighGradients<Panel, kDomain, kVecs>(panel, keys);
  }

  // Rows whose lse is -inf see no key, whatever the scores are.
  template <size_t kVecs>
  void HideDead(const PanelStep& work, C* scores) const {
    const C* lse = scratch_.lse + work.panel * kRows;
    for (int64_t lane = 0; lane < kRows; ++lane) {
      scratch_.terms.lane_a[lane] = 0;
      scratch_.terms.lane_b[lane] =
          lse[lane] == kInfinity<C> ? C{0} : static_cast<C>(work.keys.size());
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
