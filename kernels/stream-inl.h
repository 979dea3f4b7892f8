// Decode: streams K and V once past a few rows of one or more kv heads, sixteen keys at a time. All
// kv heads of a step are worked on together, first their scores, then their softmax, then their
// values, because that is how a paged pool lies in memory; meanwhile K, then V of the next step are
// prefetched in the order of memory (stream_ahead.h).
//
// Cost, per key and kv head: D + Dv elements from memory, kRows * (D + Dv) multiply-adds. Bytes in
// caches: q and o of all heads of the tile, one step of K and V and the next.
//
// Steps start at multiples of sixteen from key 0 and hidden keys weigh exactly 0, so a row's bits
// do not depend on how the heads are cut into tiles, nor on where the keys lie in memory.

#if defined(FLASHLANE_KERNELS_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_STREAM_INL_H_
#undef FLASHLANE_KERNELS_STREAM_INL_H_
#else
#define FLASHLANE_KERNELS_STREAM_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/flash_scratch.h"
#include "kernels/kernels.h"
#include "kernels/key_splits.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/merge_splits-inl.h"
#include "kernels/stream_ahead.h"
#include "kernels/stream_products-inl.h"
#include "kernels/stream_rows-inl.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/stream_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Working memory of a tile of `num_heads` kv heads with up to kStreamRows rows each; bundles of
// rows (StreamTileRows) as the head count times the bundles per head.
template <class Unit>
struct StreamScratch {
  using T = typename Unit::T;
  using C = typename Unit::C;
  static constexpr int64_t kSums = StreamShape<C, 1>::kSums;
  static constexpr int64_t kScores = kUnitKeys * kBundleRows;

  StreamScratch(const ForwardArgs& args, int64_t num_heads, Carver* carver)
      : q_stride(hwy::RoundUpTo(args.head_dim, Unit::kStep)),
        o_stride(hwy::RoundUpTo(args.head_dim_v, Unit::kOutStep)) {
    const int64_t rows = std::min(args.seqlen_q * args.group(), kStreamRows);
    const int64_t bundles = num_heads * ((rows + kBundleRows - 1) / kBundleRows);
    q = carver->Take<typename Unit::Q>(bundles * kBundleRows * q_stride);
    o = carver->Take<C>(bundles * kBundleRows * o_stride);
    m = carver->Take<C>(bundles * kSums);
    l = carver->Take<C>(bundles * kSums);
    if (Unit::kRoundsWeights) exact_l = carver->Take<C>(bundles * kSums);
    scores = carver->Take<C>(bundles * kScores);
    additive = carver->Take<C>(kScores);
    weights = carver->Take<typename Unit::Weight>(bundles * kScores);
    zeros = carver->Take<T>(std::max(args.head_dim, args.head_dim_v));
    out = carver->Take<C>(o_stride);
  }

  int64_t q_stride;
  int64_t o_stride;
  typename Unit::Q* q;             // [bundles][rows][q_stride]
  C* o;                            // [bundles][rows][o_stride]
  C* m;                            // [bundles][kSums]
  C* l;                            // [bundles][kSums]
  C* exact_l = nullptr;            // [bundles][kSums], where weights are rounded
  C* scores;                       // [bundles][kScores], of one step
  C* additive;                     // [kScores], of one step
  typename Unit::Weight* weights;  // [bundles][kScores], of one step
  T* zeros;                        // stands for a row of K or V that nobody may read
  C* out;                          // one row of o in order of the columns
};

template <class Unit>
class StreamTile {
 public:
  using T = typename Unit::T;
  using C = typename Unit::C;

  StreamTile(const ForwardArgs& args, const Tile& tile, Carver carver)
      : args_(args),
        tile_(tile),
        sequence_(Sequence::Of(args, tile.batch)),
        rows_(args, tile, sequence_),
        scratch_(args, tile.num_kv_heads, &carver),
        k_(KvRows<T>::Of(args, args.k, args.k_strides, tile.batch, tile.kv_head, sequence_)),
        v_(KvRows<T>::Of(args, args.v, args.v_strides, tile.batch, tile.kv_head, sequence_)) {
    std::fill(scratch_.zeros, scratch_.zeros + std::max(args.head_dim, args.head_dim_v), T());
    const KeyRange any = rows_.VisibleToAny();
    keys_ = {std::max(any.begin, tile.key_begin), std::min(any.end, tile.key_end)};
  }

