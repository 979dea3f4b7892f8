// Which Highway targets the vector kernels are compiled for. Include before any Highway header.
#ifndef FLASHLANE_KERNELS_SIMD_CONFIG_H_
#define FLASHLANE_KERNELS_SIMD_CONFIG_H_

// HWY_SSSE3, HWY_SSE4: no attention kernel gains from them over the SSE2 baseline, and machines with
//   AVX2 are what is sold; each target costs compile time.
// HWY_AVX3_DL: differs from HWY_AVX3 by VNNI, VBMI and BITALG only; no kernel uses them.
// HWY_AVX10_2 and later: no machine to prove them on yet; such machines run HWY_AVX3_SPR.
// HWY_ALL_SVE, HWY_RVV: their vectors are sizeless types, which cannot be array elements; the register
//   tiles are arrays of vectors. Such machines run NEON or the baseline.
//   Spelled by its bit: the name came with Highway 1.3.
#define FLASHLANE_HWY_AVX10_2 (1LL << 3)
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | FLASHLANE_HWY_AVX10_2 | HWY_ALL_SVE | HWY_RVV)

#endif  // FLASHLANE_KERNELS_SIMD_CONFIG_H_
