// The online softmax of one panel: scores S^T [keys][kPanelRows] with query rows in the lanes, so
// that every reduction is vertical. Sources: Milakov & Gimelshein (2018); Dao, FlashAttention-2
// (2023).
//
// Two domains. Fast: scores times `unit` are in units of log2(e) (the unit is 1 where the factor is
// folded into q), weights are exp2(s * unit - m). Exact: scores are natural, so that no finite
// score can overflow by the change of base, and weights are exp2((s - m) * log2(e)); softcap,
// ALiBi, bias and masks need it.

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
  C scale;                         // what turns the product into a natural score
  C softcap;                       // 0 = off
  C scale_by_softcap;              // scale / softcap, finite
  const C* slopes = nullptr;       // [kRows], null = no ALiBi
  const C* row_offsets = nullptr;  // [kRows]: positions of the rows
  C first_key = 0;                 // position of the first key, relative to the same key
  const C* additive = nullptr;     // [keys][kRows]: bias, -inf where masked; null = none
  C* softcap_slope = nullptr;      // out: [keys][kRows], 1 - tanh^2; null = not wanted
};

// Keys of a panel that each row sees, as offsets from the panel's first key: first <= key < last.
template <typename C>
struct RowLimits {
  const C* first;  // [kRows]
  const C* last;   // [kRows]
};

// Exact domain: s = scale * s -> softcap -> + slope * (j - a) -> + bias, -inf where the mask or the
// bias hides the key, whatever the score was.
template <class Panel, size_t kVecs, typename C = typename Panel::C>
HWY_NOINLINE void ApplyScoreTerms(const ScoreTerms<C>& terms, int64_t keys, C* scores) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  const auto minus_inf = hn::Set(d, -kInfinity<C>);
  const auto softcap = hn::Set(d, terms.softcap);
  const auto factor = hn::Set(d, terms.softcap != 0 ? terms.scale_by_softcap : terms.scale);
  for (int64_t j = 0; j < keys; ++j) {
    C* row = scores + j * Panel::kRows;
    hn::Vec<Tag<C>> s[kVecs];
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) s[v] = hn::Mul(hn::Load(d, row + v * lanes), factor);
    if (terms.softcap != 0) {
      Tanh(d, s);
      if (terms.softcap_slope != nullptr) {
        const auto one = hn::Set(d, C{1});
        HWY_UNROLL(4)
        for (size_t v = 0; v < kVecs; ++v) {
          const auto slope = hn::Mul(hn::Sub(one, s[v]), hn::Add(one, s[v]));
          hn::Store(slope, d, terms.softcap_slope + j * Panel::kRows + v * lanes);
        }
      }
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) s[v] = hn::Mul(softcap, s[v]);
    }
    if (terms.slopes != nullptr) {
      const auto key = hn::Set(d, terms.first_key + static_cast<C>(j));
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) {
        const auto delta = hn::Sub(key, hn::Load(d, terms.row_offsets + v * lanes));
        s[v] = hn::MulAdd(hn::Load(d, terms.slopes + v * lanes), delta, s[v]);
      }
    }
    if (terms.additive != nullptr) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) {
        const auto term = hn::Load(d, terms.additive + j * Panel::kRows + v * lanes);
        s[v] = hn::IfThenElse(hn::Eq(term, minus_inf), minus_inf, hn::Add(s[v], term));
      }
    }
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) hn::Store(s[v], d, row + v * lanes);
  }
}

// -inf for keys [begin, end) of the panel outside a row's limits.
template <class Panel, size_t kVecs, typename C = typename Panel::C>
HWY_NOINLINE void ApplyRowLimits(const RowLimits<C>& limits, int64_t begin, int64_t end,
                                 C* scores) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  const auto minus_inf = hn::Set(d, -kInfinity<C>);
  for (int64_t j = begin; j < end; ++j) {
    const auto key = hn::Set(d, static_cast<C>(j));
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = scores + j * Panel::kRows + v * lanes;
      const auto visible = hn::And(hn::Ge(key, hn::Load(d, limits.first + v * lanes)),
                                   hn::Lt(key, hn::Load(d, limits.last + v * lanes)));
      hn::Store(hn::IfThenElse(visible, hn::Load(d, at), minus_inf), d, at);
    }
  }
}

