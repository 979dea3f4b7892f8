// P and dS of some rows and keys from S and dP, with rows in the lanes: P = exp(S - shift), dS = P
// * (dP - delta), so that shift and delta are vectors that stay in registers.

#if defined(FLASHLANE_KERNELS_BACKWARD_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_WEIGHTS_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_WEIGHTS_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_WEIGHTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/exp2-inl.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Of one panel; shift, factor and delta [kRows], the others [keys][kRows].
template <typename C>
struct GradientPanel {
  const C* shift;   // in the domain's unit
  const C* factor;  // of P and dS; null = 1
  const C* delta;
  const C* slope;  // d score / d (scale * q.k): of softcap; null = 1
  C unit;          // exp2(unit * S - shift); of the exact domain, exp2(unit * (S - shift))
  C* p;            // S, then P
  C* ds;           // dP, then dS; null where it is not wanted
};

// values[key][row] *= factor[row].
template <class Panel, size_t kVecs, typename C = typename Panel::C>
HWY_NOINLINE void ScaleRows(const C* factor, int64_t keys, C* values) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  for (int64_t j = 0; j < keys; ++j) {
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = values + j * Panel::kRows + v * lanes;
      hn::Store(hn::Mul(hn::Load(d, at), hn::Load(d, factor + v * lanes)), d, at);
    }
  }
}

// A hidden pair (S = -inf) has P = 0 and dS = 0, whatever dP is.
// `kFolded`: the fast domain's unit is 1.
template <class Panel, Domain kDomain, bool kFolded, size_t kVecs, typename C = typename Panel::C>
HWY_NOINLINE void WeighGradients(const GradientPanel<C>& panel, int64_t keys) {
  const Tag<C> d;
  using V = hn::Vec<Tag<C>>;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kKeys = kVecs < kVectorsInLockStep ? kVectorsInLockStep / kVecs : 1;
  const V minus_inf = hn::Set(d, -kInfinity<C>);
  const V unit = hn::Set(d, panel.unit);
  V shift[kVecs], delta[kVecs];
  HWY_UNROLL(4)
  for (size_t v = 0; v < kVecs; ++v) {
    shift[v] = hn::Load(d, panel.shift + v * lanes);
    delta[v] = hn::Load(d, panel.delta + v * lanes);
  }
  const auto weigh = [&](auto num_keys, int64_t j) HWY_ATTR {
    constexpr size_t kCount = num_keys() * kVecs;
    V x[kCount];
    hn::Mask<Tag<C>> hidden[kCount];
    HWY_UNROLL(8)
    for (size_t i = 0; i < kCount; ++i) {
      const int64_t at = (j + static_cast<int64_t>(i / kVecs)) * Panel::kRows +
                         static_cast<int64_t>(i % kVecs * lanes);
      const V s = hn::Load(d, panel.p + at);
      hidden[i] = hn::Eq(s, minus_inf);
      if constexpr (kDomain == Domain::kExact) {
        x[i] = hn::Mul(hn::Sub(s, shift[i % kVecs]), unit);
      } else if constexpr (kFolded) {
        x[i] = hn::Sub(s, shift[i % kVecs]);
      } else {
        x[i] = hn::MulSub(s, unit, shift[i % kVecs]);
      }
    }
    WeightExp2(d, x);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kCount; ++i) {
      const int64_t at = (j + static_cast<int64_t>(i / kVecs)) * Panel::kRows +
                         static_cast<int64_t>(i % kVecs * lanes);
      hn::Store(hn::IfThenZeroElse(hidden[i], x[i]), d, panel.p + at);
      if (panel.ds == nullptr) continue;
      V ds = hn::Mul(x[i], hn::Sub(hn::Load(d, panel.ds + at), delta[i % kVecs]));
      if (panel.slope != nullptr) ds = hn::Mul(ds, hn::Load(d, panel.slope + at));
      hn::Store(hn::IfThenZeroElse(hidden[i], ds), d, panel.ds + at);
    }
  };
  int64_t j = 0;
  for (; j + static_cast<int64_t>(kKeys) <= keys; j += static_cast<int64_t>(kKeys)) {
    weigh(std::integral_constant<size_t, kKeys>(), j);
  }
  for (; j < keys; ++j) weigh(std::integral_constant<size_t, 1>(), j);
  if (panel.factor == nullptr) return;
  ScaleRows<Panel, kVecs>(panel.factor, keys, panel.p);
  if (panel.ds != nullptr) ScaleRows<Panel, kVecs>(panel.factor, keys, panel.ds);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_WEIGHTS_INL_H_
