// A resolved call and one unit of its work: plain data. dispatch/ has checked everything; nothing
// in kernels/ checks again. Strides are in elements; absent pointers are null; causal has become a
// right window of 0; absent windows are kUnlimited.
#ifndef FLASHLANE_KERNELS_ARGS_H_
#define FLASHLANE_KERNELS_ARGS_H_

#include <cstddef>
#include <cstdint>
#include <limits>

namespace flashlane::kernels {

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Sums of positions and windows saturate: a window of 2^62 at position 2^61 is legal.
constexpr int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Strides of a [batch, heads, rows, width] operand whose width stride is 1.
struct RowStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

// An optional operand that broadcasts over [B, Hq, Sq, Sk] by stride 0: bias and mask.
struct ScoreOperand {
  const void* data = nullptr;
  bool is_f32 = false;  // F32 while q is of another dtype; bias only
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t col = 0;  // 0 (broadcast) or 1
};

// An optional [Hq] operand: alibi_slopes and sinks.
struct HeadOperand {
  const void* data = nullptr;
  bool is_f32 = false;  // F32 while q is of another dtype
  int64_t stride = 1;
};

// One integer per sequence: a caller's array, or one value for all where data is null.
struct SequenceValues {
  enum class Type : uint8_t { kI32, kI64, kU32 };
  const void* data = nullptr;
  Type type = Type::kI64;
  int64_t stride = 1;
  int64_t value = 0;

  int64_t At(int64_t batch) const {
    if (data == nullptr) return value;
    const int64_t i = batch * stride;
    switch (type) {
      case Type::kI32:
        return static_cast<const int32_t*>(data)[i];
      case Type::kU32:
        return static_cast<const uint32_t*>(data)[i];
      case Type::kI64:
        break;
    }
    return static_cast<const int64_t*>(data)[i];
  }
};

// Where a paged cache keeps its tokens: token t of sequence b in block
// data[b * batch + (t / block_size) * col], at slot t % block_size. The pools' RowStrides are those
// of [num_blocks, Hkv, block_size, width]: batch is the distance between blocks.
struct BlockTable {
  const uint32_t* data = nullptr;  // null: k and v are not paged
  int64_t batch = 0;
  int64_t col = 0;
  int64_t block_size = 1;
};

enum class Accumulator : uint8_t { kInput, kF32, kF64 };

struct ForwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  void* lse = nullptr;  // float; double where q is double
  RowStrides q_strides, k_strides, v_strides, out_strides, lse_strides;

  int64_t batch = 0;
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t seqlen_q = 0;  // of the longest sequence
  int64_t seqlen_k = 0;
  // Varlen: sequence b owns rows [cu_seqlens[b], cu_seqlens[b + 1]) of packed tensors whose batch
  // stride is 0. Without data every sequence has seqlen_q queries, and seqlen_k keys unless k_len
  // says otherwise: a paged cache has none of cu_seqlens_k.
  SequenceValues cu_seqlens_q;
  SequenceValues cu_seqlens_k;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;

  double softmax_scale = 1.0;
  double softcap = 0.0;  // 0 = off
  int64_t window_left = kUnlimited;
  int64_t window_right = kUnlimited;
  bool has_k_len = false;  // else every key of the sequence is live
  SequenceValues k_len;
  SequenceValues q_start;
  bool bottom_right = false;      // q_start = k_len - seqlen_q per sequence; q_start is ignored
  bool clamps_positions = false;  // query i stands at max(q_start + i, 0)
  BlockTable block_table;

  HeadOperand alibi_slopes;
  HeadOperand sinks;
  ScoreOperand bias;
  ScoreOperand mask;  // one byte each, nonzero = visible
  // Column 0 of the mask is key q_start, and it hides no key before that.
  bool mask_from_q_start = false;
  Accumulator accumulator = Accumulator::kInput;  // the oracle's

  // Query heads that share one kv head.
  int64_t group() const { return num_heads / num_kv_heads; }
};