// The state of a panel's rows between chunks of keys; each array [kRows].
template <typename C>
struct PanelState {
  C* m;  // what weights are relative to: within the threshold of the maximum so far; -inf at first
  C* l;  // sum of weights, as the product with V sees them
  C* exact_l;  // sum of weights before they are rounded for that product; null where they are not
  C* scale;    // out: what O must be multiplied by before the product of these keys is added
};

// Fast domain: scores times `unit` are powers of two; 1 where q has the factor in it.
// First half of a step: lets m, l and scale follow the maximum. Returns whether any row's scale is
// not 1; if none is, `scale` is left as it was.
template <class Panel, Domain kDomain, size_t kVecs, typename C = typename Panel::C>
HWY_NOINLINE bool UpdateMaximum(const PanelState<C>& state, C unit, int64_t keys, const C* scores) {
  const Tag<C> d;
  using V = hn::Vec<Tag<C>>;
  const size_t lanes = hn::Lanes(d);
  const V log2e = hn::Set(d, static_cast<C>(kLog2E));
  // The exact domain keeps weights at most 1, so that O has all of the range.
  const V threshold =
      hn::Set(d, kDomain == Domain::kExact ? C{0} : static_cast<C>(kRescaleThresholdLog2));

  // Two keys at once, so that few vectors hide the latency of max, too.
  V max[kVecs];
  V odd_max[kVecs];
  for (size_t v = 0; v < kVecs; ++v) max[v] = odd_max[v] = hn::Set(d, -kInfinity<C>);
  for (int64_t j = 0; j < keys; j += 2) {
    const C* even = scores + j * Panel::kRows;
    const C* odd = j + 1 < keys ? even + Panel::kRows : even;
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      max[v] = hn::Max(max[v], hn::Load(d, even + v * lanes));
      odd_max[v] = hn::Max(odd_max[v], hn::Load(d, odd + v * lanes));
    }
  }
  for (size_t v = 0; v < kVecs; ++v) max[v] = hn::Max(max[v], odd_max[v]);

  V old_m[kVecs];
  auto any_grows = hn::MaskFalse(d);
  HWY_UNROLL(4)
  for (size_t v = 0; v < kVecs; ++v) {
    if constexpr (kDomain == Domain::kFast) max[v] = hn::Mul(max[v], hn::Set(d, unit));
    old_m[v] = hn::Load(d, state.m + v * lanes);
    any_grows = hn::Or(any_grows, hn::Gt(max[v], hn::Add(old_m[v], threshold)));
  }
  if (hn::AllFalse(d, any_grows)) return false;
  HWY_UNROLL(4)
  for (size_t v = 0; v < kVecs; ++v) {
    const auto grows = hn::Gt(max[v], hn::Add(old_m[v], threshold));
    const V new_m = hn::IfThenElse(grows, max[v], old_m[v]);
    V shift = hn::Sub(old_m[v], new_m);
    if constexpr (kDomain == Domain::kExact) shift = hn::Mul(shift, log2e);
    const V scale = hn::IfThenElse(grows, WeightExp2(d, shift), hn::Set(d, C{1}));
    hn::Store(new_m, d, state.m + v * lanes);
    hn::Store(scale, d, state.scale + v * lanes);
    hn::Store(hn::Mul(hn::Load(d, state.l + v * lanes), scale), d, state.l + v * lanes);
    if (state.exact_l != nullptr) {
      C* at = state.exact_l + v * lanes;
      hn::Store(hn::Mul(hn::Load(d, at), scale), d, at);
    }
  }
  return true;
}

