// A resolved call of flashlane/rope.h: plain data, checked, strides in elements.
#ifndef FLASHLANE_KERNELS_ROPE_ARGS_H_
#define FLASHLANE_KERNELS_ROPE_ARGS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/args.h"

namespace flashlane::kernels {

// Tables in the type that the kernel computes in, and how they are used.
struct RopeTables {
  const void* cos = nullptr;
  const void* sin = nullptr;
  int64_t cos_stride = 0;  // between rows
  int64_t sin_stride = 0;
  int64_t pairs = 0;  // rotary_dim / 2
  bool interleaved = false;
  bool inverse = false;
};

// Which row of the tables a token takes.
struct TokenPositions {
  SequenceValues values;  // of stride 1; without data, token i takes row start + i
  int64_t batch = 0;      // strides of values' data
  int64_t token = 0;
  int64_t start = 0;

  int64_t At(int64_t b, int64_t t) const {
    return values.data == nullptr ? start + t : values.At(b * batch + t * token);
  }
};

// q or k; x and out may be the same. num_heads 0: absent.
struct RopeOperand {
  const void* x = nullptr;
  void* out = nullptr;
  RowStrides x_strides, out_strides;  // row: from token to token
  int64_t num_heads = 0;
  int64_t head_dim = 0;
};

// Tokens of a block where a head's rows lie together: runs of 128 KiB of F32 rows of 128, long
// enough for the hardware's prefetchers, and as much of the tables, which stay in L2 from head to
// head. Runs of 8 KiB got half the speed out of memory.
inline constexpr int64_t kRopeBlockTokens = 256;

// So many heads of a block at a time share a load of the tables, which is as long as an F32 head's
// row; each is a stream of memory, out of place two. Zen 5, of what a plain loop moves: in place
// one head 0.78 (F32) and 0.54 (BF16), two 0.95 and 0.63, four 0.98 and 0.77, eight 0.85 and 0.75;
// out of place 0.80 and 0.70, 0.90 and 0.85, 0.77 and 0.80, 0.70 and 0.70.
inline constexpr int64_t kRopeHeadsInPlace = 4;
inline constexpr int64_t kRopeHeadsCopied = 2;

// How far ahead rows are asked for, in bytes, by calls that move more than kRopeCachedBytes: the
// two halves of a row in turn are no stream that the hardware would follow (Zen 5, F64: 19 GB/s
// read and written instead of 61). In cache it costs a tenth.
inline constexpr int64_t kRopeAheadBytes = 4096;
inline constexpr int64_t kRopeAheadOfHeadBytes = 2048;  // of each of a few heads
inline constexpr int64_t kRopeCachedBytes = int64_t{1} << 20;

// Work is numbered in items, a block of tokens of one head each: q's heads, then k's, of the first
// block, then those of the next.
struct RopeArgs {
  RopeOperand q, k;
  RopeTables tables;
  TokenPositions positions;
  int64_t batch = 0;
  int64_t seqlen = 0;
  int64_t block_tokens = 1;  // 1 where a token's heads lie together
  bool prefetches = false;

  int64_t num_heads() const { return q.num_heads + k.num_heads; }
  int64_t blocks_per_sequence() const { return (seqlen + block_tokens - 1) / block_tokens; }
  int64_t num_items() const { return batch * blocks_per_sequence() * num_heads(); }
};

// Turns one head of one token by row `row` of the tables: reads head_dim elements of `from`, writes
// as many to `to`, which may be `from`.
using RotateFunction = void (*)(const RopeTables& tables, int64_t row, const void* from,
                                int64_t head_dim, void* to);

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_ROPE_ARGS_H_
