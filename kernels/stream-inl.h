// Decode: streams K and V once past a few rows of one or more kv heads, sixteen keys at a time. All
// kv heads of a step are worked on together, because that is how a paged pool lies in memory, and
// each prefetches its share of the next step in the order of memory: on Zen 5 faster than
// each its own place where tokens are contiguous, and no slower in shuffled blocks
// (CONTRIBUTING.md).
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

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/flash_scratch.h"
#include "kernels/kernels.h"
#include "kernels/key_splits.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/merge_splits-inl.h"
#include "kernels/stream_fma-inl.h"
#include "kernels/stream_rows-inl.h"
#include "kernels/stream_shape-inl.h"
#include "kernels/stream_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Working memory of a tile of `num_heads` kv heads with up to kStreamRows rows each.
template <class Unit>
struct StreamScratch {
  using T = typename Unit::T;
  using C = typename Unit::C;
  static constexpr int64_t kSums = StreamShape<C, 1>::kSums;
  static constexpr int64_t kScores = kUnitKeys * kStreamRows;

  StreamScratch(const ForwardArgs& args, int64_t num_heads, Carver* carver)
      : q_stride(hwy::RoundUpTo(args.head_dim, Unit::kStep)),
        o_stride(hwy::RoundUpTo(args.head_dim_v, Unit::kOutStep)) {
    q = carver->Take<typename Unit::Q>(num_heads * kStreamRows * q_stride);
    o = carver->Take<C>(num_heads * kStreamRows * o_stride);
    m = carver->Take<C>(num_heads * kSums);
    l = carver->Take<C>(num_heads * kSums);
    if (Unit::kRoundsWeights) exact_l = carver->Take<C>(num_heads * kSums);
    scores = carver->Take<C>(kScores);
    additive = carver->Take<C>(kScores);
    weights = carver->Take<typename Unit::Weight>(kScores);
    zeros = carver->Take<T>(std::max(args.head_dim, args.head_dim_v));
    out = carver->Take<C>(o_stride);
  }

  int64_t q_stride;
  int64_t o_stride;
  typename Unit::Q* q;             // [num_heads][rows][q_stride]
  C* o;                            // [num_heads][rows][o_stride]
  C* m;                            // [num_heads][kSums]
  C* l;                            // [num_heads][kSums]
  C* exact_l = nullptr;            // [num_heads][kSums], where weights are rounded
  C* scores;                       // of one step
  C* additive;                     // of one step
  typename Unit::Weight* weights;  // of one step
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

  void Run() { RunRows<kStreamRows>(); }

 private:
  enum class Values { kPlain, kSelecting };

  // The instance for this number of rows, at most kRows: there are five (8, 6, 4, 2, 1), because
  // each takes seconds to compile; at most one row in four is idle.
  template <size_t kRows>
  void RunRows() {
    if constexpr (kRows > 1) {
      constexpr size_t kFewer = kRows == 2 ? 1 : kRows - 2;
      if (rows_.size() <= static_cast<int64_t>(kFewer)) return RunRows<kFewer>();
    }
    using Shape = StreamShape<C, kRows>;
    for (int64_t h = 0; h < tile_.num_kv_heads; ++h) Start<Shape>(h);
    Sweep<Shape>(Values::kPlain, 0, tile_.num_kv_heads);
    for (int64_t h = 0; h < tile_.num_kv_heads; ++h) {
      if (HWY_UNLIKELY(!OutIsFinite<Shape>(h))) {
        // Some value may have been NaN or infinite: once more, and hidden keys are left out instead
        // of weighed with 0.
        Start<Shape>(h);
        Sweep<Shape>(Values::kSelecting, h, h + 1);
      }
      for (size_t r = 0; r < num_rows(); ++r) StoreRow<Shape>(h, r);
    }
  }

  size_t num_rows() const { return static_cast<size_t>(rows_.size()); }

  template <class Shape>
  StreamState<C> State(int64_t h) const {
    const int64_t at = h * StreamScratch<Unit>::kSums;
    return {scratch_.m + at, scratch_.l + at,
            Unit::kRoundsWeights ? scratch_.exact_l + at : nullptr};
  }
  template <class Shape>
  C* Out(int64_t h) const {
    return scratch_.o + h * static_cast<int64_t>(Shape::kRows) * scratch_.o_stride;
  }
  template <class Shape>
  typename Unit::Q* Query(int64_t h) const {
    return scratch_.q + h * static_cast<int64_t>(Shape::kRows) * scratch_.q_stride;
  }

