// Flashlane for a foreign caller: what bench/flashlane_peer.py loads, to measure Flashlane beside
// another library in one process. The structs stand there once more, member by member.
#ifndef FLASHLANE_BENCH_PEER_API_H_
#define FLASHLANE_BENCH_PEER_API_H_

#include <cstddef>
#include <cstdint>

#include "flashlane/export.h"

extern "C" {

// What Shape in shapes.h says of a call, and the scale. Decode shapes, too, are contiguous
// [B, H, S, D] here: their layout in servers and their blocks are attention_bench's.
struct FlashlanePeerShape {
  int64_t batch;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t causal;             // 0 or 1
  int64_t bottom_right;       // 0 or 1; 1: q_start is not looked at
  int64_t q_start;            // position of query 0
  int64_t window_size_left;   // -1: none
  int64_t window_size_right;  // -1: none
  int64_t k_len;              // -1: all keys
  // Operands beside q, k and v: 0 or 1.
  int64_t has_bias;          // [1, 1, Sq, Sk], of q's dtype: what peers take
  int64_t has_mask;          // [1, 1, Sq, Sk]
  int64_t has_padding_mask;  // [B, 1, 1, Sk]; not with has_mask
  int64_t has_alibi;         // [Hq], F32
  int64_t backward;          // 0 or 1; 1: the gradients, with out and lse kept, are the call
  double softcap;            // 0: none
  double softmax_scale;      // NaN: 1 / sqrt(head_dim)
};

// Contiguous operands, shaped as AttentionInputs and BackwardInputs say; those that the shape does
// not have are not looked at. Forward calls write out and, unless null, lse; backward calls read
// both.
struct FlashlanePeerCall {
  FlashlanePeerShape shape;
  const char* dtype;  // "f32", "f64", "bf16" or "f16"
  const void* q;
  const void* k;
  const void* v;
  const void* bias;
  const void* mask;  // a byte each; or the padding mask
  const void* alibi_slopes;
  void* out;
  void* lse;
  const void* dout;
  void* dq;
  void* dk;
  void* dv;
  int64_t num_threads;  // as ExecOptions
  const char* target;   // as ExecOptions
};

// flashlane::Attention or AttentionBackward. Returns its StatusCode; its message goes to `message`,
// cut where it does not fit.
FLASHLANE_API int FlashlanePeerAttention(const FlashlanePeerCall* call, char* message, size_t size);

// Floating-point operations of the call, 2 (D + Dv) per visible pair, of a backward 2 (3 D + 2 Dv);
// 0 if the call is not legal.
FLASHLANE_API uint64_t FlashlanePeerFlops(const FlashlanePeerCall* call);

// The name of entry `index` of kShapes, null past the last one.
FLASHLANE_API const char* FlashlanePeerShapeAt(int64_t index, FlashlanePeerShape* shape);

// 1 if attention_bench measures that entry in `dtype` by default, with one thread; else 0.
FLASHLANE_API int FlashlanePeerByDefault(int64_t index, const char* dtype);

// "flashlane <version>", the CPU's name, the targets it can run and the one that is chosen, best
// first and separated by commas: one a line.
FLASHLANE_API void FlashlanePeerDescribe(char* text, size_t size);

}  // extern "C"

#endif  // FLASHLANE_BENCH_PEER_API_H_
