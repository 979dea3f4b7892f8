// Rows of the backward's operands and gradients, beside the panels of flash: copied to where a
// width of columns is in the lanes, and added to the sums from there or from transposed panels.

#if defined(FLASHLANE_KERNELS_BACKWARD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_ROWS_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_ROWS_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/convert-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The instance of `function` for `vectors`, 1 to kMost.
template <size_t kMost, class Function>
HWY_INLINE void WithVectors(int64_t vectors, const Function& function) {
  if constexpr (kMost > 1) {
    if (vectors < static_cast<int64_t>(kMost)) return WithVectors<kMost - 1>(vectors, function);
  }
  function(std::integral_constant<size_t, kMost>());
}

// How `width` columns are cut into panels of whole vectors and like width.
template <class Panel>
struct ColumnPanels {
  explicit ColumnPanels(int64_t all) : width(all) {
    const int64_t vectors = hwy::DivCeil(width, Panel::kLanes);
    count = hwy::DivCeil(vectors, static_cast<int64_t>(Panel::kVectors));
    step = hwy::DivCeil(vectors, count) * Panel::kLanes;
  }
  int64_t Width(int64_t panel) const { return std::min(step, width - panel * step); }

  int64_t width;
  int64_t count;
  int64_t step;  // columns
};

// Row `row` of one kv head in a gradient of keys.
template <typename E>
E* KeyRow(const RowSums& sums, int64_t batch, int64_t kv_head, int64_t row) {
  return static_cast<E*>(sums.data) + batch * sums.strides.batch + kv_head * sums.strides.head +
         row * sums.strides.row;
}

template <typename C>
HWY_INLINE hn::Vec<Tag<C>> ZeroUnlessFinite(hn::Vec<Tag<C>> x) {
  return hn::IfThenElseZero(hn::IsFinite(x), x);
}

// Copies the columns of `panels` of every row to [panel][max_rows][kRows], zeros in the lanes past
// the last. Numbers that are not finite become 0: where they matter, the weight is NaN already, and
// where the weight is 0 they must not. Returns whether there were any.
template <typename T, class Panel>
HWY_NOINLINE bool CopyColumns(const TileRows<Panel>& rows,
                              const typename TileRows<Panel>::RowSource& source, int64_t num_rows,
                              const ColumnPanels<Panel>& panels, int64_t max_rows, Compute<T>* to) {
  using C = Compute<T>;
  const Tag<C> d;
  auto all_finite = hn::Eq(hn::Zero(d), hn::Zero(d));
  const int64_t first = rows.Range(0).begin;
  for (int64_t r = 0; r < num_rows; ++r) {
    const T* row = rows.template RowPointer<const T>(source.data, source.strides, first + r);
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t width = panels.Width(panel);
      C* at = to + (panel * max_rows + r) * Panel::kRows;
      for (int64_t i = 0; i < width; i += Panel::kLanes, at += Panel::kLanes) {
        const T* from = row + panel * panels.step + i;
        const auto x = i + Panel::kLanes <= width
                           ? LoadPromoted(d, from)
                           : LoadPromotedN(d, from, static_cast<size_t>(width - i));
        all_finite = hn::And(all_finite, hn::IsFinite(x));
        hn::Store(ZeroUnlessFinite<C>(x), d, at);
      }
    }
  }
  return !hn::AllTrue(d, all_finite);
}

// Brings `width` elements into the cache that will be added to.
template <typename C>
HWY_INLINE void PrefetchSums(const C* row, int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(C);
  for (int64_t i = 0; i < width; i += kLine) hwy::Prefetch(row + i);
  hwy::Prefetch(row + width - 1);
}

// Rows of the caller's that will be read soon.
struct NextRows {
  const uint8_t* data;
  int64_t rows;
  int64_t stride;  // bytes between rows
  int64_t width;   // bytes

  // The same rows, columns [column, column + count) of `size` bytes each.
  NextRows Columns(int64_t column, int64_t count, size_t size) const {
    const auto bytes = static_cast<int64_t>(size);
    return {data + column * bytes, rows, stride, count * bytes};
  }

