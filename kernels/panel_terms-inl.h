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
      PanelGather<T, Panel>(args_, rows_, work.range, work.keys).Fill(scratch_.additive);
      terms.additive = scratch_.additive;
    }
    return terms;
  }

 private:
  static constexpr int64_t kRows = Panel::kRows;

  void FillAlibi(const PanelStep& work, ScoreTerms<C>* terms) const {
    const int64_t first_query = rows_.Query(work.range.begin);
    std::fill(scratch_.lane_a, scratch_.lane_a + kRows, C{0});
    std::fill(scratch_.lane_b, scratch_.lane_b + kRows, C{0});
    for (int64_t r = work.range.begin; r < work.range.end; ++r) {
      const int64_t lane = r - work.range.begin;
      scratch_.lane_a[lane] =
          LoadOperand<T>(args_.alibi_slopes, rows_.Head(r) * args_.alibi_slopes.stride);
      scratch_.lane_b[lane] = static_cast<C>(rows_.Query(r) - first_query);
    }
    terms->slopes = scratch_.lane_a;
    terms->row_offsets = scratch_.lane_b;
    terms->first_key = static_cast<C>(work.keys.begin - (rows_.q_start() + first_query));
  }

  const ForwardArgs& args_;
  const TileRows<Panel>& rows_;
  const FlashScratch<Panel>& scratch_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
