// The two products of attention in registers by multiply-adds, S^T = K Q^T and O^T += V^T P^T. In
// both the lanes are query rows, the right operand is a packed panel, and the left operand is read
// element by element as a broadcast.
//
// Cost per register tile and step of depth: kVecs vector loads and kRows broadcasts for
// kRows * kVecs multiply-adds.

#if defined(FLASHLANE_KERNELS_TILE_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_TILE_MATMUL_INL_H_
#undef FLASHLANE_KERNELS_TILE_MATMUL_INL_H_
#else
#define FLASHLANE_KERNELS_TILE_MATMUL_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/block_sizes.h"
#include "kernels/instruction_set-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kPanelVectors = TileVectors(kNumRegisters);

// A panel: kVectors vectors of query rows. The width of a register tile, and the row stride of S^T
// and O^T.
template <typename C_, size_t kVectors_>
struct PanelOf {
  using C = C_;
  static constexpr size_t kVectors = kVectors_;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<C>()));
  static constexpr int64_t kRows = kLanes * static_cast<int64_t>(kVectors);
};
// The panel of multiply-add tiles.
template <typename C>
using FmaPanel = PanelOf<C, kPanelVectors>;
template <typename C>
inline constexpr size_t kPanelRows = static_cast<size_t>(FmaPanel<C>::kRows);

// How the left operand is stored: element (m, t) of row m and depth t at a[m * stride + t] (K in
// S^T = K Q^T) or at a[t * stride + m] (V in O^T = V^T P^T); or in panels of kPanelRows steps of
// depth, row-major within each (P^T in dV = P^T dO).
enum class LeftLayout { kRowMajor, kDepthMajor, kPanels };

// What the product is added to.
enum class Accumulate {
  kNothing,  // c = a b
  kOld,      // c = c + a b
  kScaled,   // c = c * scale + a b, scale per lane
};

template <typename C>
struct Product {
  const C* a;        // left operand
  int64_t a_stride;  // elements
  const C* b;        // panel [depth][kPanelRows]
  int64_t depth;
  C* c;                 // panel [rows][kPanelRows]
  const C* scale;       // [kPanelRows], for Accumulate::kScaled
  int64_t a_panel = 0;  // elements between panels, for LeftLayout::kPanels
};

template <LeftLayout kLayout, typename C>
HWY_INLINE const C* LeftRow(const Product<C>& p, int64_t m) {
  return kLayout == LeftLayout::kDepthMajor ? p.a + m : p.a + m * p.a_stride;
}

// acc += a b over `depth` steps that lie at one distance.
template <LeftLayout kLayout, size_t kRows, size_t kVecs, typename C, class V = hn::Vec<Tag<C>>>
HWY_INLINE void MultiplySteps(const C* HWY_RESTRICT a, int64_t a_stride, const C* HWY_RESTRICT b,
                              int64_t depth, V (&acc)[kRows][kVecs]) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  for (int64_t t = 0; t < depth; ++t, b += kPanelRows<C>) {
    V bv[kVecs];
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) bv[v] = hn::Load(d, b + v * lanes);
    HWY_UNROLL(kTileRows)
    for (size_t r = 0; r < kRows; ++r) {
      const V av = LoadBroadcast(
          d, a + static_cast<int64_t>(r) * (kLayout == LeftLayout::kDepthMajor ? 1 : a_stride));
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(bv[v], av, acc[r][v]);
    }
    a += kLayout == LeftLayout::kDepthMajor ? a_stride : 1;
  }
}

// acc += a b over the depth of the product, for rows from m on.
template <LeftLayout kLayout, size_t kRows, size_t kVecs, typename C, class V = hn::Vec<Tag<C>>>
HWY_INLINE void MultiplyDepth(const Product<C>& p, int64_t m, V (&acc)[kRows][kVecs]) {
  const C* HWY_RESTRICT a = LeftRow<kLayout>(p, m);
  const C* HWY_RESTRICT b = p.b;
  if constexpr (kLayout == LeftLayout::kPanels) {
    constexpr int64_t kStep = static_cast<int64_t>(kPanelRows<C>);
    for (int64_t t = 0; t < p.depth; t += kStep, a += p.a_panel, b += kStep * kStep) {
      MultiplySteps<kLayout>(a, p.a_stride, b, std::min(kStep, p.depth - t), acc);
    }
  } else {
    MultiplySteps<kLayout>(a, p.a_stride, b, p.depth, acc);
  }
}

// Rows [m, m + kRows) of the product, the first kVecs vectors of the panel.
template <LeftLayout kLayout, size_t kRows, size_t kVecs, typename C>
HWY_INLINE void MultiplyTile(const Product<C>& p, int64_t m, Accumulate accumulate) {
  const Tag<C> d;
  using V = hn::Vec<Tag<C>>;
  const size_t lanes = hn::Lanes(d);
  C* HWY_RESTRICT c = p.c + m * static_cast<int64_t>(kPanelRows<C>);
  V acc[kRows][kVecs];
  HWY_UNROLL(kTileRows)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      const C* at = c + r * kPanelRows<C> + v * lanes;
      acc[r][v] = accumulate == Accumulate::kNothing ? hn::Zero(d)
                  : accumulate == Accumulate::kOld
                      ? hn::Load(d, at)
                      : hn::Mul(hn::Load(d, at), hn::Load(d, p.scale + v * lanes));
    }
  }
  MultiplyDepth<kLayout>(p, m, acc);
  HWY_UNROLL(kTileRows)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      hn::Store(acc[r][v], d, c + r * kPanelRows<C> + v * lanes);
    }
  }
}