  static size_t ScratchBytes(const ForwardArgs& args, int64_t num_heads) {
    Carver carver(nullptr);
    StreamScratch<Unit>(args, num_heads, &carver);
    return carver.bytes();
  }

  void Run() { RunRows<kBundleRows>(); }

 private:
  enum class Values { kPlain, kSelecting };

  // The instance for this number of rows, at most kRows: there are five (8, 6, 4, 2, 1), because
  // each takes seconds to compile; at most one row in four is idle.
  template <size_t kRows>
  void RunRows() {
    if constexpr (kRows > 1) {
      constexpr size_t kFewer = kRows == 2 ? 1 : kRows - 2;
      if (rows_.longest() <= static_cast<int64_t>(kFewer)) return RunRows<kFewer>();
    }
    using Shape = StreamShape<C, kRows>;
    const int64_t bundles = tile_.num_kv_heads * rows_.per_head();
    for (int64_t b = 0; b < bundles; ++b) Start<Shape>(b);
    Sweep<Shape>(Values::kPlain, 0, bundles);
    for (int64_t b = 0; b < bundles; ++b) {
      if (HWY_UNLIKELY(!OutIsFinite<Shape>(b))) {
        // Some value may have been NaN or infinite: once more, and hidden keys are left out instead
        // of weighed with 0.
        Start<Shape>(b);
        Sweep<Shape>(Values::kSelecting, b, b + 1);
      }
      for (size_t r = 0; r < rows_.Count(b); ++r) StoreRow<Shape>(b, r);
    }
  }

  template <class Shape>
  StreamState<C> State(int64_t b) const {
    const int64_t at = b * StreamScratch<Unit>::kSums;
    return {scratch_.m + at, scratch_.l + at,
            Unit::kRoundsWeights ? scratch_.exact_l + at : nullptr};
  }
  template <class Shape>
  C* Out(int64_t b) const {
    return scratch_.o + b * static_cast<int64_t>(Shape::kRows) * scratch_.o_stride;
  }
  template <class Shape>
  typename Unit::Q* Query(int64_t b) const {
    return scratch_.q + b * static_cast<int64_t>(Shape::kRows) * scratch_.q_stride;
  }

  // The kv head, of the tile.
  int64_t Head(int64_t b) const { return b / rows_.per_head(); }

  // Bundles of the same head read the same keys: one of them asks for the next.
  bool IsFirst(int64_t b) const { return b % rows_.per_head() == 0; }

  C* Scores(int64_t b) const { return scratch_.scores + b * StreamScratch<Unit>::kScores; }
  typename Unit::Weight* Weights(int64_t b) const {
    return scratch_.weights + b * StreamScratch<Unit>::kScores;
  }

  template <class Shape>
  void Start(int64_t b) {
    const StreamState<C> state = State<Shape>(b);
    const size_t used = rows_.Count(b) * Shape::kKeys;
    std::fill(state.m, state.m + used, -kInfinity<C>);
    std::fill(state.m + used, state.m + Shape::kSums, kInfinity<C>);
    std::fill(state.l, state.l + Shape::kSums, C{0});
    if (state.exact_l != nullptr) std::fill(state.exact_l, state.exact_l + Shape::kSums, C{0});
    std::fill(Out<Shape>(b), Out<Shape>(b + 1), C{0});
    std::memset(
        Query<Shape>(b), 0,
        static_cast<size_t>(Query<Shape>(b + 1) - Query<Shape>(b)) * sizeof(typename Unit::Q));
    for (size_t r = 0; r < rows_.Count(b); ++r) {
      Unit::PackQuery(rows_.template At<const T>(args_.q, args_.q_strides, b, r), args_.head_dim,
                      Query<Shape>(b) + static_cast<int64_t>(r) * scratch_.q_stride);
    }
  }

