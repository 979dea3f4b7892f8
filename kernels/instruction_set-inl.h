// What instruction sets have. With tile_dot-inl.h and tile_amx-inl.h, which multiply pairs of bf16,
// the only files of the kernels where an instruction set differs.

#if defined(FLASHLANE_KERNELS_INSTRUCTION_SET_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_INSTRUCTION_SET_INL_H_
#undef FLASHLANE_KERNELS_INSTRUCTION_SET_INL_H_
#else
#define FLASHLANE_KERNELS_INSTRUCTION_SET_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename C>
using Tag = hn::ScalableTag<C>;

// Architectural vector registers.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr size_t kNumRegisters = 32;
#else
inline constexpr size_t kNumRegisters = 16;
#endif

// Conversion instructions between f16 and f32. Where Highway emulates them, infinities and NaN come
// out wrong.
#if HWY_ARCH_ARM_A64 || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)
inline constexpr bool kHasF16Conversion = true;
#else
inline constexpr bool kHasF16Conversion = false;
#endif

// An instruction that multiplies pairs of bf16 and adds both products to an f32 sum, and whether it
// does more of them than multiply-adds of f32 could: Zen 4 issues it at the rate of f32 FMA (236
// against 118 GFLOP/s measured), Sapphire Rapids at half of it (78 against 157 GFLOP/s measured);
// Arm's cores issue bfdot at the rate of fmla (their optimization guides; not measured here).
#undef FLASHLANE_HAS_PAIRS
// On Arm Highway 1.2 and 1.3 also say so of the target that is compiled after NEON_BF16.
#if HWY_NATIVE_DOT_BF16 && (!HWY_ARCH_ARM_A64 || HWY_TARGET == HWY_NEON_BF16)
#define FLASHLANE_HAS_PAIRS 1
#else
#define FLASHLANE_HAS_PAIRS 0
#endif
// On other targets nobody has measured it.
inline constexpr bool kPairsAreFast =
    FLASHLANE_HAS_PAIRS && (HWY_TARGET == HWY_AVX3_ZEN4 || HWY_ARCH_ARM_A64);
// Instructions for 2^x on whole vectors.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
inline constexpr bool kHasScaleByPower = true;
// Zen 4 multiplies denormal numbers at full speed (measured); Intel's cores take a microcode
// assist of a hundred cycles and more, so there powers below the normal numbers become 0.
inline constexpr bool kFlushesPowers = HWY_TARGET != HWY_AVX3_ZEN4;

