// What the backward needs of each query row before it begins: what its scores are shifted by, and
// delta.
//
// P = exp(s - lse) magnifies what lse lost when it was rounded: |lse| * 2^-24 of P in f32, which is
// everything where a bias near the lowest float lies on all keys of a row. So for rows whose lse is
// large the sum of weights is taken anew, of the very scores that the backward works with: P =
// exp(s - m) / sum, whose sum is 1 again. It costs such rows a sixth product.
//
// An lse that the caller kept may be of more keys than this call has (sequences sharded over
// machines: Liu et al., "Ring Attention", 2023); P then sums to less than 1, and stays so: only
// what rounding explains is corrected.

#if defined(FLASHLANE_KERNELS_BACKWARD_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_TERMS_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_TERMS_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_TERMS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/backward_rows-inl.h"
#include "kernels/backward_strip-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Below, lse rounded to f32 costs P at most 2^-16 of itself; rows of a language model stay below.
inline constexpr double kMaxPlainLse = 256;

// How many roundings of lse may separate it from the sum of weights: its own, and those of the
// scores where another unit than this one multiplied for the forward.
inline constexpr double kMaxRoundingsOfLse = 8;

template <class Unit>
class RowPreparation {
 public:
  using T = typename Unit::T;
  using C = typename Unit::C;
  using Terms = RowTerms<C>;
  using Panel = typename Unit::Panel;

  RowPreparation(const BackwardArgs& args, const Tile& tile)
      : args_(args),
        tile_(tile),
        sequence_(Sequence::Of(args.forward, tile.batch)),
        rows_(args.forward, tile, sequence_),
        unit_(ScoreUnit<Unit>(args.forward)),
        needs_delta_(args.dq.data != nullptr || args.dk.data != nullptr || args.dbias != nullptr ||
                     args.dsinks != nullptr) {}

  void Run(void* scratch_memory) const {
    const BackwardBlocks blocks = Unit::Blocks(args_.forward);
    Carver carver(scratch_memory);
    StripScratch<Unit> scratch(args_.forward, blocks, {}, &carver);
    for (int64_t row = tile_.row_begin; row < tile_.row_end; row += blocks.block_q) {
      const int64_t end = std::min(row + blocks.block_q, tile_.row_end);
      bool any_large = false;
      for (int64_t r = row; r < end; ++r) {
        Prepare(r);
        any_large = any_large || IsLarge(Lse(r));
      }
      if (HWY_UNLIKELY(any_large)) SumAnew(row, end, &scratch);
    }
  }

 private:
  static bool IsLarge(C lse) {
    const double size = std::fabs(static_cast<double>(lse));
    return size > kMaxPlainLse && std::isfinite(size);
  }
  C Lse(int64_t r) const {
    return *rows_.template RowPointer<const C>(args_.forward.lse, args_.forward.lse_strides, r);
  }
  Terms& TermsOf(int64_t r) const {
    return *rows_.template RowPointer<Terms>(args_.row_terms.data, args_.row_terms.strides, r);
  }

  void Prepare(int64_t r) const {
    const ForwardArgs& forward = args_.forward;
    Terms& terms = TermsOf(r);
    terms.shift = static_cast<C>(static_cast<double>(Lse(r)) * unit_);
    terms.factor = 1;
    terms.delta = !needs_delta_
                      ? C{0}
                      : Dot(rows_.template RowPointer<const T>(args_.dout, args_.dout_strides, r),
                            rows_.template RowPointer<const T>(forward.out, forward.out_strides, r),
                            forward.head_dim_v);
    // Infinite where dout or a value is: then dP is, too, and what is left of the two is no number.
    if (std::isinf(terms.delta)) terms.delta = std::numeric_limits<C>::quiet_NaN();
    if (args_.dq_sum.data == nullptr) return;
    C* dq = rows_.template RowPointer<C>(args_.dq_sum.data, args_.dq_sum.strides, r);
    std::fill(dq, dq + forward.head_dim, C{0});
  }

  void SumAnew(int64_t begin, int64_t end, StripScratch<Unit>* scratch) const {
    Tile tile = tile_;
    tile.row_begin = begin;
    tile.row_end = end;
    const auto sums = BackwardStrip<Unit>(args_, tile, sequence_, scratch).SumWeights();
    for (int64_t r = begin; r < end; ++r) {
      if (!IsLarge(Lse(r))) continue;
      Correct(r, static_cast<double>(sums.m[r - begin]), static_cast<double>(sums.sum[r - begin]));
    }
  }

  // `sum`: of exp(score - m), in the domain's unit as m is.
  void Correct(int64_t r, double m, double sum) const {
    const ForwardArgs& forward = args_.forward;
    const auto weight = [this](double score) { return std::exp(score / unit_); };
    if (forward.sinks.data != nullptr) {
      const auto sink = static_cast<double>(static_cast<C>(
          unit_ * LoadOperand<T>(forward.sinks, rows_.Head(r) * forward.sinks.stride)));
      const double base = std::max(m, sink);
      sum = sum * weight(m - base) + weight(sink - base);
      m = base;
    }
    const auto lse = static_cast<double>(Lse(r));
    const double lost = std::fabs(m / unit_ + std::log(sum) - lse);
    const double rounding = std::fabs(lse) * std::numeric_limits<C>::epsilon() / 2;
    if (!(lost <= kMaxRoundingsOfLse * rounding)) return;
    TermsOf(r).shift = static_cast<C>(m);
    TermsOf(r).factor = static_cast<C>(1 / sum);
  }

  const BackwardArgs& args_;
  const Tile& tile_;
  const Sequence sequence_;
  const TileRows<Panel> rows_;
  const double unit_;
  const bool needs_delta_;  // dv alone does not
};

template <class Unit>
void PrepareQueries(const BackwardArgs& args, const Tile& tile, void* scratch) {
  [[maybe_unused]] const typename Unit::Session session;
  RowPreparation<Unit>(args, tile).Run(scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_TERMS_INL_H_
