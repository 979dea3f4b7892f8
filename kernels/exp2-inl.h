// 2^x of the softmax: scores relative to (nearly) their maximum, so x is mostly <= 0 and at most
// the rescale threshold.
//
// What holds on every target, in exp2_test exhaustively for f32:
//   x from -126 (f64: -1022) to 8   the errors below; 2^0 is exactly 1
//   lower                           0 or below the smallest normal number, never negative
//   from -150 (-1075) down, -inf    exactly 0
//   NaN                             NaN
// Beyond 8 the errors hold up to 127 (1023).
//
// The vectors of one call run in lock step. A core's scheduler holds about 64 waiting operations
// and a single chain is 15 of them, 55 cycles long: one vector after the other leaves it waiting
// for latency (Zen 4, AVX2, f64 by shifting: 10.4 cycles per vector one by one, 9.0 by four).
//
// Every polynomial is 1 + c1 f + c2 f^2 + ..., minimax in relative error under that constraint
// (Remez exchange in 36 digits on ((2^f - 1) / f - q(f)) f 2^-f, then rounded to the type).

#if defined(FLASHLANE_KERNELS_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_EXP2_INL_H_
#undef FLASHLANE_KERNELS_EXP2_INL_H_
#else
#define FLASHLANE_KERNELS_EXP2_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/instruction_set-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

enum class WeightPrecision {
  kFull,
  kHalf,  // f32 that will be rounded to bf16; f64 knows no such use and computes as kFull
};

// Largest error of kFull in units of the last place. Found: f32 1.43 by scaling, 0.96 by
// block, 1.23 by shifting without FMA; f64 1.11 by table, 1.35 by block, 1.21 by shifting without
// FMA.
inline constexpr double kExp2MaxUlps = 1.5;
// Largest relative error of kHalf: 6.4e-5 rms beside the 1.66e-3 of rounding to bf16.
inline constexpr double kHalfExp2MaxRelative = 1.02e-4;

// ---- polynomials, by interval of f

// f in [-1/2, 1/2].
template <typename C, WeightPrecision kPrecision>
struct Exp2AroundZero;

// 2.0e-9, a thirtieth of half an ulp. Degree 5 would be 9.1e-8.
template <>
struct Exp2AroundZero<float, WeightPrecision::kFull> {
  static constexpr float kC[] = {1.0f,           0.693147182f,  0.240226477f,   0.0555033237f,
                                 0.00961843692f, 0.0013398875f, 0.000153533634f};
};
// 1.0e-4. Degree 2 (2.0e-3) would be as large as the rounding to come; 4 gains nothing.
template <>
struct Exp2AroundZero<float, WeightPrecision::kHalf> {
  static constexpr float kC[] = {1.0f, 0.693282902f, 0.242210954f, 0.0550089292f};
};
// 3.4e-18, a thirtieth of half an ulp. Degree 10 (2.2e-16) would make it 2.5 ulps.
template <WeightPrecision kPrecision>
struct Exp2AroundZero<double, kPrecision> {
  static constexpr double kC[] = {1.0,
                                  0.69314718055994529,
                                  0.2402265069591013,
                                  0.055504108664820084,
                                  0.0096181291075941189,
                                  0.0013333558146774568,
                                  0.00015403530457112853,
                                  1.5252733493178487e-5,
                                  1.3215435281968927e-6,
                                  1.0178199550542055e-7,
                                  7.0737833017051656e-9,
                                  4.4347744879883704e-10};
};

// f in [0, 1).
template <WeightPrecision kPrecision>
struct Exp2OfFraction;
// 2.0e-9.
template <>
struct Exp2OfFraction<WeightPrecision::kFull> {
  static constexpr float kC[] = {1.0f,           0.6931470633f,   0.2402293086f,
                                 0.05548527837f, 0.009675452486f, 0.001246783882f,
                                 0.000216129396f};
};
// 8.6e-5.
template <>
struct Exp2OfFraction<WeightPrecision::kHalf> {
  static constexpr float kC[] = {1.0f, 0.6951167583f, 0.2276449949f, 0.07706704736f};
};