// Rows in the caller's memory that products are added to, times `factor`.
template <typename C>
struct SumTarget {
  C* data;
  int64_t stride;  // elements between rows
  int64_t width;   // columns
  C factor;
};

// As MultiplyTile, but adds the product to rows [m, m + kRows) of `to`. kVecs vectors hold its
// width.
template <LeftLayout kLayout, size_t kRows, size_t kVecs, typename C>
HWY_INLINE void AddTile(const Product<C>& p, int64_t m, const SumTarget<C>& to) {
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<Tag<C>> acc[kRows][kVecs];
  HWY_UNROLL(kTileRows)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(d);
  }
  MultiplyDepth<kLayout>(p, m, acc);
  const auto factor = hn::Set(d, to.factor);
  const size_t rest = static_cast<size_t>(to.width) - (kVecs - 1) * lanes;  // of the last vector
  HWY_UNROLL(kTileRows)
  for (size_t r = 0; r < kRows; ++r) {
    C* row = to.data + (m + static_cast<int64_t>(r)) * to.stride;
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = row + v * lanes;
      if (v + 1 < kVecs || rest == lanes) {
        hn::StoreU(hn::MulAdd(acc[r][v], factor, hn::LoadU(d, at)), d, at);
      } else {
        hn::StoreN(hn::MulAdd(acc[r][v], factor, hn::LoadN(d, at, rest)), d, at, rest);
      }
    }
  }
}

// Calls tile(m, number of rows) for register tiles that together make up `rows` rows.
template <class TileFunction>
HWY_INLINE void ForRowTiles(int64_t rows, TileFunction tile) {
  constexpr int64_t kFull = static_cast<int64_t>(kTileRows);
  int64_t m = 0;
  // 6 + 2 is slower than 4 + 4: two rows do not hide the latency of a multiply-add.
  const bool split_evenly = rows % kFull == 2 && rows > kFull;
  const int64_t full_end = rows / kFull * kFull - (split_evenly ? kFull : 0);
  for (; m < full_end; m += kFull) tile(m, std::integral_constant<size_t, kTileRows>());
  for (; m + 4 <= rows; m += 4) tile(m, std::integral_constant<size_t, 4>());
  if (m + 2 <= rows) {
    tile(m, std::integral_constant<size_t, 2>());
    m += 2;
  }
  if (m < rows) tile(m, std::integral_constant<size_t, 1>());
}

// All `rows` rows of the product. The sum over depth runs in the same order whatever the tile, so a
// row's bits do not depend on where it lies.
template <LeftLayout kLayout, size_t kVecs, typename C>
HWY_NOINLINE void MultiplyPanel(const Product<C>& p, int64_t rows, Accumulate accumulate) {
  ForRowTiles(rows, [&](int64_t m, auto tile_rows)
                        HWY_ATTR { MultiplyTile<kLayout, tile_rows(), kVecs>(p, m, accumulate); });
}

// O^T += V^T P^T where V holds NaN or Inf: a key whose score was -inf (`scores`, as p.b)
// contributes nothing to that row, whatever its value. Otherwise the same bits as MultiplyPanel.
template <size_t kVecs, typename C>
HWY_NOINLINE void MultiplyPanelSelecting(const Product<C>& p, const C* scores, int64_t rows,
                                         Accumulate accumulate) {
  constexpr int64_t kStride = static_cast<int64_t>(kPanelRows<C>);
  const Tag<C> d;
  const size_t lanes = hn::Lanes(d);
  const auto hidden = hn::Set(d, -std::numeric_limits<C>::infinity());
  for (int64_t m = 0; m < rows; ++m) {
    for (size_t v = 0; v < kVecs; ++v) {
      C* at = p.c + m * kStride + v * lanes;
      auto acc = accumulate == Accumulate::kNothing ? hn::Zero(d) : hn::Load(d, at);
      if (accumulate == Accumulate::kScaled) acc = hn::Mul(acc, hn::Load(d, p.scale + v * lanes));
      for (int64_t t = 0; t < p.depth; ++t) {
        const C value = p.a[t * p.a_stride + m];
        const auto weight = hn::Load(d, p.b + t * kStride + v * lanes);
        const auto sum = hn::MulAdd(hn::Set(d, value), weight, acc);
        if (std::isfinite(value)) {
          acc = sum;
        } else {
          const auto score = hn::Load(d, scores + t * kStride + v * lanes);
          acc = hn::IfThenElse(hn::Eq(score, hidden), acc, sum);
        }
      }
      hn::Store(acc, d, at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_TILE_MATMUL_INL_H_
