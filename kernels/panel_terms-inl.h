// What is added to the scores of a panel: ALiBi, bias and boolean mask.

#if defined(FLASHLANE_KERNELS_PANEL_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
#undef FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
#else
#define FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

template <typename T, class Panel>
class PanelTerms {
 public:
  using C = typename Panel::C;

  PanelTerms(const ForwardArgs& args, const TileRows<Panel>& rows,
             const FlashScratch<Panel>& scratch)
      : args_(args), rows_(rows), scratch_(scratch) {}

  // Fills the per-lane and per-score terms for the keys of `work`.
  ScoreTerms<C> Fill(const PanelStep& work) const {
    ScoreTerms<C> terms;
    terms.softcap = static_cast<C>(args_.softcap);
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
  const FlashScratch<Panel>& scratch_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
