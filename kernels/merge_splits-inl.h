// The end of a sequence whose keys were split: lse = ln(sum over splits of e^lse_s), out = sum of
// e^(lse_s - lse) out_s, in order of the keys; sinks join here.

#if defined(FLASHLANE_KERNELS_MERGE_SPLITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_MERGE_SPLITS_INL_H_
#undef FLASHLANE_KERNELS_MERGE_SPLITS_INL_H_
#else
#define FLASHLANE_KERNELS_MERGE_SPLITS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/convert-inl.h"
#include "kernels/key_splits.h"
#include "kernels/online_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
class SplitMerge {
 public:
  using C = Compute<T>;  // also the type of lse

  SplitMerge(const ForwardArgs& args, const SplitResults& splits)
      : args_(args), splits_(splits), sequence_(Sequence::Of(args, splits.batch)) {}

  void Run() {
    for (int64_t head = splits_.head_begin; head < splits_.head_end; ++head) {
      for (int64_t i = 0; i < sequence_.seqlen_q; ++i) MergeRow(head, i);
    }
  }

 private:
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<C>()));

  // Out and lse of one row in one split.
  struct Part {
    const C* out;
    C lse;
  };
  Part PartOf(int64_t split, int64_t head, int64_t i) const {
    const int64_t at = split * Partial::NumElements(args_, sequence_.seqlen_q);
    // Of never writes; Tile's users do.
    void* base = const_cast<C*>(static_cast<const C*>(splits_.partials) + at);
    const Partial partial = Partial::Of<C>(args_, sequence_.seqlen_q, base);
    const auto index = [&](const RowStrides& s) { return head * s.head + i * s.row; };
    return {static_cast<const C*>(partial.out) + index(partial.out_strides),
            static_cast<const C*>(partial.lse)[index(partial.lse_strides)]};
  }

  template <typename Void>
  static auto* RowAt(Void* data, const RowStrides& strides, int64_t batch, int64_t head,
                     int64_t row) {
    return data + batch * strides.batch + head * strides.head + row * strides.row;
  }

  void MergeRow(int64_t head, int64_t i) {
    C max = -kInfinity<C>;
    bool any = false;
    for (int64_t s = 0; s < splits_.count; ++s) {
      parts_[s] = PartOf(s, head, i);
      any = any || parts_[s].lse != -kInfinity<C>;
      max = std::max(max, parts_[s].lse);
    }
    C sum{0};
    if (any) {
      C sink = -kInfinity<C>;
      if (args_.sinks.data != nullptr) {
        sink = LoadOperand<T>(args_.sinks, head * args_.sinks.stride);
        max = std::max(max, sink);
      }
      for (int64_t s = 0; s < splits_.count; ++s) {
        const C lse = parts_[s].lse;
        weights_[s] = lse == -kInfinity<C> ? C{0} : std::exp(lse - max);
        sum += weights_[s];
      }
      if (sink != -kInfinity<C>) sum += std::exp(sink - max);
    }
    const int64_t row = sequence_.q_begin + i;
    StoreOut(any, sum,
             RowAt(static_cast<T*>(args_.out), args_.out_strides, splits_.batch, head, row));
    if (args_.lse == nullptr) return;
    C lse = any ? max + std::log(sum) : -kInfinity<C>;
    if (std::isnan(lse)) lse = std::numeric_limits<C>::quiet_NaN();
    *RowAt(static_cast<C*>(args_.lse), args_.lse_strides, splits_.batch, head, row) = lse;
  }

  // One NaN only; a split that sees no key is left out, its out is 0.
  void StoreOut(bool any, C sum, T* to) const {
    const Tag<C> d;
    const auto nan = hn::Set(d, std::numeric_limits<C>::quiet_NaN());
    const int64_t width = args_.head_dim_v;
    int64_t at = 0;
    for (; any && at + kLanes <= width; at += kLanes) {
      auto acc = hn::Zero(d);
      for (int64_t s = 0; s < splits_.count; ++s) {
        acc = hn::MulAdd(hn::Set(d, weights_[s]), hn::LoadU(d, parts_[s].out + at), acc);
      }
      const auto out = hn::Div(acc, hn::Set(d, sum));
      StoreRounded(d, hn::IfThenElse(hn::IsNaN(out), nan, out), to + at);
    }
    for (; at < width; ++at) {
      C acc{0};
      for (int64_t s = 0; any && s < splits_.count; ++s) {
        acc = std::fma(weights_[s], parts_[s].out[at], acc);
      }
      const C out = any ? acc / sum : C{0};
      to[at] = hwy::ConvertScalarTo<T>(std::isnan(out) ? std::numeric_limits<C>::quiet_NaN() : out);
    }
  }

  const ForwardArgs& args_;
  const SplitResults& splits_;
  const Sequence sequence_;
  // A split more than the most, where the first is cut by the window.
  Part parts_[kMaxSplits + 1];
  C weights_[kMaxSplits + 1];
};

template <typename T>
void MergeSplits(const ForwardArgs& args, const SplitResults& splits) {
  SplitMerge<T>(args, splits).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_MERGE_SPLITS_INL_H_
