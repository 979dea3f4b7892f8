// Rotary position embedding of q and k. The work is to move them through the core: per element one
// product, one multiply-add and half a load of each table, which comes from a cache for all heads
// of a token but the first.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

// Where a head's rows begin, in elements.
template <typename T>
struct HeadRows {
  const T* x;
  T* out;

  static HeadRows Of(const RopeOperand& operand, int64_t batch, int64_t head) {
    return {static_cast<const T*>(operand.x) + batch * operand.x_strides.batch +
                head * operand.x_strides.head,
            static_cast<T*>(operand.out) + batch * operand.out_strides.batch +
                head * operand.out_strides.head};
  }
};

// A block of tokens [begin, end) of one sequence, for the heads [head_begin, head_end) of one
// operand.
struct RopeBlock {
  int64_t batch, begin, end;
  int64_t head_begin, head_end;
};

// `count` heads of token t, by one row of the tables.
template <typename T, bool kInterleaved, int64_t kAhead>
HWY_INLINE void RotateToken(const RopeArgs& args, const RopeOperand& operand,
                            const HeadRows<T>& rows, const RopeRow<Compute<T>>& row, int64_t t,
                            int64_t count) {
  const T* x = rows.x + t * operand.x_strides.row;
  T* out = rows.out + t * operand.out_strides.row;
  for (int64_t i = 0; i < count; ++i) {
    if (args.prefetches) {
      PrefetchAhead<kAhead>(x, operand.head_dim);
      if (x != out) PrefetchAhead<kAhead>(out, operand.head_dim);
    }
    RotateRow<T, kInterleaved>(row, x, operand.head_dim, out);
    x += operand.x_strides.head;
    out += operand.out_strides.head;
  }
}

// `group` heads at a time, token by token.
template <typename T, bool kInterleaved, int64_t kAhead>
void RotateBlock(const RopeArgs& args, const RopeOperand& operand, const RopeBlock& block,
                 int64_t group) {
  for (int64_t head = block.head_begin; head < block.head_end; head += group) {
    const int64_t count = std::min(group, block.head_end - head);
    const auto rows = HeadRows<T>::Of(operand, block.batch, head);
    for (int64_t t = block.begin; t < block.end; ++t) {
      const auto row = RopeRow<Compute<T>>::Of(args.tables, args.positions.At(block.batch, t));
      RotateToken<T, kInterleaved, kAhead>(args, operand, rows, row, t, count);
    }
  }
}

// One row of the tables turns all heads of a token.
template <typename T, bool kInterleaved>
void RotateTokens(const RopeArgs& args, const RopeOperand& operand, const RopeBlock& block) {
  RotateBlock<T, kInterleaved, kRopeAheadBytes>(args, operand, block,
                                                block.head_end - block.head_begin);
}

// A few heads at a time, through tables that stay in L2.
template <typename T, bool kInterleaved>
void RotateHeads(const RopeArgs& args, const RopeOperand& operand, const RopeBlock& block) {
  const int64_t group = operand.x == operand.out ? kRopeHeadsInPlace : kRopeHeadsCopied;
  RotateBlock<T, kInterleaved, kRopeAheadOfHeadBytes>(args, operand, block, group);
}

template <typename T, bool kInterleaved>
void RunItems(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.num_heads(), q_heads = args.q.num_heads;
  const int64_t blocks = args.blocks_per_sequence();
  const auto rotate =
      args.block_tokens == 1 ? RotateTokens<T, kInterleaved> : RotateHeads<T, kInterleaved>;
  for (int64_t item = begin; item < end;) {
    const int64_t index = item / heads;
    const int64_t batch = index / blocks;
    const int64_t first = (index - batch * blocks) * args.block_tokens;
    const int64_t last = std::min(first + args.block_tokens, args.seqlen);
    const int64_t head = item - index * heads;
    const int64_t head_end = std::min(heads, head + end - item);
    item += head_end - head;
    if (head < q_heads) {
      rotate(args, args.q, {batch, first, last, head, std::min(head_end, q_heads)});
    }
    if (head_end > q_heads) {
      rotate(args, args.k,
             {batch, first, last, std::max(head, q_heads) - q_heads, head_end - q_heads});
    }
  }
}

template <typename T>
void RunRope(const RopeArgs& args, int64_t begin, int64_t end) {
  (args.tables.interleaved ? RunItems<T, true> : RunItems<T, false>)(args, begin, end);
}

template <typename T>
void Rotate(const RopeTables& tables, int64_t row, const void* from, int64_t head_dim, void* to) {
  const auto angles = RopeRow<Compute<T>>::Of(tables, row);
  (tables.interleaved ? RotateRow<T, true> : RotateRow<T, false>)(angles,
                                                                  static_cast<const T*>(from),
                                                                  head_dim, static_cast<T*>(to));
}

RopeEntry RopeF32() { return {&RunRope<float>, &Rotate<float>}; }
RopeEntry RopeF64() { return {&RunRope<double>, &Rotate<double>}; }
RopeEntry RopeBF16() { return {&RunRope<hwy::bfloat16_t>, &Rotate<hwy::bfloat16_t>}; }
RopeEntry RopeF16() { return {&RunRope<hwy::float16_t>, &Rotate<hwy::float16_t>}; }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(RopeF32);
HWY_EXPORT(RopeF64);
HWY_EXPORT(RopeBF16);
HWY_EXPORT(RopeF16);

template <>
RopeEntry Rope<float>(int64_t target) {
  return FLASHLANE_DISPATCH(RopeF32, target)();
}
template <>
RopeEntry Rope<double>(int64_t target) {
  return FLASHLANE_DISPATCH(RopeF64, target)();
}
template <>
RopeEntry Rope<hwy::bfloat16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(RopeBF16, target)();
}
template <>
RopeEntry Rope<hwy::float16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(RopeF16, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