// f within half a step of the numbers that LookUpInBlock chooses from, 2^(i/2) or 2^(i/4): kBits of
// i. kTable: their bits less i at the place where k is added.
template <typename C>
struct Exp2InBlock;
// [-1/8, 1/8]: 5.2e-9.
template <>
struct Exp2InBlock<float> {
  static constexpr int kBits = 2;
  alignas(16) static constexpr uint32_t kTable[] = {0x3F800000, 0x3F9837F0 - (1 << 21),
                                                    0x3FB504F3 - (2 << 21), 0x3FD744FD - (3 << 21)};
  static constexpr float kC[] = {1.0f, 0.693147063f, 0.240226567f, 0.0555299558f, 0.00961618312f};
};
// [-1/4, 1/4]: 1.5e-17.
template <>
struct Exp2InBlock<double> {
  static constexpr int kBits = 1;
  alignas(16) static constexpr uint64_t kTable[] = {0x3FF0000000000000,
                                                    0x3FF6A09E667F3BCD - (uint64_t{1} << 51)};
  static constexpr double kC[] = {1.0,
                                  0.69314718055994529,
                                  0.24022650695909326,
                                  0.055504108664835697,
                                  0.0096181291087914858,
                                  0.0013333558138253641,
                                  0.00015403524762784625,
                                  1.5252749873318011e-5,
                                  1.3226224527785253e-6,
                                  1.0170619689587592e-7};
};

// f in [0, 1/8): 2.6e-18.
inline constexpr double kExp2OfEighth[] = {1.0,
                                           0.693147180559947063,
                                           0.240226506958750835,
                                           0.0555041086891008215,
                                           0.00961812831008938829,
                                           0.00133336980342024466,
                                           0.000153900754060485819,
                                           0.0000159205538955230723};
// 2^(i/8).
inline constexpr double kPowersOfEighths[] = {1.0,
                                              1.0905077326652576592,
                                              1.1892071150027210667,
                                              1.2968395546510096659,
                                              1.4142135623730950488,
                                              1.5422108254079408236,
                                              1.6817928305074290861,
                                              1.8340080864093424635};

// ---- constants of the types

// kRound: adding it to x leaves round(x) in the low bits of the sum, as 1.5 times the number whose
// last bit is worth 1.
template <typename C>
struct Exp2Type;
template <>
struct Exp2Type<float> {
  static constexpr int kMantissaBits = 23;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  static constexpr float kBias = 127.0f;
};
template <>
struct Exp2Type<double> {
  static constexpr int kMantissaBits = 52;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kBias = 1023.0;
};

// ---- steps

// y = sum c[k] f^(k - kFirst) over k >= kFirst.
template <size_t kFirst = 0, class D, class V, size_t kVecs, size_t kTerms,
          typename C = hn::TFromD<D>>
HWY_INLINE void EvaluatePolynomial(D d, const C (&c)[kTerms], const V (&f)[kVecs], V (&y)[kVecs]) {
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) y[i] = hn::Set(d, c[kTerms - 1]);
  HWY_UNROLL(16)
  for (size_t k = kTerms - 1; k > kFirst; --k) {
    HWY_UNROLL(8)
    for (size_t i = 0; i < kVecs; ++i) y[i] = hn::MulAdd(y[i], f[i], hn::Set(d, c[k - 1]));
  }
}

// x bounded from below, shifted = x + magic, f = x - (shifted - magic): what rounding left. NaN
// stays NaN.
template <class D, class V, size_t kVecs, typename C = hn::TFromD<D>>
HWY_INLINE void ReduceByShifting(D d, C magic, const V (&x)[kVecs], V (&shifted)[kVecs],
                                 V (&f)[kVecs]) {
  const V vmagic = hn::Set(d, magic);
  V bounded[kVecs];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) {
    bounded[i] = MaxOrNan(hn::Set(d, -Exp2Type<C>::kBias), x[i]);
  }
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) shifted[i] = hn::Add(bounded[i], vmagic);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) f[i] = hn::Sub(shifted[i], vmagic);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) f[i] = hn::Sub(bounded[i], f[i]);
}

// ---- 2^x by what a target has

// With the exponent's bias in the magic number the low bits of `shifted` are those of 2^round(x);
// at -bias all are 0, and so is that number. It is multiplied, not added to the bits of y, so that
// NaN stays NaN.
template <WeightPrecision kPrecision, class D, class V, size_t kVecs>
HWY_INLINE void Exp2ByShifting(D d, V (&x)[kVecs]) {
  using C = hn::TFromD<D>;
  using Type = Exp2Type<C>;
  const hn::RebindToUnsigned<D> du;
  V shifted[kVecs], f[kVecs], y[kVecs];
  ReduceByShifting(d, Type::kRound + Type::kBias, x, shifted, f);
  EvaluatePolynomial(d, Exp2AroundZero<C, kPrecision>::kC, f, y);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) {
    const auto power = hn::ShiftLeft<Type::kMantissaBits>(hn::BitCast(du, shifted[i]));
    x[i] = hn::Mul(y[i], hn::BitCast(d, power));
  }
}