  template <class Shape>
  void Start(int64_t h) {
    const StreamState<C> state = State<Shape>(h);
    const size_t used = num_rows() * Shape::kKeys;
    std::fill(state.m, state.m + used, -kInfinity<C>);
    std::fill(state.m + used, state.m + Shape::kSums, kInfinity<C>);
    std::fill(state.l, state.l + Shape::kSums, C{0});
    if (state.exact_l != nullptr) std::fill(state.exact_l, state.exact_l + Shape::kSums, C{0});
    std::fill(Out<Shape>(h), Out<Shape>(h + 1), C{0});
    std::memset(
        Query<Shape>(h), 0,
        static_cast<size_t>(Query<Shape>(h + 1) - Query<Shape>(h)) * sizeof(typename Unit::Q));
    for (size_t r = 0; r < num_rows(); ++r) {
      Unit::PackQuery(rows_.template Row<const T>(args_.q, args_.q_strides, h, r), args_.head_dim,
                      Query<Shape>(h) + static_cast<int64_t>(r) * scratch_.q_stride);
    }
  }

  // Where the rows of one step lie from the first head on; kDead where the step has no such key.
  static constexpr int64_t kDead = -1;
  struct Offsets {
    int64_t k[kUnitKeys];
    int64_t v[kUnitKeys];
  };

  void Locate(int64_t begin, Offsets* offsets) const {
    for (size_t i = 0; i < kUnitKeys; ++i) {
      const int64_t key = begin + static_cast<int64_t>(i);
      const bool live = key >= keys_.begin && key < keys_.end;
      offsets->k[i] = live ? k_.Offset(key) : kDead;
      offsets->v[i] = live ? v_.Offset(key) : kDead;
    }
  }

  void Point(const int64_t* offsets, const T* base, const T** rows) const {
    for (size_t i = 0; i < kUnitKeys; ++i) {
      rows[i] = offsets[i] == kDead ? scratch_.zeros : base + offsets[i];
    }
  }

  // The rows of the next step that head h asks for: its share of them in the order of memory, which
  // is token by token where all heads of one lie together.
  void PointAhead(const int64_t* offsets, const T* base, int64_t head_stride, int64_t h,
                  const T** rows) const {
    const int64_t heads = tile_.num_kv_heads;
    int64_t token = h * static_cast<int64_t>(kUnitKeys) / heads;
    int64_t head = h * static_cast<int64_t>(kUnitKeys) % heads;
    for (size_t i = 0; i < kUnitKeys; ++i) {
      rows[i] =
          offsets[token] == kDead ? scratch_.zeros : base + offsets[token] + head * head_stride;
      if (++head == heads) {
        head = 0;
        ++token;
      }
    }
  }

  // The first line of head h's share of the tokens after the next step: so that the pages are known
  // by the time the prefetches for the next step walk through them.
  void TouchPages(const Offsets& offsets, int64_t h) const {
    constexpr int64_t kStep = static_cast<int64_t>(kUnitKeys);
    const int64_t heads = tile_.num_kv_heads;
    for (int64_t i = h * kStep / heads; i < (h + 1) * kStep / heads; ++i) {
      if (offsets.k[i] == kDead) continue;
      hwy::Prefetch(k_.base + offsets.k[i]);
      hwy::Prefetch(v_.base + offsets.v[i]);
    }
  }

  template <class Shape>
  void Sweep(Values values, int64_t head_begin, int64_t head_end) {
    constexpr int64_t kStep = static_cast<int64_t>(kUnitKeys);
    if (keys_.empty()) return;
    Offsets ring[3];
    Offsets *now = &ring[0], *next = &ring[1], *later = &ring[2];
    int64_t begin = keys_.begin / kStep * kStep;
    Locate(begin, now);
    Locate(begin + kStep, next);
    for (; begin < keys_.end; begin += kStep) {
      Locate(begin + 2 * kStep, later);
      const bool all_visible = rows_.AllVisible(begin, begin + kStep, keys_);
      for (int64_t h = head_begin; h < head_end; ++h) {
        const T* k_base = k_.base + h * args_.k_strides.head;
        const T* v_base = v_.base + h * args_.v_strides.head;
        Point(now->k, k_base, step_k_.now);
        PointAhead(next->k, k_.base, args_.k_strides.head, h, step_k_.next);
        Point(now->v, v_base, step_v_.now);
        PointAhead(next->v, v_.base, args_.v_strides.head, h, step_v_.next);
        TouchPages(*later, h);
        Step<Shape>(values, h, begin, all_visible);
      }
      Offsets* const done = now;
      now = next;
      next = later;
      later = done;
    }
  }