  // Rows [begin, end) of them.
  HWY_INLINE void Fetch(int64_t begin, int64_t end) const {
    constexpr int64_t kLine = 64;
    for (int64_t r = begin; r < std::min(end, rows); ++r) {
      for (int64_t i = 0; i < width; i += kLine) hwy::Prefetch(data + r * stride + i);
    }
  }
};

// What a call works out: dS, and of the gradients those of q, k and v.
struct Wanted {
  bool ds = false, dq = false, dk = false, dv = false;
};

// Keys and the panels that see all of them or mask those that they do not see.
struct KeyRun {
  KeyRange keys;
  int64_t panel_begin;
  int64_t panel_end;
};

// Where a product's row of run.keys.begin goes, and what will be read after it.
template <typename C>
struct KeySums {
  C* data;
  int64_t stride;
  C factor;
  NextRows next;
};

// to[j] += factor * (row j of the product), for `rows` rows of `width` columns. The sums come from
// afar while a register tile is multiplied, and so do the `next` rows: the stretches that a product
// reads of each are too short for the hardware to foresee.
template <size_t kVecs, typename C>
HWY_NOINLINE void AddProduct(const Product<C>& product, int64_t rows, const SumTarget<C>& to,
                             const NextRows& next) {
  ForRowTiles(rows, [&](int64_t m, auto tile_rows) HWY_ATTR {
    const int64_t end = m + static_cast<int64_t>(tile_rows());
    for (int64_t r = m; r < end; ++r) PrefetchSums(to.data + r * to.stride, to.width);
    next.Fetch(m, end);
    AddTile<LeftLayout::kPanels, tile_rows(), kVecs>(product, m, to);
  });
}

// Adds factor * the lanes of a transposed panel [width][kRows] to the sums of the rows of `range`.
template <class Panel, typename C = typename Panel::C>
HWY_NOINLINE void AddTransposed(const TileRows<Panel>& rows, const PanelRange& range, const C* from,
                                int64_t width, C factor, const RowSums& sums) {
  constexpr int64_t kLanes = Panel::kLanes;
  const Tag<C> d;
  const auto f = hn::Set(d, factor);
  const auto row = [&](int64_t lane) {
    return rows.template RowPointer<C>(sums.data, sums.strides, range.begin + lane);
  };
  for (int64_t lane = 0; lane < range.size(); lane += kLanes) {
    const int64_t count = std::min(kLanes, range.size() - lane);
    for (int64_t i = lane + kLanes; i < std::min(range.size(), lane + 2 * kLanes); ++i) {
      PrefetchSums(row(i), width);
    }
    for (int64_t at = 0; at < width; at += kLanes) {
      const int64_t columns = std::min(kLanes, width - at);
      hn::Vec<Tag<C>> v[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        // Columns past the last repeat it and are not stored.
        const int64_t column = at + std::min(i, columns - 1);
        v[i] = hn::Load(d, from + column * Panel::kRows + lane);
      }
      Transpose(d, v);
      for (int64_t i = 0; i < count; ++i) {
        C* sum = row(lane + i) + at;
        if (columns == kLanes) {
          hn::StoreU(hn::MulAdd(v[i], f, hn::LoadU(d, sum)), d, sum);
        } else {
          const size_t rest = static_cast<size_t>(columns);
          hn::StoreN(hn::MulAdd(v[i], f, hn::LoadN(d, sum, rest)), d, sum, rest);
        }
      }
    }
  }
}

// The sum of a[i] * b[i].
template <typename T>
HWY_NOINLINE Compute<T> Dot(const T* a, const T* b, int64_t width) {
  using C = Compute<T>;
  const Tag<C> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    sum = hn::MulAdd(LoadPromoted(d, a + i), LoadPromoted(d, b + i), sum);
  }
  if (i < width) {
    const size_t rest = static_cast<size_t>(width - i);
    sum = hn::MulAdd(LoadPromotedN(d, a + i, rest), LoadPromotedN(d, b + i, rest), sum);
  }
  return hn::ReduceSum(d, sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_ROWS_INL_H_
