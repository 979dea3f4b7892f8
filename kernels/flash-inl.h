// Sweeps one tile of query rows over its key blocks with an online softmax.
//
// Cost, per key and row: D + Dv multiply-adds in the two products, about 15 operations in the
// softmax. Bytes, per tile: Q and O stay in L2 (block_q rows), K and V are read once per tile, S
// lives in L1.
//
// Bits of a row do not depend on the tile it lies in: key blocks start at multiples of block_k from
// key 0, masked keys add exact zeros, and every lane computes alike.

#if defined(FLASHLANE_KERNELS_FLASH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_FLASH_INL_H_
#undef FLASHLANE_KERNELS_FLASH_INL_H_
#else
#define FLASHLANE_KERNELS_FLASH_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/kernels.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/panel_store-inl.h"
#include "kernels/panel_terms-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/unit_fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Unit: what multiplies, in which formats (unit_fma-inl.h, unit_pairs-inl.h).
template <class Unit>
class FlashTile {
 public:
  using T = typename Unit::T;
  using C = typename Unit::C;
  using Panel = typename Unit::Panel;

  FlashTile(const ForwardArgs& args, const Tile& tile, Carver carver)
      : args_(args),
        sequence_(Sequence::Of(args, tile.batch)),
        rows_(args, tile, sequence_),
        blocks_(Unit::Blocks(args)),
        scratch_(&carver, blocks_, rows_.num_panels(), Unit::OutRows(args.head_dim_v),
                 Unit::kRoundsWeights, Unit::kWeighsInPlace),
        unit_(args, blocks_, rows_.num_panels(), &carver),
        tile_(tile),
        k_(KvRows<T>::Of(args, args.k, args.k_strides, tile.batch, tile.kv_head, sequence_)),
        v_(KvRows<T>::Of(args, args.v, args.v_strides, tile.batch, tile.kv_head, sequence_)) {}

  // Scratch of a tile of `tile_rows` rows.
  static size_t ScratchBytes(const ForwardArgs& args, int64_t tile_rows) {
    Carver carver(nullptr);
    Carve(args, Unit::Blocks(args), hwy::DivCeil(std::max<int64_t>(tile_rows, 1), Panel::kRows),
          &carver);
    return carver.bytes();
  }

  // What a tile takes from `carver`, in the order of the constructor.
  static void Carve(const ForwardArgs& args, const FlashBlocks& blocks, int64_t num_panels,
                    Carver* carver) {
    FlashScratch<Panel>(carver, blocks, num_panels, Unit::OutRows(args.head_dim_v),
                        Unit::kRoundsWeights, Unit::kWeighsInPlace);
    Unit(args, blocks, num_panels, carver);
  }

  void Run() {
    if (NeedsExactDomain(args_, Unit::kFoldsScale)) {
      Sweep<Domain::kExact>();
      StoreRows<Domain::kExact>(/*only_suspects=*/false);
      return;
    }
    Sweep<Domain::kFast>();
    const bool suspects = StoreRows<Domain::kFast>(/*only_suspects=*/false);
    if (suspects) {
      // A row left the range of the fast domain (scores times log2(e), weights up to the rescale
      // threshold), or is not finite in either. Only those rows are stored again, so that no row's
      // bits depend on its neighbours.
      Sweep<Domain::kExact>();
      StoreRows<Domain::kExact>(/*only_suspects=*/true);
    }
  }

 private:
  // Factors of the scores: into q, in ApplyScoreTerms, in the fast softmax.
  struct Factors {
    C fold;
    C terms;
    C unit;
  };
  template <Domain kDomain>
  Factors FactorsOf() const {
    const double scale = args_.softmax_scale;
    if constexpr (Unit::kFoldsScale) {
      if constexpr (kDomain == Domain::kExact) return {C{1}, static_cast<C>(scale), C{1}};
      return {static_cast<C>(scale * kLog2E), C{1}, C{1}};
    }
    // The sign goes into q, so that the largest product has the largest score.
    return {std::signbit(scale) ? C{-1} : C{1}, static_cast<C>(std::fabs(scale)),
            static_cast<C>(std::fabs(scale) * kLog2E)};
  }

