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

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/block_sizes.h"
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

// 2^f ~ sum kC[i] f^i on [-1/2, 1/2], minimax in relative error (Remez). kMagic: adding it to x
// leaves round(x) + the exponent bias in the low mantissa bits.
template <typename C>
struct Exp2Polynomial;

// Degree 6: 1.9e-9, a thirtieth of half an ulp of f32. Degree 5 would be 7.5e-8, or 4.3e-7 if 2^0
// is to be exactly 1, which a row that sees one key needs to return its value unchanged.
template <>
struct Exp2Polynomial<float> {
  static constexpr size_t kDegree = 6;
  static constexpr float kC[kDegree + 1] = {1.0f,
                                            0.69314720573812f,
                                            0.24022646896871f,
                                            0.055503287754723f,
                                            0.009618488891f,
                                            0.00133999317303f,
                                            0.000153458267968f};
  static constexpr int kMantissaBits = 23;
  static constexpr float kMagic = 12582912.0f + 127.0f;  // 1.5 * 2^23 + bias
  static constexpr float kZeroExponent = -127.0f;        // whose biased exponent is 0
};

// Degree 11: 3.1e-18, a thirtieth of half an ulp of f64.
template <>
struct Exp2Polynomial<double> {
  static constexpr size_t kDegree = 11;
  static constexpr double kC[kDegree + 1] = {1.0,
                                             0.6931471805599453304532385,
                                             0.240226506959101562097705,
                                             0.05550410866481992203888801,
                                             0.009618129107588333519076072,
                                             0.001333355814678983939915354,
                                             0.0001540353046251633906973733,
                                             0.00001525273349005425062150263,
                                             0.000001321543308881242754049731,
                                             0.0000001017819799812923832057554,
                                             7.074105750542701931921786e-9,
                                             4.435285834969468493155622e-10};
  static constexpr int kMantissaBits = 52;
  static constexpr double kMagic = 6755399441055744.0 + 1023.0;  // 1.5 * 2^52 + bias
  static constexpr double kZeroExponent = -1023.0;
};

// 2^x for x below the largest exponent; 2^0 is exactly 1. From kZeroExponent down (and for -inf)
// exactly 0: the power of two is then the number whose bits are all 0. NaN stays NaN, which is why
// the power is multiplied and not added to the bits, and why x is the second operand of Max (x86
// returns that one).
template <class D, class V = hn::Vec<D>, typename C = hn::TFromD<D>>
HWY_INLINE V WeightExp2(D d, V x) {
  using P = Exp2Polynomial<C>;
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, P::kMagic);
  const V bounded = hn::Max(hn::Set(d, P::kZeroExponent), x);
  const V shifted = hn::Add(bounded, magic);
  const V f = hn::Sub(bounded, hn::Sub(shifted, magic));
  V y = hn::Set(d, P::kC[P::kDegree]);
  for (size_t i = P::kDegree; i-- > 0;) y = hn::MulAdd(y, f, hn::Set(d, P::kC[i]));
  return hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<P::kMantissaBits>(hn::BitCast(du, shifted))));
}

// What changes scores between the product and the softmax, per panel.
template <typename C>
struct ScoreTerms {
  C scale;                         // what turns the product into a natural score
  C softcap;                       // 0 = off
  const C* slopes = nullptr;       // [kRows], null = no ALiBi
  const C* row_offsets = nullptr;  // [kRows]: position of the row minus that of the panel's first
  C first_key = 0;                 // position of the first key minus that of the first row
  const C* additive = nullptr;     // [keys][kRows]: bias, -inf where masked; null = none
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
  for (int64_t j = 0; j < keys; ++j) {
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = scores + j * Panel::kRows + v * lanes;
      auto s = hn::Mul(hn::Load(d, at), hn::Set(d, terms.scale));
      if (terms.softcap != 0) {
        s = hn::Mul(softcap, hn::Tanh(d, hn::Div(s, softcap)));
      }
      if (terms.slopes != nullptr) {
        const auto delta = hn::Sub(hn::Set(d, terms.first_key + static_cast<C>(j)),
                                   hn::Load(d, terms.row_offsets + v * lanes));
        s = hn::MulAdd(hn::Load(d, terms.slopes + v * lanes), delta, s);
      }
      if (terms.additive != nullptr) {
        const auto term = hn::Load(d, terms.additive + j * Panel::kRows + v * lanes);
        s = hn::IfThenElse(hn::Eq(term, minus_inf), minus_inf, hn::Add(s, term));
      }
      hn::Store(s, d, at);
    }
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

  V max[kVecs];
  for (size_t v = 0; v < kVecs; ++v) max[v] = hn::Set(d, -kInfinity<C>);
  for (int64_t j = 0; j < keys; ++j) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      max[v] = hn::Max(max[v], hn::Load(d, scores + j * Panel::kRows + v * lanes));
    }
  }

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

// Weights of the scores of one key, a vector of rows each; what is constant over a panel is loaded
// once.
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

  HWY_INLINE void Load(const C* scores, V (&p)[kVecs]) const {
    const Tag<C> d;
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      const V score = hn::Load(d, scores + v * hn::Lanes(d));
      if constexpr (kDomain == Domain::kExact) {
        p[v] = hn::Mul(hn::Sub(score, base_[v]), unit_);
      } else {
        p[v] = hn::MulSub(score, unit_, base_[v]);
      }
    }
    WeightExp2<kPrecision>(d, p);
  }

 private:
  V base_[kVecs];
  V unit_;
};

// Second half: turns scores into weights, in place, and sums them in l, in the order and with the
// rounding of a product with V = 1.
template <class Panel, Domain kDomain, size_t kVecs, typename C = typename Panel::C>
HWY_NOINLINE void WeighInPlace(const PanelState<C>& state, C unit, int64_t keys, C* scores) {
  const Tag<C> d;
  using V = hn::Vec<Tag<C>>;
  const size_t lanes = hn::Lanes(d);
  const PanelWeights<Panel, kDomain, kVecs, WeightPrecision::kFull> weights(state.m, unit);
  V sum[kVecs];
  for (size_t v = 0; v < kVecs; ++v) sum[v] = hn::Load(d, state.l + v * lanes);
  for (int64_t j = 0; j < keys; ++j) {
    C* at = scores + j * Panel::kRows;
    V p[kVecs];
    weights.Load(at, p);
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      sum[v] = hn::Add(sum[v], p[v]);
      hn::Store(p[v], d, at + v * lanes);
    }
  }
  for (size_t v = 0; v < kVecs; ++v) hn::Store(sum[v], d, state.l + v * lanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_ONLINE_SOFTMAX_INL_H_