  // Where the rows of one step lie from the first head on; kDead where the step has no such key.
  static constexpr int64_t kDead = -1;
  static constexpr int64_t kStep = static_cast<int64_t>(kUnitKeys);
  struct Offsets {
    int64_t k[kUnitKeys];
    int64_t v[kUnitKeys];
  };

  void Locate(int64_t begin, Offsets* offsets) const {
    const int64_t first = std::clamp(keys_.begin, begin, begin + kStep);
    const int64_t last = std::clamp(keys_.end, first, begin + kStep);
    if (last - first != kStep) {
      std::fill(offsets->k, offsets->k + kStep, kDead);
      std::fill(offsets->v, offsets->v + kStep, kDead);
    }
    k_.Offsets(first, last, offsets->k + (first - begin));
    v_.Offsets(first, last, offsets->v + (first - begin));
  }

  void Point(const int64_t* offsets, const T* base, const T** rows) const {
    for (size_t i = 0; i < kUnitKeys; ++i) {
      rows[i] = offsets[i] == kDead ? scratch_.zeros : base + offsets[i];
    }
  }

  template <class Shape>
  void Sweep(Values values, int64_t begin_bundle, int64_t end_bundle) {
    if (keys_.empty()) return;
    Offsets ring[2];
    Offsets *now = &ring[0], *next = &ring[1];
    int64_t begin = keys_.begin / kStep * kStep;
    Locate(begin, now);
    for (; begin < keys_.end; begin += kStep) {
      Locate(begin + kStep, next);
      AddScores<Shape>(*now, *next, begin_bundle, end_bundle);
      const bool all_visible = rows_.AllVisible(begin, begin + kStep, keys_);
      for (int64_t b = begin_bundle; b < end_bundle; ++b) Weigh<Shape>(b, begin, all_visible);
      if (HWY_LIKELY(values == Values::kPlain)) {
        AddValues<Shape>(*now, *next, begin_bundle, end_bundle);
      } else {
        AddSelected<Shape>(*now, begin_bundle, end_bundle);
      }
      std::swap(now, next);
    }
  }

  RowWalk Walk(const KvRows<T>& rows, const int64_t* offsets, int64_t begin_bundle,
               int64_t end_bundle, int64_t head_stride, int64_t width) const {
    const int64_t first = Head(begin_bundle);
    return {rows.base + first * head_stride,  offsets,     kStep,
            Head(end_bundle - 1) + 1 - first, head_stride, width};
  }

  template <class Shape>
  void AddScores(const Offsets& now, const Offsets& next, int64_t begin_bundle,
                 int64_t end_bundle) {
    const int64_t head_stride = args_.k_strides.head;
    RowWalk walk = Walk(k_, next.k, begin_bundle, end_bundle, head_stride, args_.head_dim);
    Prefetcher ahead(&walk);
    Prefetcher none;
    for (int64_t b = begin_bundle; b < end_bundle; ++b) {
      const T* rows[kUnitKeys];
      Point(now.k, k_.base + Head(b) * head_stride, rows);
      ScoreStep<Unit, Shape>({Query<Shape>(b), scratch_.q_stride, rows, args_.head_dim}, Scores(b),
                             IsFirst(b) ? &ahead : &none);
    }
  }

  template <class Shape>
  void Weigh(int64_t b, int64_t begin, bool all_visible) {
    C* const scores = Scores(b);
    StreamTerms<C> terms = rows_.template Terms<C>();
    if (rows_.HasAdditive() || !all_visible) {
      rows_.template FillAdditive<T, Shape>(b, begin, keys_, scratch_.additive);
      terms.additive = scratch_.additive;
    }
    ApplyStreamTerms<Shape>(terms, scores);
    const StreamState<C> state = State<Shape>(b);
    HWY_ALIGN C largest[Shape::kSums];
    if (LargestScores<Shape>(scores, state.m, largest)) {
      RescaleRows<Shape>(state, largest, scratch_.o_stride, Out<Shape>(b));
    }
    WeighStep<Unit, Shape>(state, scores, Weights(b));
  }