  template <Domain kDomain>
  void Sweep() {
    unit_.PackQueries(rows_, FactorsOf<kDomain>().fold);
    scratch_.Reset();
    const KeyRange any = rows_.VisibleToAny();
    const KeyRange keys{std::max(any.begin, tile_.key_begin), std::min(any.end, tile_.key_end)};
    if (keys.empty()) return;
    for (int64_t begin = keys.begin / blocks_.block_k * blocks_.block_k; begin < keys.end;
         begin += blocks_.block_k) {
      SweepBlock<kDomain>(
          {std::max(keys.begin, begin), std::min(keys.end, begin + blocks_.block_k)}, begin);
    }
  }

  // `begin`: the first key of the block that `step` lies in.
  template <Domain kDomain>
  void SweepBlock(const KeyRange& step, int64_t begin) {
    const bool select = unit_.LoadBlock(k_, v_, step, begin);
    for (int64_t panel = 0; panel < rows_.num_panels(); ++panel) {
      const PanelRange range = rows_.Range(panel);
      const KeyRange any = rows_.VisibleToAny(range);
      const KeyRange keys{std::max(any.begin, step.begin), std::min(any.end, step.end)};
      if (keys.empty()) continue;
      const PanelStep work{panel, range, keys, keys, begin, select};
      const int64_t vectors = hwy::DivCeil(range.size(), Panel::kLanes);
      SweepVectors<kDomain, Panel::kVectors>(vectors, work, begin);
    }
  }

  // The instance of SweepPanel for this number of vectors, at most kVecs.
  template <Domain kDomain, size_t kVecs>
  void SweepVectors(int64_t vectors, const PanelStep& work, int64_t begin) {
    if constexpr (kVecs > 1) {
      if (vectors < static_cast<int64_t>(kVecs)) {
        return SweepVectors<kDomain, kVecs - 1>(vectors, work, begin);
      }
    }
    SweepPanel<kDomain, kVecs>(work, begin);
  }

  // One panel of rows against the keys of one block that any of them sees: chunk by chunk, the
  // scores become weights; the weights of several chunks are multiplied by V at once, as long as
  // all are relative to one maximum. `begin`: the first key of the block.
  template <Domain kDomain, size_t kVecs>
  void SweepPanel(const PanelStep& block, int64_t begin) {
    const Factors factors = FactorsOf<kDomain>();
    const int64_t row = block.panel * Panel::kRows;
    PanelState<C> state{scratch_.m + row, scratch_.l + row, ExactL(row), scratch_.scale[0]};
    Values values{block, begin, {}, Accumulate::kOld, nullptr};
    const int64_t chunk_k = blocks_.chunk_k;
    for (int64_t chunk = begin + (block.keys.begin - begin) / chunk_k * chunk_k;
         chunk < block.keys.end; chunk += chunk_k) {
      PanelStep work = block;
      work.chunk = chunk;
      work.keys = {std::max(block.keys.begin, chunk), std::min(block.keys.end, chunk + chunk_k)};
      work.span = SpanOf(work.keys, begin);
      C* scores = scratch_.scores;
      if constexpr (Unit::kWeighsInPlace) scores += (work.span.begin - begin) * Panel::kRows;
      ScorePanel<kDomain, kVecs>(work, factors, scores);
      if (HWY_UNLIKELY(block.select)) {
        std::copy(scores, scores + work.span.size() * Panel::kRows,
                  scratch_.hidden + (work.span.begin - begin) * Panel::kRows);
      }
      if (UpdateMaximum<Panel, kDomain, kVecs>(state, factors.unit, work.span.size(), scores)) {
        AddValues<kVecs>(values);
        values.span = {};
        values.accumulate = Accumulate::kScaled;
        values.scale = state.scale;
        state.scale = state.scale == scratch_.scale[0] ? scratch_.scale[1] : scratch_.scale[0];
      }
      unit_.template Weigh<kDomain, kVecs>(state, factors.unit, work.span, scores);
      values.span = {values.span.empty() ? work.span.begin : values.span.begin, work.span.end};
    }
    AddValues<kVecs>(values);
  }

  // `keys`, out to whole steps of the second product; `begin`: the first key of the block.
  static KeyRange SpanOf(const KeyRange& keys, int64_t begin) {
    constexpr int64_t kStep = Unit::kKeyGranule;
    return {begin + (keys.begin - begin) / kStep * kStep,
            begin + hwy::DivCeil(keys.end - begin, kStep) * kStep};
  }