// x - floor(x), which may round to 1; 0 for -inf.
HWY_INLINE hn::Vec512<float> FractionOfOne(hn::Vec512<float> x) {
  return {_mm512_maskz_reduce_ps(0xFFFF, x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
// x - floor(8 x) / 8, which may round to 1/8; 0 for -inf.
HWY_INLINE hn::Vec512<double> FractionOfEighth(hn::Vec512<double> x) {
  return {_mm512_maskz_reduce_pd(0xFF, x.raw, 3 << 4 | _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
// table[floor(8 x) mod 8]; any of them where |x| >= 2^48.
HWY_INLINE hn::Vec512<double> LookUpEighth(hn::Vec512<double> table, hn::Vec512<double> x) {
  // 1.5 * 2^49: the last bit of the sum is worth 1/8.
  const __m512d eighths = _mm512_add_round_pd(x.raw, _mm512_set1_pd(844424930131968.0),
                                              _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return {_mm512_maskz_permutexvar_pd(0xFF, _mm512_castpd_si512(eighths), table.raw)};
}
// y * 2^floor(x): 0 for x = -inf, NaN for NaN.
HWY_INLINE hn::Vec512<float> ScaleByPower(hn::Vec512<float> y, hn::Vec512<float> x) {
  if constexpr (!kFlushesPowers) return {_mm512_maskz_scalef_ps(0xFFFF, y.raw, x.raw)};
  const __mmask16 keep = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(keep, y.raw, x.raw)};
}
HWY_INLINE hn::Vec512<double> ScaleByPower(hn::Vec512<double> y, hn::Vec512<double> x) {
  if constexpr (!kFlushesPowers) return {_mm512_maskz_scalef_pd(0xFF, y.raw, x.raw)};
  const __mmask8 keep = _mm512_cmp_pd_mask(x.raw, _mm512_set1_pd(-1022.0), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_pd(keep, y.raw, x.raw)};
}
#else
inline constexpr bool kHasScaleByPower = false;
#endif
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
inline constexpr bool kHasLookUpInBlock = true;
// Per lane one of the numbers in its 128 bits of `table`: of f32 the one that bits 0 and 1 name, of
// f64 the one that bit 1 names.
HWY_INLINE hn::Vec256<float> LookUpInBlock(hn::Vec256<float> table, hn::Vec256<uint32_t> bits) {
  return {_mm256_permutevar_ps(table.raw, bits.raw)};
}
HWY_INLINE hn::Vec256<double> LookUpInBlock(hn::Vec256<double> table, hn::Vec256<uint64_t> bits) {
  return {_mm256_permutevar_pd(table.raw, bits.raw)};
}
#else
inline constexpr bool kHasLookUpInBlock = false;
#endif

// The larger and the smaller of a bound and x; NaN where x is. x86 returns the second operand if
// one is NaN; what Highway takes on Arm (fmaxnm, fminnm) returns the one that is a number.
#if HWY_ARCH_ARM_A64
HWY_INLINE hn::Vec128<float> MaxOrNan(hn::Vec128<float> bound, hn::Vec128<float> x) {
  return hn::Vec128<float>(vmaxq_f32(bound.raw, x.raw));
}
HWY_INLINE hn::Vec128<double> MaxOrNan(hn::Vec128<double> bound, hn::Vec128<double> x) {
  return hn::Vec128<double>(vmaxq_f64(bound.raw, x.raw));
}
HWY_INLINE hn::Vec128<float> MinOrNan(hn::Vec128<float> bound, hn::Vec128<float> x) {
  return hn::Vec128<float>(vminq_f32(bound.raw, x.raw));
}
HWY_INLINE hn::Vec128<double> MinOrNan(hn::Vec128<double> bound, hn::Vec128<double> x) {
  return hn::Vec128<double>(vminq_f64(bound.raw, x.raw));
}
#else
template <class V>
HWY_INLINE V MaxOrNan(V bound, V x) {
  return hn::Max(bound, x);
}
template <class V>
HWY_INLINE V MinOrNan(V bound, V x) {
  return hn::Min(bound, x);
}
#endif

// *from in every lane, for the left operand of a register tile.
#if HWY_ARCH_ARM_A64
// Multiply-adds take one lane of a register as an operand, so that a scalar load is all it takes.
// Compilers would unite it with the broadcast to ld1r, which needs a slot of the pipes that
// multiply, too: 6 beside 24 per step of depth. They can not unite what they do not see through.
template <class D, typename C = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadBroadcast(D d, const C* from) {
  C lane = *from;
  asm("" : "+w"(lane));
  return hn::Set(d, lane);
}
#else
template <class D>
HWY_INLINE hn::Vec<D> LoadBroadcast(D d, const hn::TFromD<D>* from) {
  return hn::Set(d, *from);
}
#endif

#if FLASHLANE_HAS_PAIRS
// One pair of the left operand of a register tile, and sum + its products with `pairs`.
#if HWY_ARCH_ARM_A64
// As LoadBroadcast. Inline assembly, because clang 19 does not find the form
// of the instruction that multiplies by one lane.
HWY_INLINE float LoadPair(const uint32_t* from) {
  float lane;
  std::memcpy(&lane, from, sizeof(lane));
  asm("" : "+w"(lane));
  return lane;
}
HWY_INLINE hn::Vec128<float> AddPairProducts(hn::Vec128<uint32_t> pairs, float lane,
                                             hn::Vec128<float> sum) {
  asm("bfdot %0.4s, %1.8h, %2.2h[0]" : "+w"(sum.raw) : "w"(pairs.raw), "w"(lane));
  return sum;
}
#else
HWY_INLINE hn::Vec<hn::ScalableTag<uint32_t>> LoadPair(const uint32_t* from) {
  return hn::Set(hn::ScalableTag<uint32_t>(), *from);
}
template <class V, class VU>
HWY_INLINE V AddPairProducts(VU pairs, VU a, V sum) {
  const hn::DFromV<V> d;
  const hn::Repartition<hwy::bfloat16_t, decltype(d)> d16;
  V none = hn::Zero(d);  // the instruction adds both products of a pair to one sum
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, a), hn::BitCast(d16, pairs), sum, none);
}
#endif
#endif

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_INSTRUCTION_SET_INL_H_