  template <class Shape>
  void AddValues(const Offsets& now, const Offsets& next, int64_t begin_bundle,
                 int64_t end_bundle) {
    const int64_t head_stride = args_.v_strides.head;
    RowWalk walk = Walk(v_, next.v, begin_bundle, end_bundle, head_stride, args_.head_dim_v);
    Prefetcher ahead(&walk);
    Prefetcher none;
    for (int64_t b = begin_bundle; b < end_bundle; ++b) {
      const T* rows[kUnitKeys];
      Point(now.v, v_.base + Head(b) * head_stride, rows);
      AddValueStep<Unit, Shape>(
          {Weights(b), rows, args_.head_dim_v, Out<Shape>(b), scratch_.o_stride},
          IsFirst(b) ? &ahead : &none);
    }
  }

  // The values of the keys that each row sees, in the same order and with the same bits.
  template <class Shape>
  HWY_NOINLINE void AddSelected(const Offsets& now, int64_t begin_bundle, int64_t end_bundle) {
    using One = StreamShape<C, 1>;
    HWY_ALIGN typename Unit::Weight weights[One::kScores];
    for (int64_t b = begin_bundle; b < end_bundle; ++b) {
      for (size_t r = 0; r < rows_.Count(b); ++r) {
        const T* rows[kUnitKeys];
        Point(now.v, v_.base + Head(b) * args_.v_strides.head, rows);
        for (size_t i = 0; i < kUnitKeys; ++i) {
          const size_t at = Shape::At(r, i);
          weights[One::At(0, i)] = Weights(b)[at];
          if (Scores(b)[at] == -kInfinity<C>) rows[i] = scratch_.zeros;
        }
        Prefetcher none;
        AddValueStep<Unit, One>(
            {weights, rows, args_.head_dim_v,
             Out<Shape>(b) + static_cast<int64_t>(r) * scratch_.o_stride, scratch_.o_stride},
            &none);
      }
    }
  }

  template <class Shape>
  bool OutIsFinite(int64_t b) const {
    const Tag<C> d;
    auto zeros = hn::Zero(d);  // becomes NaN by any 0 * NaN or 0 * inf, and stays NaN
    for (const C* at = Out<Shape>(b); at < Out<Shape>(b + 1); at += Shape::kLanes) {
      zeros = hn::MulAdd(hn::Load(d, at), hn::Zero(d), zeros);
    }
    return hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)));
  }

  template <class Shape>
  void StoreRow(int64_t b, size_t r) const {
    const StreamState<C> state = State<Shape>(b);
    RowResult<C> result{state.m[r * Shape::kKeys], C{0}, C{0}, scratch_.out};
    for (size_t i = r * Shape::kKeys; i < (r + 1) * Shape::kKeys; ++i) {
      result.l += state.l[i];
      result.exact_l += state.exact_l != nullptr ? state.exact_l[i] : state.l[i];
    }
    const C* o = Out<Shape>(b) + static_cast<int64_t>(r) * scratch_.o_stride;
    Unit::CopyOut(o, scratch_.o_stride, scratch_.out);
    rows_.template Store<T>(b, r, result);
  }

  const ForwardArgs& args_;
  const Tile& tile_;
  const Sequence sequence_;
  const StreamTileRows rows_;
  const StreamScratch<Unit> scratch_;
  const KvRows<T> k_;
  const KvRows<T> v_;
  KeyRange keys_;
};

template <class Unit>
void RunStream(const ForwardArgs& args, const Tile& tile, void* scratch) {
  StreamTile<Unit>(args, tile, Carver(scratch)).Run();
}

template <class Unit>
StreamEntry StreamEntryOf() {
  return {&StreamTile<Unit>::ScratchBytes, &RunStream<Unit>, &MergeSplits<typename Unit::T>,
          sizeof(typename Unit::C)};
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_STREAM_INL_H_