// 2^(k / 2^kBits), k rounded from x, from a table in a register: k's low bits choose the entry, and
// adding k to its bits, so many places below the exponent, does the rest. Zen 4, AVX2, four
// vectors: f32 4.9 cycles per vector (degree 4) where shifting takes 5.9; f64 8.4 and 9.0. Eight
// entries of f32 across 128 bits and degree 3 gain nothing more. For kHalf shifting is best.
template <class D, class V, size_t kVecs, typename C = hn::TFromD<D>>
HWY_INLINE void Exp2ByBlock(D d, V (&x)[kVecs]) {
  using Type = Exp2Type<C>;
  using Block = Exp2InBlock<C>;
  const hn::RebindToUnsigned<D> du;
  const V table = hn::BitCast(d, hn::LoadDup128(du, Block::kTable));
  V shifted[kVecs], f[kVecs], y[kVecs], power[kVecs];
  ReduceByShifting(d, Type::kRound / (1 << Block::kBits), x, shifted, f);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) {
    const auto k = hn::BitCast(du, shifted[i]);
    const auto selector = sizeof(C) == 8 ? hn::Add(k, k) : k;  // bit 1 selects from f64
    const auto base = hn::BitCast(du, LookUpInBlock(table, selector));
    power[i] = hn::BitCast(d, hn::Add(base, hn::ShiftLeft<Type::kMantissaBits - Block::kBits>(k)));
  }
  EvaluatePolynomial<1>(d, Block::kC, f, y);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) y[i] = hn::Mul(y[i], f[i]);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) x[i] = hn::MulAdd(power[i], y[i], power[i]);
}

// f32 with vreduce and vscalef: nothing to bound, nothing to shift. Zen 4, four vectors: 7.0 cycles
// per vector where shifting takes 7.8 (kHalf: 6.1, 7.3), 0.5 more where powers are flushed. Not
// measured anew on Intel: an earlier prototype gained one to two points of the whole kernel by it
// on Sapphire Rapids.
template <WeightPrecision kPrecision, class D, class V, size_t kVecs>
HWY_INLINE void Exp2ByScaling(D d, V (&x)[kVecs]) {
  V f[kVecs], y[kVecs];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) f[i] = FractionOfOne(x[i]);
  EvaluatePolynomial(d, Exp2OfFraction<kPrecision>::kC, f, y);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) x[i] = ScaleByPower(y[i], x[i]);
}

// The same for f64, with 2^(i/8) from a register, so that degree 7 does: 9.2 cycles per vector
// where shifting takes 13.1. Sixteen entries and degree 6 take 9.4.
template <class D, class V, size_t kVecs>
HWY_INLINE void Exp2ByTable(D d, V (&x)[kVecs]) {
  const V table = hn::LoadU(d, kPowersOfEighths);
  V f[kVecs], y[kVecs], power[kVecs];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) f[i] = FractionOfEighth(x[i]);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) power[i] = LookUpEighth(table, x[i]);
  EvaluatePolynomial<1>(d, kExp2OfEighth, f, y);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) y[i] = hn::Mul(y[i], f[i]);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) y[i] = hn::MulAdd(power[i], y[i], power[i]);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kVecs; ++i) x[i] = ScaleByPower(y[i], x[i]);
}

// x[i] = 2^x[i], in lock step. Four vectors are best on Zen 4, on AVX-512 as on AVX2; of f32 on
// AVX-512 two do as well.
template <WeightPrecision kPrecision = WeightPrecision::kFull, class D, class V, size_t kVecs>
HWY_INLINE void WeightExp2(D d, V (&x)[kVecs]) {
  constexpr bool kF64 = sizeof(hn::TFromD<D>) == 8;
  if constexpr (kHasScaleByPower && kF64) {
    Exp2ByTable(d, x);
  } else if constexpr (kHasScaleByPower) {
    Exp2ByScaling<kPrecision>(d, x);
  } else if constexpr (kHasLookUpInBlock && (kF64 || kPrecision == WeightPrecision::kFull)) {
    Exp2ByBlock(d, x);
  } else {
    Exp2ByShifting<kPrecision>(d, x);
  }
}

template <WeightPrecision kPrecision = WeightPrecision::kFull, class D, class V = hn::Vec<D>>
HWY_INLINE V WeightExp2(D d, V x) {
  V vectors[1] = {x};
  WeightExp2<kPrecision>(d, vectors);
  return vectors[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_EXP2_INL_H_
