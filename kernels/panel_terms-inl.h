// What is added to the scores of a panel: ALiBi, bias and boolean mask.

#if defined(FLASHLANE_KERNELS_PANEL_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
#undef FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
#else
#define FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/convert-inl.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_gather-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Whether scores must be natural numbers, because something is added to them or because the scale
// times log2(e) is no factor to fold into q (`folds_scale`) or into the weights.
inline bool NeedsExactDomain(const ForwardArgs& args, bool folds_scale) {
  // Below, folding the scale into q could lose q to underflow. Above, where scale * log2(e) > 1,
  // a score could overflow to -inf, which looks like a masked one, although it is finite in
  // itself.
  constexpr double kMinScale = 1.0 / 65536, kMaxScale = kLn2;
  const double scale = std::fabs(args.softmax_scale);
  // 0 is exact when folded; afterwards, 0 * -inf would not be.
  const bool zero_is_fast = folds_scale;
  return args.softcap != 0.0 || args.alibi_slopes.data != nullptr || args.bias.data != nullptr ||
         args.mask.data != nullptr ||
         ((scale != 0.0 || !zero_is_fast) && (scale < kMinScale || scale > kMaxScale));
}

// -inf where a row does not see a key of work.span. Only the keys that some row of the panel does
// not see are touched.
template <size_t kVecs, class Panel, typename C = typename Panel::C>
HWY_INLINE void MaskPanel(const TileRows<Panel>& rows, const PanelStep& work,
                          const TermScratch<Panel>& scratch, C* scores) {
  const KeyRange all = rows.VisibleToAll(work.range);
  const int64_t first = work.span.begin;
  const int64_t begin = std::clamp(all.begin, first, work.span.end);
  const int64_t end = std::clamp(all.end, begin, work.span.end);
  if (begin == first && end == work.span.end) return;
  const RowLimits<C> limits = rows.Limits(work, scratch);
  ApplyRowLimits<Panel, kVecs>(limits, 0, begin - first, scores);
  ApplyRowLimits<Panel, kVecs>(limits, end - first, work.span.size(), scores);
}

template <typename T, class Panel>
class PanelTerms {
 public:
  using C = typename Panel::C;

  PanelTerms(const ForwardArgs& args, const TileRows<Panel>& rows,
             const TermScratch<Panel>& scratch)
      : args_(args), rows_(rows), scratch_(scratch) {}

  // Fills the per-lane and per-score terms for the keys of `work`. `scale`: what turns the product
  // into a natural score.
  ScoreTerms<C> Fill(const PanelStep& work, C scale) const {
    ScoreTerms<C> terms;
    terms.scale = scale;
    terms.softcap = static_cast<C>(args_.softcap);
    if (terms.softcap != 0) {
      // A tiny softcap makes the quotient infinite; tanh has long been 1 there.
      constexpr C kMost = std::numeric_limits<C>::max();
      terms.scale_by_softcap = std::clamp(scale / terms.softcap, -kMost, kMost);
    }
    if (args_.alibi_slopes.data != nullptr) FillAlibi(work, &terms);
    if (args_.bias.data != nullptr || args_.mask.data != nullptr) {
      FillAdditive(work);
      terms.additive = scratch_.additive;
    }
    return terms;
  }

 private:
  static constexpr int64_t kRows = Panel::kRows;

  // Positions relative to the chunk, which is the same whatever tile a row lies in: where they are
  // beyond the digits of C, their rounding must be, too.
  void FillAlibi(const PanelStep& work, ScoreTerms<C>* terms) const {
    std::fill(scratch_.lane_a, scratch_.lane_a + kRows, C{0});
    std::fill(scratch_.lane_b, scratch_.lane_b + kRows, C{0});
    for (int64_t r = work.range.begin; r < work.range.end; ++r) {
      const int64_t lane = r - work.range.begin;
      scratch_.lane_a[lane] =
          LoadOperand<T>(args_.alibi_slopes, rows_.Head(r) * args_.alibi_slopes.stride);
      scratch_.lane_b[lane] = static_cast<C>(rows_.Position(r) - work.chunk);
    }
    terms->slopes = scratch_.lane_a;
    terms->row_offsets = scratch_.lane_b;
    terms->first_key = static_cast<C>(work.keys.begin - work.chunk);
  }

  void FillAdditive(const PanelStep& work) const {
    if (!args_.mask_from_q_start) {
      return PanelGather<T, Panel>(args_, rows_, work.range, work.keys).Fill(scratch_.additive);
    }
    // A mask over the last keys only, and no bias.
    const int64_t first = std::clamp(rows_.q_start(), work.keys.begin, work.keys.end);
    C* const masked = scratch_.additive + (first - work.keys.begin) * kRows;
    std::fill(scratch_.additive, masked, C{0});
    if (first == work.keys.end) return;
    PanelGather<T, Panel>(args_, rows_, work.range, {first, work.keys.end}).Fill(masked);
  }

  const ForwardArgs& args_;
  const TileRows<Panel>& rows_;
  const TermScratch<Panel>& scratch_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
