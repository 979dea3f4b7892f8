// Products of bf16 pairs, summed in f32, by AMX tiles: 16 x 16 sums per instruction and 32 steps of
// depth. Source: Intel SDM volume 1, chapter 18, and the instructions' pseudo-code in volume 2.
//
// Cost per step of 2 x 2 tiles: 4 tile loads of 16 cache lines for 4 products of 16 cycles, so that
// the loads (2 lines per cycle from L1) take half of the products' time.
//
// Inline assembly throughout: g++ 12.2 drops stores to the operand of _tile_loadconfig, and its
// _tile_loadd does not say that it reads memory. The compiler itself never uses tile registers, so
// no clobbers are needed for them.

#if defined(FLASHLANE_KERNELS_TILE_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_TILE_AMX_INL_H_
#undef FLASHLANE_KERNELS_TILE_AMX_INL_H_
#else
#define FLASHLANE_KERNELS_TILE_AMX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/amx_config.h"
#include "kernels/block_sizes.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/tile_pairs-inl.h"

#if FLASHLANE_HAS_PAIRS && FLASHLANE_HAS_AMX

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One instruction each; tile registers are numbered 0 to 7.
template <int kTile>
HWY_INLINE void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
HWY_INLINE void LoadTile(const void* from, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
template <int kTile>
HWY_INLINE void StoreTile(void* to, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
// sum += left * right
template <int kSum, int kLeft, int kRight>
HWY_INLINE void MultiplyTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
}

struct AmxTiles {
  static constexpr const char* kName = "amx";
  // Two tiles of query rows beside two of keys or columns: four sums, so that a product's latency
  // (52 cycles) hides behind the others (16 cycles each), and two operands of each side.
  using Panel = PanelOf<float, 2>;
  static constexpr int64_t kTile = 16;  // rows of a tile, and words of a row
  static constexpr int64_t kDepthGranule = 2 * kTile;
  static constexpr int64_t kRowGranule = kTile;
  static constexpr int64_t kBackwardKeys = kDepthGranule;
  static_assert(Panel::kLanes == kTile);

  static FlashBlocks Blocks(int64_t head_dim, int64_t head_dim_v) {
    return ChooseAmxBlocks(head_dim, head_dim_v, Panel::kRows);
  }

  // Tile registers are configured while it lives, and free for others afterwards. Everything is
  // padded to whole tiles, so that one configuration serves all shapes.
  class Session {
   public:
    Session() {
      static constexpr AmxConfig kWholeTiles = AmxConfig::WholeTiles();
      asm volatile("ldtilecfg %0" ::"m"(kWholeTiles) : "memory");
    }
    ~Session() { asm volatile("tilerelease" ::: "memory"); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  // All `rows` rows of the product; rows and depth are whole tiles.
  template <size_t kVecs>
  static HWY_NOINLINE void Multiply(const PairProduct& p, int64_t rows, Accumulate accumulate) {
    if (accumulate == Accumulate::kScaled) Scale<kVecs>(p, rows);
    int64_t m = 0;
    for (; m + 2 * kTile <= rows; m += 2 * kTile) MultiplyTile<2, kVecs>(p, m, accumulate);
    if (m < rows) MultiplyTile<1, kVecs>(p, m, accumulate);
  }

 private:
  template <size_t kVecs>
  static void Scale(const PairProduct& p, int64_t rows) {
    const hn::ScalableTag<float> d;
    for (int64_t m = 0; m < rows; ++m) {
      for (size_t v = 0; v < kVecs; ++v) {
        float* at = p.c + m * Panel::kRows + v * hn::Lanes(d);
        hn::Store(hn::Mul(hn::Load(d, at), hn::Load(d, p.scale + v * hn::Lanes(d))), d, at);
      }
    }
  }

  // Rows [m, m + kRowTiles * kTile). Registers: sums 0 and 1 (first rows), 2 and 3 (second), left
  // operands 4 and 5, right operands 6 and 7.
  template <size_t kRowTiles, size_t kVecs>
  static HWY_INLINE void MultiplyTile(const PairProduct& p, int64_t m, Accumulate accumulate) {
    constexpr int64_t kPanelBytes = Panel::kRows * static_cast<int64_t>(sizeof(float));
    float* c = p.c + m * Panel::kRows;
    float* c_second = c + kTile * Panel::kRows;
    if (accumulate == Accumulate::kNothing) {
      ZeroTile<0>();
      if constexpr (kVecs > 1) ZeroTile<1>();
      if constexpr (kRowTiles > 1) ZeroTile<2>();
      if constexpr (kRowTiles > 1 && kVecs > 1) ZeroTile<3>();
    } else {
      LoadTile<0>(c, kPanelBytes);
      if constexpr (kVecs > 1) LoadTile<1>(c + kTile, kPanelBytes);
      if constexpr (kRowTiles > 1) LoadTile<2>(c_second, kPanelBytes);
      if constexpr (kRowTiles > 1 && kVecs > 1) LoadTile<3>(c_second + kTile, kPanelBytes);
    }
    const int64_t a_bytes = p.a_stride * static_cast<int64_t>(sizeof(uint32_t));
    const uint32_t* a = p.a + m * p.a_stride;
    const uint32_t* b = p.b;
    // The loads stand before the products: where the unit runs at its slow speed, loads between
    // products cost 7 %.
    for (int64_t t = 0; t < p.depth; t += kTile, a += kTile, b += kTile * Panel::kRows) {
      LoadTile<4>(a, a_bytes);
      if constexpr (kRowTiles > 1) LoadTile<5>(a + kTile * p.a_stride, a_bytes);
      LoadTile<6>(b, kPanelBytes);
      if constexpr (kVecs > 1) LoadTile<7>(b + kTile, kPanelBytes);
      MultiplyTiles<0, 4, 6>();
      if constexpr (kVecs > 1) MultiplyTiles<1, 4, 7>();
      if constexpr (kRowTiles > 1) MultiplyTiles<2, 5, 6>();
      if constexpr (kRowTiles > 1 && kVecs > 1) MultiplyTiles<3, 5, 7>();
    }
    StoreTile<0>(c, kPanelBytes);
    if constexpr (kVecs > 1) StoreTile<1>(c + kTile, kPanelBytes);
    if constexpr (kRowTiles > 1) StoreTile<2>(c_second, kPanelBytes);
    if constexpr (kRowTiles > 1 && kVecs > 1) StoreTile<3>(c_second + kTile, kPanelBytes);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_HAS_PAIRS && FLASHLANE_HAS_AMX

#endif  // FLASHLANE_KERNELS_TILE_AMX_INL_H_