// Weights of scores; what is constant over a panel is loaded once.
template <class Panel, Domain kDomain, size_t kVecs, WeightPrecision kPrecision>
class PanelWeights {
 public:
  using C = typename Panel::C;
  using V = hn::Vec<Tag<C>>;

  HWY_INLINE PanelWeights(const C* m, C unit) {
    const Tag<C> d;
    unit_ = hn::Set(d, kDomain == Domain::kExact ? static_cast<C>(kLog2E) : unit);
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      const V row_m = hn::Load(d, m + v * hn::Lanes(d));
      // A row that has seen nothing yet: -inf - 0 stays -inf, -inf - -inf would be NaN.
      base_[v] = hn::IfThenElse(hn::Eq(row_m, hn::Set(d, -kInfinity<C>)), hn::Zero(d), row_m);
    }
  }

  // p[key * kVecs + v]: vector v of some keys' weights, in lock step.
  template <size_t kCount>
  HWY_INLINE void Load(const C* scores, V (&p)[kCount]) const {
    const Tag<C> d;
    HWY_UNROLL(8)
    for (size_t i = 0; i < kCount; ++i) {
      const size_t v = i % kVecs;
      const C* at = scores + static_cast<int64_t>(i / kVecs) * Panel::kRows;
      const V score = hn::Load(d, at + v * hn::Lanes(d));
      if constexpr (kDomain == Domain::kExact) {
        p[i] = hn::Mul(hn::Sub(score, base_[v]), unit_);
      } else if constexpr (kPrecision == WeightPrecision::kHalf) {
        p[i] = hn::MulSub(score, unit_, base_[v]);
      } else {
        p[i] = hn::Sub(score, base_[v]);  // q has the factor in it
      }
    }
    WeightExp2<kPrecision>(d, p);
  }

 private:
  V base_[kVecs];
  V unit_;
};

// Vectors in lock step that hide the latency of the exponential's chain of operations, measured on
// Zen 4: four; eight spill.
inline constexpr size_t kVectorsInLockStep = 4;

// Second half: turns scores into weights, in place, and sums them in l, in the order and with the
// rounding of a product with V = 1. The fast domain's unit is 1.
template <class Panel, Domain kDomain, size_t kVecs, typename C = typename Panel::C>
HWY_NOINLINE void WeighInPlace(const PanelState<C>& state, int64_t keys, C* scores) {
  const Tag<C> d;
  using V = hn::Vec<Tag<C>>;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kKeys = kVecs < kVectorsInLockStep ? kVectorsInLockStep / kVecs : 1;
  const PanelWeights<Panel, kDomain, kVecs, WeightPrecision::kFull> weights(state.m, C{1});
  V sum[kVecs];
  for (size_t v = 0; v < kVecs; ++v) sum[v] = hn::Load(d, state.l + v * lanes);
  const auto weigh = [&](auto num_keys, C* at) HWY_ATTR {
    constexpr size_t kCount = num_keys() * kVecs;
    V p[kCount];
    weights.Load(at, p);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kCount; ++i) {
      sum[i % kVecs] = hn::Add(sum[i % kVecs], p[i]);
      hn::Store(p[i], d, at + static_cast<int64_t>(i / kVecs) * Panel::kRows + i % kVecs * lanes);
    }
  };
  int64_t j = 0;
  for (; j + static_cast<int64_t>(kKeys) <= keys; j += static_cast<int64_t>(kKeys)) {
    weigh(std::integral_constant<size_t, kKeys>(), scores + j * Panel::kRows);
  }
  for (; j < keys; ++j) weigh(std::integral_constant<size_t, 1>(), scores + j * Panel::kRows);
  for (size_t v = 0; v < kVecs; ++v) hn::Store(sum[v], d, state.l + v * lanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_ONLINE_SOFTMAX_INL_H_