// Lengths and place of one sequence.
struct Sequence {
  int64_t q_begin = 0;   // first row in q, out and lse
  int64_t k_begin = 0;   // first row in k and v
  int64_t seqlen_q = 0;  // queries
  int64_t k_len = 0;     // live keys
  int64_t q_start = 0;   // position of query 0 among the keys

  static Sequence Of(const ForwardArgs& args, int64_t batch) {
    Sequence sequence;
    sequence.seqlen_q = args.seqlen_q;
    sequence.k_len = args.seqlen_k;
    if (args.cu_seqlens_q.data != nullptr) {
      sequence.q_begin = args.cu_seqlens_q.At(batch);
      sequence.seqlen_q = args.cu_seqlens_q.At(batch + 1) - sequence.q_begin;
    }
    if (args.cu_seqlens_k.data != nullptr) {
      sequence.k_begin = args.cu_seqlens_k.At(batch);
      sequence.k_len = args.cu_seqlens_k.At(batch + 1) - sequence.k_begin;
    }
    if (args.has_k_len) sequence.k_len = args.k_len.At(batch);
    sequence.q_start =
        args.bottom_right ? sequence.k_len - sequence.seqlen_q : args.q_start.At(batch);
    return sequence;
  }
};

// One unit of work: rows [row_begin, row_end) of one kv head of one sequence, where row
// r = i * group + g is query i of query head kv_head * group + g. All query heads of a kv head are
// rows of one tile, so that K and V are read once for them. A tile that streams has all rows of
// one or more kv heads.
struct Tile {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t num_kv_heads = 1;
  bool streams = false;
  // Keys [key_begin, key_end) of those that the rows see, and where their results go:
  // Partial::Of(args, seqlen_q, partial). Null: all keys, and out and lse.
  int64_t key_begin = 0;
  int64_t key_end = kUnlimited;
  void* partial = nullptr;
};

// Attention of one sequence over one split of its keys, in the compute type C: out
// [Hq, Sq, Dv], normalised, and lse [Hq, Sq].
struct Partial {
  void* out;
  void* lse;
  RowStrides out_strides, lse_strides;

  static int64_t NumElements(const ForwardArgs& args, int64_t seqlen_q) {
    return args.num_heads * seqlen_q * (args.head_dim_v + 1);
  }
  template <typename C>
  static Partial Of(const ForwardArgs& args, int64_t seqlen_q, void* base) {
    C* out = static_cast<C*>(base);
    return {out,
            out + args.num_heads * seqlen_q * args.head_dim_v,
            {0, seqlen_q * args.head_dim_v, args.head_dim_v},
            {0, seqlen_q, 1}};
  }
};

// The partial results of a sequence, one after the other by rising keys, and the query heads
// [head_begin, head_end) to merge them for.
struct SplitResults {
  const void* partials = nullptr;
  int64_t count = 0;
  int64_t batch = 0;
  int64_t head_begin = 0;
  int64_t head_end = 0;
};

// What a kernel wants: tiles of at most block_rows rows that start at multiples of row_granule, and
// scratch per worker, aligned to kScratchAlignment. A row's bits do not depend on how rows are cut.
struct TilePlan {
  int64_t block_rows = 1;
  int64_t row_granule = 1;
  size_t scratch_bytes = 0;
};

// Two partial results over the same queries and different keys, and where their union goes. Rows
// are numbered (batch * num_heads + head) * seqlen_q + query.
struct MergeArgs {
  struct Partial {
    const void* out = nullptr;
    const void* lse = nullptr;  // float; double where out is double
    RowStrides out_strides, lse_strides;
  };
  Partial a, b;
  void* out = nullptr;
  void* lse = nullptr;  // may be null
  RowStrides out_strides, lse_strides;
  int64_t num_heads = 0;
  int64_t seqlen_q = 0;
  int64_t head_dim_v = 0;
};

inline constexpr size_t kScratchAlignment = 64;  // one cache line, one AVX-512 vector

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_ARGS_H_
