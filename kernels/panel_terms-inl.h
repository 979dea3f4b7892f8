// What is added to the scores of a panel: ALiBi, bias and boolean mask, gathered into its layout.

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

  static bool SameForAllRows(const ScoreOperand& operand) {
    return operand.data == nullptr || (operand.head == 0 && operand.row == 0);
  }

  // Bias + mask as one number to add: -inf hides the key.
  void FillAdditive(const PanelStep& work) const {
    C* additive = scratch_.additive;
    const int64_t keys = work.keys.size();
    // The padding mask of an encoder: one term per key.
    if (SameForAllRows(args_.bias) && SameForAllRows(args_.mask)) {
      FillLane(work.range.begin, work.keys, additive);
      for (int64_t j = 0; j < keys; ++j) {
        std::fill(additive + j * kRows + 1, additive + (j + 1) * kRows, additive[j * kRows]);
      }
      return;
    }
    for (int64_t lane = 0; lane < kRows; ++lane) {
      // Lanes without a row repeat the last one.
      FillLane(std::min(work.range.begin + lane, work.range.end - 1), work.keys, additive + lane);
    }
  }

  // Row r's terms for `keys`, one panel row apart.
  void FillLane(int64_t r, const KeyRange& keys, C* to) const {
    const int64_t count = keys.size();
    const ScoreOperand& bias = args_.bias;
    if (bias.data == nullptr) {
      for (int64_t j = 0; j < count; ++j) to[j * kRows] = C{0};
    } else {
      const int64_t at = rows_.ScoreOffset(bias, r) + keys.begin * bias.col;
      for (int64_t j = 0; j < count; ++j) to[j * kRows] = LoadOperand<T>(bias, at + j * bias.col);
    }
    const ScoreOperand& mask = args_.mask;
    if (mask.data == nullptr) return;
    const uint8_t* visible =
        static_cast<const uint8_t*>(mask.data) + rows_.ScoreOffset(mask, r) + keys.begin * mask.col;
    for (int64_t j = 0; j < count; ++j) {
      if (visible[j * mask.col] == 0) to[j * kRows] = -kInfinity<C>;
    }
  }

  const ForwardArgs& args_;
  const TileRows<Panel>& rows_;
  const FlashScratch<Panel>& scratch_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_PANEL_TERMS_INL_H_
