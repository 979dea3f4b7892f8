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
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/panel_store-inl.h"
#include "kernels/panel_terms-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// True if any of the rows holds a NaN or an infinity.
template <typename C>
HWY_NOINLINE bool AnyNonFinite(const MatrixRows<C>& rows, int64_t num_rows, int64_t width) {
  const Tag<C> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // 0 * NaN and 0 * inf are NaN, and a sum stays NaN. Four sums, for the latency of a multiply-add.
  hn::Vec<Tag<C>> zeros[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  C tail = 0;
  for (int64_t j = 0; j < num_rows; ++j) {
    const C* row = rows.data + j * rows.stride;
    int64_t i = 0;
    for (; i + 4 * lanes <= width; i += 4 * lanes) {
      HWY_UNROLL(4)
      for (int64_t u = 0; u < 4; ++u) {
        zeros[u] = hn::MulAdd(hn::LoadU(d, row + i + u * lanes), hn::Zero(d), zeros[u]);
      }
    }
    for (; i + lanes <= width; i += lanes) {
      zeros[0] = hn::MulAdd(hn::LoadU(d, row + i), hn::Zero(d), zeros[0]);
    }
    for (; i < width; ++i) tail += row[i] * C{0};
  }
  const auto sum = hn::Add(hn::Add(zeros[0], zeros[1]), hn::Add(zeros[2], zeros[3]));
  return !hn::AllTrue(d, hn::Eq(sum, hn::Zero(d))) || tail != C{0};
}

template <typename T, class Source>
class FlashTile {
 public:
  using C = Compute<T>;

  FlashTile(const ForwardArgs& args, const Tile& tile, void* scratch)
      : args_(args),
        sequence_(Sequence::Of(args, tile.batch)),
        rows_(args, tile, sequence_),
        scratch_(args, tile.row_end - tile.row_begin, kPromotes<T>, scratch),
        blocks_(BlocksOf<C>(args)),
        k_(Source::Of(args.k, args.k_strides, tile, sequence_)),
        v_(Source::Of(args.v, args.v_strides, tile, sequence_)) {}

  void Run() {
    if (NeedsExactDomain()) {
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
  static constexpr int64_t kRows = static_cast<int64_t>(kPanelRows<C>);

  bool NeedsExactDomain() const {
    // Below, folding the scale into q could lose q to underflow. Above, where scale * log2(e) > 1,
    // a score could overflow to -inf, which looks like a masked one, although it is finite in
    // itself.
    constexpr double kMinScale = 1.0 / 65536, kMaxScale = kLn2;
    const double scale = std::fabs(args_.softmax_scale);
    return args_.softcap != 0.0 || args_.alibi_slopes.data != nullptr ||
           args_.bias.data != nullptr || args_.mask.data != nullptr ||
           (scale != 0.0 && (scale < kMinScale || scale > kMaxScale));
  }

  template <Domain kDomain>
  void Sweep() {
    const C fold = kDomain == Domain::kExact ? C{1} : static_cast<C>(args_.softmax_scale * kLog2E);
    rows_.template PackQueries<T>(fold, scratch_.q);
    scratch_.Reset();
    const KeyRange keys = rows_.VisibleToAny();
    if (keys.empty()) return;
    for (int64_t block = keys.begin / blocks_.block_k; block * blocks_.block_k < keys.end;
         ++block) {
      const KeyRange step{std::max(keys.begin, block * blocks_.block_k),
                          std::min(keys.end, (block + 1) * blocks_.block_k)};
      SweepBlock<kDomain>(step);
    }
  }

  template <Domain kDomain>
  void SweepBlock(const KeyRange& step) {
    const MatrixRows<C> k =
        PromoteRows<T>(k_, step.begin, step.end, args_.head_dim, scratch_.promoted_k);
    const MatrixRows<C> v =
        PromoteRows<T>(v_, step.begin, step.end, args_.head_dim_v, scratch_.promoted_v);
    const bool select = AnyNonFinite(v, step.size(), args_.head_dim_v);
    for (int64_t panel = 0; panel < rows_.num_panels(); ++panel) {
      const PanelRange range = rows_.Range(panel);
      const KeyRange any = rows_.VisibleToAny(range);
      const KeyRange keys{std::max(any.begin, step.begin), std::min(any.end, step.end)};
      if (keys.empty()) continue;
      const int64_t skip = keys.begin - step.begin;
      const PanelStep<C> work{panel,
                              range,
                              keys,
                              {k.data + skip * k.stride, k.stride},
                              {v.data + skip * v.stride, v.stride},
                              select};
      const int64_t vectors = hwy::DivCeil(range.size(), static_cast<int64_t>(hn::Lanes(Tag<C>())));
      SweepVectors<kDomain, kPanelVectors>(vectors, work);
    }
  }

  // The instance of SweepPanel for this number of vectors, at most kVecs.
  template <Domain kDomain, size_t kVecs>
  void SweepVectors(int64_t vectors, const PanelStep<C>& work) {
    if constexpr (kVecs > 1) {
      if (vectors < static_cast<int64_t>(kVecs)) {
        return SweepVectors<kDomain, kVecs - 1>(vectors, work);
      }
    }
    SweepPanel<kDomain, kVecs>(work);
  }

  // One panel of rows against the keys of one block that any of them sees.
  template <Domain kDomain, size_t kVecs>
  void SweepPanel(const PanelStep<C>& work) {
    const int64_t keys = work.keys.size();
    C* q = scratch_.q + work.panel * args_.head_dim * kRows;
    C* o = scratch_.o + work.panel * args_.head_dim_v * kRows;
    const PanelState<C> state{scratch_.m + work.panel * kRows, scratch_.l + work.panel * kRows,
                              scratch_.scale};
    MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
        Product<C>{work.k.data, work.k.stride, q, args_.head_dim, scratch_.scores, nullptr}, keys,
        Accumulate::kNothing);
    if constexpr (kDomain == Domain::kExact) {
      const PanelTerms<T> terms(args_, rows_, scratch_);
      ApplyScoreTerms<kVecs>(terms.Fill(work), keys, scratch_.scores);
    }
    MaskPanel<kVecs>(work);
    if (HWY_UNLIKELY(work.select)) {
      std::copy(scratch_.scores, scratch_.scores + keys * kRows, scratch_.additive);
    }
    const bool rescaled = SoftmaxPanel<kDomain, kVecs>(state, keys, scratch_.scores);
    const Product<C> product{work.v.data, work.v.stride, scratch_.scores, keys, o, scratch_.scale};
    const Accumulate accumulate = rescaled ? Accumulate::kScaled : Accumulate::kOld;
    if (HWY_UNLIKELY(work.select)) {
      MultiplyPanelSelecting<kVecs>(product, scratch_.additive, args_.head_dim_v, accumulate);
    } else {
      MultiplyPanel<LeftLayout::kDepthMajor, kVecs>(product, args_.head_dim_v, accumulate);
    }
  }

  // Only the keys that some row of the panel does not see are touched.
  template <size_t kVecs>
  void MaskPanel(const PanelStep<C>& work) {
    const KeyRange all = rows_.VisibleToAll(work.range);
    const int64_t begin = std::clamp(all.begin, work.keys.begin, work.keys.end);
    const int64_t end = std::clamp(all.end, begin, work.keys.end);
    if (begin == work.keys.begin && end == work.keys.end) return;
    const RowLimits<C> limits = rows_.Limits(work, scratch_);
    const int64_t first = work.keys.begin;
    ApplyRowLimits<kVecs>(limits, 0, begin - first, scratch_.scores);
    ApplyRowLimits<kVecs>(limits, end - first, work.keys.size(), scratch_.scores);
  }

  // Divides, transposes and stores out and lse. Returns whether a row is suspect: it sees keys, yet
  // its maximum, its sum or its out is not finite.
  template <Domain kDomain>
  bool StoreRows(bool only_suspects) {
    bool suspects = false;
    for (int64_t panel = 0; panel < rows_.num_panels(); ++panel) {
      const RowSums<C> sums{scratch_.m + panel * kRows, scratch_.l + panel * kRows, scratch_.scale,
                            scratch_.suspect + panel * kRows};
      const PanelStore<T> store(args_, rows_, rows_.Range(panel), sums);
      if (!only_suspects) store.MarkSuspects();
      store.Finish(kDomain == Domain::kExact ? 1.0 : kLn2);
      store.StoreOut(scratch_.o + panel * args_.head_dim_v * kRows, only_suspects);
      store.StoreLse(only_suspects);
      suspects = suspects || store.AnySuspect();
    }
    return suspects;
  }

  const ForwardArgs& args_;
  const Sequence sequence_;
  const TileRows<C> rows_;
  FlashScratch<C> scratch_;
  const FlashBlocks blocks_;
  const Source k_;
  const Source v_;
};

template <typename T>
TilePlan PlanFlash(const ForwardArgs& args) {
  using C = Compute<T>;
  TilePlan plan;
  plan.block_rows = BlocksOf<C>(args).block_q;
  plan.row_granule = static_cast<int64_t>(kPanelRows<C>);
  const int64_t rows = std::min(plan.block_rows, args.seqlen_q * args.group());
  plan.scratch_bytes = FlashScratch<C>(args, rows, kPromotes<T>, nullptr).bytes();
  return plan;
}

template <typename T>
void RunFlash(const ForwardArgs& args, const Tile& tile, void* scratch) {
  FlashTile<T, StridedRows<T>>(args, tile, scratch).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_FLASH_INL_H_
