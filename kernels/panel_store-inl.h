// The end of a tile: sinks join, O is divided by l, transposed back and stored with the lse.

#if defined(FLASHLANE_KERNELS_PANEL_STORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_PANEL_STORE_INL_H_
#undef FLASHLANE_KERNELS_PANEL_STORE_INL_H_
#else
#define FLASHLANE_KERNELS_PANEL_STORE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/convert-inl.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Per-lane results of a panel; each array [kRows].
template <typename C>
struct RowSums {
  C* m;  // in the domain's unit until Finish, then natural
  C* l;
  C* exact_l;        // of weights before rounding; null where l is
  C* scale;          // what O is multiplied by before the division
  uint8_t* suspect;  // the row must be computed in the exact domain
};

template <typename T, class Panel>
class PanelStore {
 public:
  using C = typename Panel::C;

  PanelStore(const ForwardArgs& args, const TileRows<Panel>& rows, int64_t panel,
             const RowSums<C>& sums)
      : args_(args), rows_(rows), range_(rows.Range(panel)), sums_(sums) {}

  // Stores out and lse of all rows, or of the suspects only. `unit`: natural units in one of the
  // domain's. Returns whether any row is suspect.
  bool Store(double unit, const C* o, bool only_suspects) const {
    if (!only_suspects) MarkSuspects();
    Finish(unit);
    StoreOut(o, only_suspects);
    StoreLse(only_suspects);
    return AnySuspect();
  }

 private:
  static constexpr int64_t kRows = Panel::kRows;
  static constexpr int64_t kLanes = Panel::kLanes;

  // Marks rows that see keys yet have no finite maximum and positive sum.
  void MarkSuspects() const {
    for (int64_t lane = 0; lane < range_.size(); ++lane) {
      const bool fine =
          std::isfinite(sums_.m[lane]) && sums_.l[lane] > C{0} && std::isfinite(sums_.l[lane]);
      sums_.suspect[lane] = !fine && rows_.SeesAKey(range_.begin + lane);
    }
  }

  bool AnySuspect() const {
    return std::any_of(sums_.suspect, sums_.suspect + range_.size(),
                       [](uint8_t suspect) { return suspect != 0; });
  }

  // Makes m natural (`unit` natural units are one of the domain's) and lets the sinks join: they
  // weigh in l, never in O. Rows whose keys weigh nothing stay empty, sink or not.
  void Finish(double unit) const {
    for (int64_t lane = 0; lane < kRows; ++lane) {
      sums_.scale[lane] = C{1};
      sums_.m[lane] = static_cast<C>(static_cast<double>(sums_.m[lane]) * unit);
    }
    if (args_.sinks.data == nullptr) return;
    for (int64_t lane = 0; lane < range_.size(); ++lane) {
      if (sums_.l[lane] == C{0}) continue;
      const C sink =
          LoadOperand<T>(args_.sinks, rows_.Head(range_.begin + lane) * args_.sinks.stride);
      const C m = std::max(sums_.m[lane], sink);
      sums_.scale[lane] = std::exp(sums_.m[lane] - m);
      const C weight = std::exp(sink - m);
      sums_.l[lane] = sums_.l[lane] * sums_.scale[lane] + weight;
      if (sums_.exact_l != nullptr) {
        sums_.exact_l[lane] = sums_.exact_l[lane] * sums_.scale[lane] + weight;
      }
      sums_.m[lane] = m;
    }
  }

  // Stores O * scale / l (0 for rows without any weight) of all rows, and marks those that are not
  // finite as suspect; or of the suspects only.
  void StoreOut(const C* o, bool only_suspects) const {
    const Tag<C> d;
    for (int64_t lane = 0; lane < range_.size(); lane += kLanes) {
      auto zeros = hn::Zero(d);  // becomes NaN by any 0 * NaN or 0 * inf, and stays NaN
      int64_t at = 0;
      for (; at + kLanes <= args_.head_dim_v; at += kLanes) {
        hn::Vec<Tag<C>> v[kLanes];
        HWY_UNROLL(16)
        for (int64_t i = 0; i < kLanes; ++i) {
          v[i] = Normalised(o + (at + i) * kRows, lane);
          zeros = hn::MulAdd(v[i], hn::Zero(d), zeros);
        }
        Transpose(d, v);
        for (int64_t i = 0; i < kLanes && lane + i < range_.size(); ++i) {
          if (Skips(lane + i, only_suspects)) continue;
          StoreRounded(d, v[i], OutRow(lane + i) + at);
        }
      }
      for (; at < args_.head_dim_v; ++at) {
        HWY_ALIGN C column[kLanes];
        const auto v = Normalised(o + at * kRows, lane);
        zeros = hn::MulAdd(v, hn::Zero(d), zeros);
        hn::Store(v, d, column);
        for (int64_t i = 0; i < kLanes && lane + i < range_.size(); ++i) {
          if (Skips(lane + i, only_suspects)) continue;
          OutRow(lane + i)[at] = hwy::ConvertScalarTo<T>(column[i]);
        }
      }
      if (only_suspects || hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)))) continue;
      HWY_ALIGN C flags[kLanes];
      hn::Store(zeros, d, flags);
      for (int64_t i = 0; i < kLanes && lane + i < range_.size(); ++i) {
        if (flags[i] != C{0}) sums_.suspect[lane + i] = 1;
      }
    }
  }

  void StoreLse(bool only_suspects) const {
    using Lse = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (args_.lse == nullptr) return;
    for (int64_t lane = 0; lane < range_.size(); ++lane) {
      if (Skips(lane, only_suspects)) continue;
      const C l = sums_.exact_l != nullptr ? sums_.exact_l[lane] : sums_.l[lane];
      C lse = l == C{0} ? -kInfinity<C> : sums_.m[lane] + std::log(l);
      if (std::isnan(lse)) lse = std::numeric_limits<C>::quiet_NaN();
      *rows_.template RowPointer<Lse>(args_.lse, args_.lse_strides, range_.begin + lane) = lse;
    }
  }

  bool Skips(int64_t lane, bool only_suspects) const {
    return only_suspects && sums_.suspect[lane] == 0;
  }

  T* OutRow(int64_t lane) const {
    return rows_.template RowPointer<T>(args_.out, args_.out_strides, range_.begin + lane);
  }

  // One vector of a row of O^T. There is one NaN only: which of several a sum keeps is up to the
  // order of operands, and bits may not depend on that. There is one zero only, too: a sum that
  // underflowed to -0 turns into 0 when a key that only a neighbour sees adds 0 * v.
  HWY_INLINE hn::Vec<Tag<C>> Normalised(const C* o_row, int64_t lane) const {
    const Tag<C> d;
    const auto l = hn::Load(d, sums_.l + lane);
    const auto o = hn::Mul(hn::Load(d, o_row + lane), hn::Load(d, sums_.scale + lane));
    const auto empty = hn::Or(hn::Eq(l, hn::Zero(d)), hn::Eq(o, hn::Zero(d)));
    const auto out = hn::IfThenZeroElse(empty, hn::Div(o, l));
    const auto nan = hn::Set(d, std::numeric_limits<C>::quiet_NaN());
    return hn::IfThenElse(hn::IsNaN(out), nan, out);
  }

  const ForwardArgs& args_;
  const TileRows<Panel>& rows_;
  const PanelRange range_;
  const RowSums<C> sums_;
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_PANEL_STORE_INL_H_