  template <class Shape>
  void Step(Values values, int64_t h, int64_t begin, bool all_visible) {
    C* const scores = scratch_.scores;
    ScoreStep<Unit, Shape>(Query<Shape>(h), scratch_.q_stride, step_k_, args_.head_dim, scores);
    StreamTerms<C> terms = rows_.template Terms<C>();
    if (rows_.HasAdditive() || !all_visible) {
      rows_.template FillAdditive<T, Shape>(h, begin, keys_, scratch_.additive);
      terms.additive = scratch_.additive;
    }
    ApplyStreamTerms<Shape>(terms, scores);
    const StreamState<C> state = State<Shape>(h);
    HWY_ALIGN C largest[Shape::kSums];
    if (LargestScores<Shape>(scores, state.m, largest)) {
      RescaleRows<Shape>(state, largest, scratch_.o_stride, Out<Shape>(h));
    }
    WeighStep<Unit, Shape>(state, scores, scratch_.weights);
    if (HWY_LIKELY(values == Values::kPlain)) {
      Unit::template AddValues<Shape>(scratch_.weights, step_v_, args_.head_dim_v,
                                      scratch_.o_stride, Out<Shape>(h));
    } else {
      for (size_t r = 0; r < num_rows(); ++r) AddSelecting<Shape>(h, r);
    }
  }

  // The values of the keys that row r sees, in the same order and with the same bits.
  template <class Shape>
  HWY_NOINLINE void AddSelecting(int64_t h, size_t r) const {
    using One = StreamShape<C, 1>;
    StreamRows<T> rows = step_v_;
    HWY_ALIGN typename Unit::Weight weights[One::kScores];
    for (size_t i = 0; i < kUnitKeys; ++i) {
      const size_t at = Shape::At(r, i);
      weights[One::At(0, i)] = scratch_.weights[at];
      if (scratch_.scores[at] == -kInfinity<C>) rows.now[i] = scratch_.zeros;
    }
    Unit::template AddValues<One>(weights, rows, args_.head_dim_v, scratch_.o_stride,
                                  Out<Shape>(h) + static_cast<int64_t>(r) * scratch_.o_stride);
  }

  template <class Shape>
  bool OutIsFinite(int64_t h) const {
    const Tag<C> d;
    auto zeros = hn::Zero(d);  // becomes NaN by any 0 * NaN or 0 * inf, and stays NaN
    for (const C* at = Out<Shape>(h); at < Out<Shape>(h + 1); at += Shape::kLanes) {
      zeros = hn::MulAdd(hn::Load(d, at), hn::Zero(d), zeros);
    }
    return hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)));
  }

  template <class Shape>
  void StoreRow(int64_t h, size_t r) const {
    const StreamState<C> state = State<Shape>(h);
    RowResult<C> result{state.m[r * Shape::kKeys], C{0}, C{0}, scratch_.out};
    for (size_t i = r * Shape::kKeys; i < (r + 1) * Shape::kKeys; ++i) {
      result.l += state.l[i];
      result.exact_l += state.exact_l != nullptr ? state.exact_l[i] : state.l[i];
    }
    const C* o = Out<Shape>(h) + static_cast<int64_t>(r) * scratch_.o_stride;
    Unit::CopyOut(o, scratch_.o_stride, scratch_.out);
    rows_.template Store<T>(h, r, result);
  }

  const ForwardArgs& args_;
  const Tile& tile_;
  const Sequence sequence_;
  const StreamTileRows rows_;
  const StreamScratch<Unit> scratch_;
  const KvRows<T> k_;
  const KvRows<T> v_;
  KeyRange keys_;
  StreamRows<T> step_k_;
  StreamRows<T> step_v_;
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
