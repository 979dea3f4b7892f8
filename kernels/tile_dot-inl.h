// Products of bf16 pairs, summed in f32, by the vector instruction for it (vdpbf16ps): a register
// tile like that of tile_matmul-inl.h, with two steps of depth per instruction.
//
// The instruction rounds to nearest even and treats denormals as zero, whatever the floating-point
// environment says.

#if defined(FLASHLANE_KERNELS_TILE_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_TILE_DOT_INL_H_
#undef FLASHLANE_KERNELS_TILE_DOT_INL_H_
#else
#define FLASHLANE_KERNELS_TILE_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/block_sizes.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/tile_pairs-inl.h"

#if FLASHLANE_HAS_PAIRS

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct DotTiles {
  static constexpr const char* kName = "bf16 dot";
  using Panel = FmaPanel<float>;
  static constexpr int64_t kDepthGranule = 2;
  static constexpr int64_t kRowGranule = 1;
  static constexpr int64_t kBackwardKeys = 6;  // whole register tiles, and whole pairs
  static FlashBlocks Blocks(int64_t head_dim, int64_t head_dim_v) {
    return ChooseDotBlocks(head_dim, head_dim_v, Panel::kRows);
  }
  struct Session {};  // what a tile must hold while it multiplies: nothing

  // All `rows` rows of the product.
  template <size_t kVecs>
  static HWY_NOINLINE void Multiply(const PairProduct& p, int64_t rows, Accumulate accumulate) {
    ForRowTiles(rows, [&](int64_t m, auto tile_rows)
                          HWY_ATTR { MultiplyTile<tile_rows(), kVecs>(p, m, accumulate); });
  }

 private:
  template <size_t kRows, size_t kVecs>
  static HWY_INLINE void MultiplyTile(const PairProduct& p, int64_t m, Accumulate accumulate) {
    const hn::ScalableTag<float> d;
    const hn::ScalableTag<uint32_t> du;
    using V = hn::Vec<decltype(d)>;
    const size_t lanes = hn::Lanes(d);
    float* HWY_RESTRICT c = p.c + m * Panel::kRows;
    V acc[kRows][kVecs];
    HWY_UNROLL(kTileRows)
    for (size_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) {
        const float* at = c + static_cast<int64_t>(r) * Panel::kRows + v * lanes;
        acc[r][v] = accumulate == Accumulate::kNothing ? hn::Zero(d)
                    : accumulate == Accumulate::kOld
                        ? hn::Load(d, at)
                        : hn::Mul(hn::Load(d, at), hn::Load(d, p.scale + v * lanes));
      }
    }
    const uint32_t* HWY_RESTRICT a = p.a + m * p.a_stride;
    const uint32_t* HWY_RESTRICT b = p.b;
    for (int64_t t = 0; t < p.depth; ++t, b += Panel::kRows, ++a) {
      hn::Vec<decltype(du)> bv[kVecs];
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) bv[v] = hn::Load(du, b + v * lanes);
      HWY_UNROLL(kTileRows)
      for (size_t r = 0; r < kRows; ++r) {
        const auto av = LoadPair(a + static_cast<int64_t>(r) * p.a_stride);
        HWY_UNROLL(4)
        for (size_t v = 0; v < kVecs; ++v) acc[r][v] = AddPairProducts(bv[v], av, acc[r][v]);
      }
    }
    HWY_UNROLL(kTileRows)
    for (size_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) {
        hn::Store(acc[r][v], d, c + static_cast<int64_t>(r) * Panel::kRows + v * lanes);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS

#endif  // FLASHLANE_KERNELS_TILE_DOT_INL_H_
