// tanh of softcap. What holds on every target, in tanh_test exhaustively for f32: the error below,
// relative, so that small scores keep their precision; odd; +-1 for +-inf, never beyond; NaN stays
// NaN.
//
// Zen 4, cycles per vector, four in lock step: f32 9.1 (AVX2) and 13.3 (AVX-512), f64 12.4
// and 18.6. Highway's Tanh with a division before it takes 26 and 39, 34 and 46; the division alone
// 4 to 10.

#if defined(FLASHLANE_KERNELS_TANH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_TANH_INL_H_
#undef FLASHLANE_KERNELS_TANH_INL_H_
#else
#define FLASHLANE_KERNELS_TANH_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Largest error in units of the last place, with and without FMA. Found: f32 4.1 (near 0.06), f64
// 3.7.
inline constexpr double kTanhMaxUlps = 4.5;

// e / (e + 2), e = 2^z - 1, z = 2 log2(e) |x|. With z = n + f and 2^f = 1 + y, e is
// (2^n - 1) + 2^n y: y itself near 0, and nothing cancels elsewhere. A rational approximation
// (degrees 4 and 4 in x^2, f32) is a fifth faster on AVX2 and as fast on AVX-512, but errs by 5.3
// ulps just where scores are near the cap; this one by at most 1.5 there.
//
// x[i] = tanh(x[i]), in lock step for the same reason as WeightExp2.
template <class D, class V, size_t kVecs>
HWY_INLINE void Tanh(D d, V (&x)[kVecs]) {
  using C = hn::TFromD<D>;
  using Type = Exp2Type<C>;
  constexpr C kTwoLog2E = static_cast<C>(2.885390081777926814719849);
  // There tanh has been 1 for long, and e is far from overflow.
  constexpr C kLimit = 64;
  const hn::RebindToUnsigned<D> du;
  const V one = hn::Set(d, C{1});
  const V two = hn::Set(d, C{2});
  V z[kVecs], shifted[kVecs], f[kVecs], y[kVecs];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) {
    z[i] = MinOrNan(hn::Set(d, kLimit), hn::Mul(hn::Abs(x[i]), hn::Set(d, kTwoLog2E)));
  }
  ReduceByShifting(d, Type::kRound + Type::kBias, z, shifted, f);
  EvaluatePolynomial<1>(d, Exp2AroundZero<C, WeightPrecision::kFull>::kC, f, y);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) {
    const auto bits = hn::ShiftLeft<Type::kMantissaBits>(hn::BitCast(du, shifted[i]));
    const V power = hn::BitCast(d, bits);
    const V e = hn::MulAdd(power, hn::Mul(y[i], f[i]), hn::Sub(power, one));
    x[i] = hn::CopySign(hn::Div(e, hn::Add(e, two)), x[i]);
  }
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  V vectors[1] = {x};
  Tanh(d, vectors);
  return vectors[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_TANH_INL_H_
