// Which Highway targets the vector kernels are compiled for. Include before any Highway header.
#ifndef FLASHLANE_KERNELS_SIMD_CONFIG_H_
#define FLASHLANE_KERNELS_SIMD_CONFIG_H_

// HWY_SSSE3, HWY_SSE4: gain nothing over the SSE2 baseline here, and each target costs compile
// time. HWY_AVX3_DL: differs from HWY_AVX3 by VNNI, VBMI and BITALG only; no kernel uses them.
// HWY_AVX10_2: no machine to prove it on; such machines run HWY_AVX3_SPR. Spelled by its bit: the
//   name came with Highway 1.3.
// HWY_ALL_SVE, HWY_RVV: vectors of unknown size cannot be elements of arrays, and the register
//   tiles are arrays of vectors. Such machines run NEON or the baseline.
// FLASHLANE_DISABLED_TARGETS: those that whoever builds does without (a CMake variable).
#ifndef FLASHLANE_DISABLED_TARGETS
#define FLASHLANE_DISABLED_TARGETS 0
#endif
#define FLASHLANE_HWY_AVX10_2 (1LL << 3)
#define HWY_DISABLED_TARGETS                                                            \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | FLASHLANE_HWY_AVX10_2 | HWY_ALL_SVE | HWY_RVV | \
   FLASHLANE_DISABLED_TARGETS)

#include <cstddef>
#include <cstdint>

namespace flashlane::kernels {
// Row of Highway's dispatch tables for one target bit; a table of a single target has one row.
std::size_t DispatchIndex(std::int64_t target, std::size_t table_size);
}  // namespace flashlane::kernels

// The function exported as FUNC for one given target, where HWY_DYNAMIC_DISPATCH would take the
// best or a process-wide choice: calls name their own target.
#define FLASHLANE_DISPATCH(FUNC, TARGET) \
  (HWY_DISPATCH_TABLE(                   \
      FUNC)[::flashlane::kernels::DispatchIndex(TARGET, std::size(HWY_DISPATCH_TABLE(FUNC)))])

#endif  // FLASHLANE_KERNELS_SIMD_CONFIG_H_