  // Scores of the span of `work`, -inf where a row does not see the key.
  template <Domain kDomain, size_t kVecs>
  void ScorePanel(const PanelStep& work, const Factors& factors, C* scores) {
    unit_.template Scores<kVecs>(work.panel, work.span, scores);
    if constexpr (kDomain == Domain::kExact) {
      const PanelTerms<T, Panel> panel_terms(args_, rows_, scratch_);
      const ScoreTerms<C> terms = panel_terms.Fill(work, factors.terms);
      C* at = scores + (work.keys.begin - work.span.begin) * Panel::kRows;
      ApplyScoreTerms<Panel, kVecs>(terms, work.keys.size(), at);
    }
    MaskPanel<kVecs>(rows_, work, scratch_, scores);
  }

  // Weighed keys whose values are still to be added to O.
  struct Values {
    const PanelStep& block;
    int64_t begin;  // the first key of the block
    KeyRange span;
    Accumulate accumulate;
    const C* scale;
  };

  template <size_t kVecs>
  void AddValues(const Values& values) {
    if (values.span.empty()) return;
    C* o = scratch_.o + values.block.panel * Unit::OutRows(args_.head_dim_v) * Panel::kRows;
    if (HWY_UNLIKELY(values.block.select)) {
      unit_.template AddValuesSelecting<kVecs>(
          v_, values.span, values.accumulate, values.scale,
          scratch_.hidden + (values.span.begin - values.begin) * Panel::kRows, o);
    } else {
      unit_.template AddValues<kVecs>(values.span, values.accumulate, values.scale, o);
    }
  }

  C* ExactL(int64_t row) const {
    return scratch_.exact_l == nullptr ? nullptr : scratch_.exact_l + row;
  }

  // Divides, transposes and stores out and lse. Returns whether a row is suspect: it sees keys, yet
  // its maximum, its sum or its out is not finite.
  template <Domain kDomain>
  bool StoreRows(bool only_suspects) {
    if (tile_.partial == nullptr) {
      return StorePanels<kDomain, T>(args_, sequence_, only_suspects);
    }
    Sequence sequence = sequence_;
    sequence.q_begin = 0;
    return StorePanels<kDomain, C>(PartialArgs(), sequence, only_suspects);
  }

  template <Domain kDomain, typename Out>
  bool StorePanels(const ForwardArgs& args, const Sequence& sequence, bool only_suspects) {
    bool suspects = false;
    const TileRows<Panel> rows(args, tile_, sequence);
    const int64_t o_stride = Unit::OutRows(args_.head_dim_v) * Panel::kRows;
    for (int64_t panel = 0; panel < rows.num_panels(); ++panel) {
      const int64_t row = panel * Panel::kRows;
      const RowSums<C> sums{scratch_.m + row, scratch_.l + row, ExactL(row), scratch_.scale[0],
                            scratch_.suspect + row};
      const PanelStore<Out, Panel> store(args, rows, panel, sums);
      const double unit = kDomain == Domain::kExact ? 1.0 : kLn2;
      const bool any = store.Store(unit, scratch_.o + panel * o_stride, only_suspects);
      suspects = suspects || any;
    }
    return suspects;
  }

  // The call whose outputs are those of the tile's split; sinks join when splits are merged.
  ForwardArgs PartialArgs() const {
    ForwardArgs args = args_;
    const Partial partial = Partial::Of<C>(args_, sequence_.seqlen_q, tile_.partial);
    args.out = partial.out;
    args.lse = partial.lse;
    args.out_strides = partial.out_strides;
    args.lse_strides = partial.lse_strides;
    args.sinks = {};
    return args;
  }

  const ForwardArgs& args_;
  const Sequence sequence_;
  const TileRows<Panel> rows_;
  const FlashBlocks blocks_;
  FlashScratch<Panel> scratch_;
  Unit unit_;
  const Tile& tile_;
  const KvRows<T> k_;
  const KvRows<T> v_;
};

template <class Unit>
TilePlan PlanFlash(const ForwardArgs& args) {
  TilePlan plan;
  plan.block_rows = Unit::Blocks(args).block_q;
  plan.row_granule = Unit::Panel::kRows;
  const int64_t rows = std::min(plan.block_rows, args.seqlen_q * args.group());
  plan.scratch_bytes = FlashTile<Unit>::ScratchBytes(args, rows);
  return plan;
}

template <class Unit>
void RunFlash(const ForwardArgs& args, const Tile& tile, void* scratch) {
  [[maybe_unused]] const typename Unit::Session session;
  FlashTile<Unit>(args, tile, Carver(scratch)).Run();
}

template <class Unit>
ForwardEntry FlashEntry() {
  return {&PlanFlash<Unit>, &RunFlash<Unit>, Unit::kName, {}};
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_FLASH_INL_H_
