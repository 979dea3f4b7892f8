// Rotary position embedding of q and k. The work is to move them through the core: per element one
// product, one multiply-add and half a load of each table, which comes from L1 for all heads of a
// token but the first.

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

// Tokens [begin, end) of one sequence.
struct TokenBlock {
  int64_t batch, begin, end;
};

template <typename T, bool kInterleaved>
void RotateBlock(const RopeArgs& args, const TokenBlock& block, const RopeOperand& operand,
                 int64_t head) {
  const RowStrides& x_strides = operand.x_strides;
  const RowStrides& out_strides = operand.out_strides;
  const T* x =
      static_cast<const T*>(operand.x) + block.batch * x_strides.batch + head * x_strides.head;
  T* out = static_cast<T*>(operand.out) + block.batch * out_strides.batch + head * out_strides.head;
  for (int64_t t = block.begin; t < block.end; ++t) {
    const auto row = RopeRow<Compute<T>>::Of(args.tables, args.positions.At(block.batch, t));
    RotateRow<T, kInterleaved>(row, x + t * x_strides.row, operand.head_dim,
                               out + t * out_strides.row);
  }
}

template <typename T, bool kInterleaved>
void RunItems(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.num_heads();
  const int64_t blocks = args.blocks_per_sequence();
  for (int64_t item = begin; item < end;) {
    const int64_t index = item / heads;
    const int64_t batch = index / blocks;
    const int64_t first = (index - batch * blocks) * args.block_tokens;
    const TokenBlock block{batch, first, std::min(first + args.block_tokens, args.seqlen)};
    int64_t head = item - index * heads;
    const int64_t head_end = std::min(heads, head + end - item);
    item += head_end - head;
    for (; head < head_end; ++head) {
      const bool is_q = head < args.q.num_heads;
      RotateBlock<T, kInterleaved>(args, block, is_q ? args.q : args.k,
                                   is_q ? head : head - args.q.num_heads);
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
