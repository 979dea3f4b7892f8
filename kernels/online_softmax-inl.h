// The online softmax of one panel: scores S^T [keys][kPanelRows] with query rows in the lanes, so
// that every reduction is vertical. Sources: Milakov & Gimelshein (2018); Dao, FlashAttention-2
// (2023).
//
// Two domains. Fast: scores arrive in units of log2(e) (folded into q), weights are exp2(s - m).
// Exact: scores are natural, so that no finite score can overflow by the change of base, and
// weights are exp2((s - m) * log2(e)); softcap, ALiBi, bias and masks need it.

#if defined(FLASHLANE_KERNELS_ONLINE_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_ONLINE_SOFTMAX_INL_H_
#undef FLASHLANE_KERNELS_ONLINE_SOFTMAX_INL_H_
#else
#define FLASHLANE_KERNELS_ONLINE_SOFTMAX_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/block_sizes.h"
#include "kernels/exp2-inl.h"
#include "kernels/tanh-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

template <typename C>
inline constexpr C kInfinity = std::numeric_limits<C>::infinity();

enum class Domain { kFast, kExact };

// What changes scores between the product and the softmax, per panel.
template <typename C>
struct ScoreTerms {
  C scale;                    // softmax_scale
  C softcap;                  // 0 = off
  const C* slopes = nullptr;  // [kPanelRows], null = no ALiBi
  const C* row_offsets =
      nullptr;                  // [kPanelRows]: position of the row minus that of the panel's first
  C first_key = 0;              // position of the first key minus that of the first row
  const C* additive = nullptr;  // [keys][kPanelRows]: bias, -inf where masked; null = none
};

// Keys of a panel that each row sees, as offsets from the panel's first key: first <= key < last.
template <typename C>
struct RowLimits {
  const C* first;  // [kPanelRows]
  const C* last;   // [kPanelRows]
};

// Exact domain: s = scale * s -> softcap -> + slope * (j - a) -> + bias, -inf where the mask or the
// bias hides the key, whatever the score was.
template <size_t kVecs, typename C>
HWY_NOINLINE void ApplyScoreTerms(const ScoreTerms<C>& terms, int64_t keys, C* scores) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  const auto minus_inf = hn::Set(d, -kInfinity<C>);
  const auto softcap = hn::Set(d, terms.softcap);
  for (int64_t j = 0; j < keys; ++j) {
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = scores + j * static_cast<int64_t>(kPanelRows<C>) + v * lanes;
      auto s = hn::Mul(hn::Load(d, at), hn::Set(d, terms.scale));
      if (terms.softcap != 0) {
        s = hn::Mul(softcap, Tanh(d, hn::Div(s, softcap)));
      }
      if (terms.slopes != nullptr) {
        const auto delta = hn::Sub(hn::Set(d, terms.first_key + static_cast<C>(j)),
                                   hn::Load(d, terms.row_offsets + v * lanes));
        s = hn::MulAdd(hn::Load(d, terms.slopes + v * lanes), delta, s);
      }
      if (terms.additive != nullptr) {
        const auto term =
            hn::Load(d, terms.additive + j * static_cast<int64_t>(kPanelRows<C>) + v * lanes);
        s = hn::IfThenElse(hn::Eq(term, minus_inf), minus_inf, hn::Add(s, term));
      }
      hn::Store(s, d, at);
    }
  }
}

// -inf for keys [begin, end) of the panel outside a row's limits.
template <size_t kVecs, typename C>
HWY_NOINLINE void ApplyRowLimits(const RowLimits<C>& limits, int64_t begin, int64_t end,
                                 C* scores) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  const auto minus_inf = hn::Set(d, -kInfinity<C>);
  for (int64_t j = begin; j < end; ++j) {
    const auto key = hn::Set(d, static_cast<C>(j));
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = scores + j * static_cast<int64_t>(kPanelRows<C>) + v * lanes;
      const auto visible = hn::And(hn::Ge(key, hn::Load(d, limits.first + v * lanes)),
                                   hn::Lt(key, hn::Load(d, limits.last + v * lanes)));
      hn::Store(hn::IfThenElse(visible, hn::Load(d, at), minus_inf), d, at);
    }
  }
}

// The state of a panel's rows between key blocks; each array [kPanelRows].
template <typename C>
struct PanelState {
  C* m;  // what weights are relative to: within the threshold of the maximum so far; -inf at first
  C* l;  // sum of weights
  C* scale;  // out: what O must be multiplied by before this block's product is added
};

// Turns scores into weights in place and updates m and l. Returns whether any row's scale is not 1.
// A weight is summed in the order and with the rounding of a product with V = 1.
template <Domain kDomain, size_t kVecs, typename C>
HWY_NOINLINE bool SoftmaxPanel(const PanelState<C>& state, int64_t keys, C* scores) {
  const Tag<C> d;
  using V = hn::Vec<Tag<C>>;
  const size_t lanes = hn::Lanes(d);
  constexpr int64_t kStride = static_cast<int64_t>(kPanelRows<C>);
  const V minus_inf = hn::Set(d, -kInfinity<C>);
  const V log2e = hn::Set(d, static_cast<C>(kLog2E));
  // The exact domain keeps weights at most 1, so that O has all of the range.
  const V threshold =
      hn::Set(d, kDomain == Domain::kExact ? C{0} : static_cast<C>(kRescaleThresholdLog2));

  V max[kVecs];
  for (size_t v = 0; v < kVecs; ++v) max[v] = minus_inf;
  for (int64_t j = 0; j < keys; ++j) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      max[v] = hn::Max(max[v], hn::Load(d, scores + j * kStride + v * lanes));
    }
  }

  V base[kVecs];
  V sum[kVecs];
  bool rescaled = false;
  HWY_UNROLL(4)
  for (size_t v = 0; v < kVecs; ++v) {
    const V old_m = hn::Load(d, state.m + v * lanes);
    const auto grows = hn::Gt(max[v], hn::Add(old_m, threshold));
    const V new_m = hn::IfThenElse(grows, max[v], old_m);
    V shift = hn::Sub(old_m, new_m);
    if constexpr (kDomain == Domain::kExact) shift = hn::Mul(shift, log2e);
    const V scale = hn::IfThenElse(grows, WeightExp2(d, shift), hn::Set(d, C{1}));
    rescaled = rescaled || !hn::AllFalse(d, grows);
    hn::Store(new_m, d, state.m + v * lanes);
    hn::Store(scale, d, state.scale + v * lanes);
    sum[v] = hn::Mul(hn::Load(d, state.l + v * lanes), scale);
    // A row that has seen nothing yet: -inf - 0 stays -inf, -inf - -inf would be NaN.
    base[v] = hn::IfThenElse(hn::Eq(new_m, minus_inf), hn::Zero(d), new_m);
  }

  for (int64_t j = 0; j < keys; ++j) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = scores + j * kStride + v * lanes;
      V x = hn::Sub(hn::Load(d, at), base[v]);
      if constexpr (kDomain == Domain::kExact) x = hn::Mul(x, log2e);
      const V p = WeightExp2(d, x);
      sum[v] = hn::Add(sum[v], p);
      hn::Store(p, d, at);
    }
  }
  HWY_UNROLL(4)
  for (size_t v = 0; v < kVecs; ++v) hn::Store(sum[v], d, state.l + v * lanes);
  return rescaled;
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_ONLINE_SOFTMAX_INL_H_
