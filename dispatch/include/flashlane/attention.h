// Scaled dot-product attention, forward. Before 1.0 structs may grow between minor versions: there
// is no promise of binary compatibility, only of the source's.
//
//   Status status = flashlane::Attention({.q = q, .k = k, .v = v}, {}, {.out = out});
//
// (designated initialisers need C++20; in C++17 fill the structs member by member.)
#ifndef FLASHLANE_ATTENTION_H_
#define FLASHLANE_ATTENTION_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "flashlane/export.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// Operands. q, k, v share one dtype: F32, F64, BF16 or F16.
// Any strides with an innermost stride of 1; stride 0 broadcasts. data is aligned to its element's
// size, here and in every other operand and output; more gains little. Optional operands are absent
// when their view is default-constructed.
struct AttentionInputs {
  ConstTensorView q = {};  // [B, Hq, Sq, D]
  ConstTensorView k =
      {};  // [B, Hkv, Sk, D], Hq % Hkv == 0; query head h reads kv head h / (Hq / Hkv)
  ConstTensorView v = {};  // [B, Hkv, Sk, Dv]

  ConstTensorView alibi_slopes =
      {};                        // [Hq], q's dtype or F32: adds slope_h * (j - a) to every score
  ConstTensorView bias = {};     // [B|1, Hq|1, Sq|1, Sk|1], q's dtype or F32; -inf masks
  ConstTensorView mask = {};     // [B|1, Hq|1, Sq|1, Sk|1], BOOL: nonzero = visible
  ConstTensorView sinks = {};    // [Hq], q's dtype or F32: joins the denominator and the lse only
  ConstTensorView k_len = {};    // [B], I32, I64 or U32: keys at or past k_len[b] are never read
  ConstTensorView q_start = {};  // [B], I32 or I64: position of query 0 of each sequence
};

// out has q's dtype. Outputs may not overlap each other or any input.
struct AttentionOutputs {
  TensorView out = {};  // [B, Hq, Sq, Dv]
  TensorView lse =
      {};  // optional, [B, Hq, Sq]; F32 (F64 when q is F64): ln(sum(exp(score))) per row
};

// Position of query row 0: row i stands at a = q_start + i among the keys.
struct QStart {
  enum class Kind : std::uint8_t { kValue, kBottomRight };
  Kind kind = Kind::kValue;
  std::int64_t value = 0;

  constexpr QStart() noexcept = default;
  constexpr QStart(std::int64_t position) noexcept : value(position) {}  // NOLINT: implicit
  // The last query stands at the last key: q_start = k_len - Sq, per sequence.
  static constexpr QStart BottomRight() noexcept {
    QStart start;
    start.kind = Kind::kBottomRight;
    return start;
  }
};

// Scores: s = softmax_scale * q.k, then softcap * tanh(s / softcap), then + slope * (j - a), then
// + bias, then the mask. Key j is visible to the query at position a iff j < k_len, and
// (not causal or j <= a), and (no left window or j + left >= a), and (no right window or
// j <= a + right), and the boolean mask allows it. A row that sees no key gives out 0, lse -inf.
struct AttentionParams {
  std::optional<double> softmax_scale = {};  // finite; absent = 1 / sqrt(D)
  // With q_start 0 (top-left) query 0 sees key 0 only. To decode, or whenever the queries are the
  // last of the keys (FlashAttention >= 2.1, vLLM), ask for q_start = QStart::BottomRight().
  bool causal = false;
  std::optional<std::int64_t> window_size_left = {};   // >= 0, inclusive
  std::optional<std::int64_t> window_size_right = {};  // >= 0, inclusive
  std::optional<double> softcap = {};                  // finite and > 0; absent = off
  std::optional<std::int64_t> k_len = {};  // in [0, Sk], for every sequence; absent = Sk
  QStart q_start = {};                     // |value| <= 2^61; for every sequence
};

enum class Kernel : std::uint8_t {
  kFlash,  // tiled online softmax on the vector target; scratch of O(block) per thread
           // and, where keys are split, one partial row for each part
  kNaive,  // the scalar oracle: one row of scores at a time, textbook softmax
};

// What the oracle (Kernel::kNaive) computes in. Ignored by the other kernels.
enum class Accumulator : std::uint8_t {
  kInput,  // the dtype of q, as the attention_naive contract says
  kF32,
  kF64,
};

// How to run. kernel, target and accumulator choose among results that agree within tolerance;
// num_threads and the budget never change a bit.
struct ExecOptions {
  Kernel kernel = Kernel::kFlash;
  // Threads to use at most; 0 = FLASHLANE_NUM_THREADS if set, else all that the caller's
  // tbb::task_arena grants. More than the arena grants is not an error.
  int num_threads = 0;
  // Vector target by name ("AMX", "AVX3_SPR", "AVX3_ZEN4", "AVX3", "AVX2", "SSE2", "NEON", ...: see
  // SupportedTargets); null = FLASHLANE_TARGET if set, else the best the machine has.
  const char* target = nullptr;
  Accumulator accumulator = Accumulator::kInput;
  // Work budget: a call that would need more is refused with kBudgetExceeded before any work.
  std::uint64_t max_flops = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t max_scratch_bytes = std::numeric_limits<std::uint64_t>::max();
};

// Computes out (and lse when present) from the inputs. Checks every rule above before anything is
// read or written: on any error no output byte has changed.
// Same bits on every repeat, for any thread count, and for a sequence alone or in a batch. How a
// sequence is computed depends on its own lengths and head counts only: with at most 32 rows per kv
// head (queries x query heads of the group) K and V are streamed past them, and with at most 128
// the keys are split and the parts merged; so a query alone may differ in its last bits from the
// same query among others. A visible NaN, or an infinite value, reaches its own rows only. In BF16,
// on targets that multiply bf16 themselves (KernelInfo::units; where rows are streamed also
// AVX3_SPR), weights are rounded to bf16 for the product with v, and denormal numbers count as 0:
// elements of q, k and v, and products and sums on the way (below 2^-126). There lse is coarser,
// too: of weights within 2^-13 each.
// Runs in the caller's floating-point environment and leaves it alone; floating-point exceptions
// must be masked, as they are by default. Source: Dao, "FlashAttention-2" (2023), algorithm 1;
// Milakov & Gimelshein (2018) for the online softmax. Errors: kInvalidArgument, kUnsupported (dtype
// or target), kBudgetExceeded, kOutOfMemory.
FLASHLANE_API Status Attention(const AttentionInputs& inputs, const AttentionParams& params,
                               const AttentionOutputs& outputs,
                               const ExecOptions& options = {}) noexcept;

// A packed batch of sequences of any lengths, 0 included. Sequence b owns the rows
// [cu_seqlens_q[b], cu_seqlens_q[b + 1]) of q and out and [cu_seqlens_k[b], cu_seqlens_k[b + 1]) of
// k and v; 0 = cu_seqlens[0] <= ... <= cu_seqlens[B] <= total. Rows past the last sequence are
// neither read nor written.
struct VarlenInputs {
  ConstTensorView q = {};             // [total_q, Hq, D]
  ConstTensorView k = {};             // [total_k, Hkv, D]
  ConstTensorView v = {};             // [total_k, Hkv, Dv]
  ConstTensorView cu_seqlens_q = {};  // [B + 1], I32, I64 or U32
  ConstTensorView cu_seqlens_k = {};  // [B + 1], I32, I64 or U32

  ConstTensorView alibi_slopes = {};  // as in AttentionInputs
  ConstTensorView sinks = {};
  ConstTensorView k_len = {};    // [B]; at most the sequence's keys
  ConstTensorView q_start = {};  // [B]
};

// Attention for each sequence as for a batch entry of its own, and with the same bits. out is
// [total_q, Hq, Dv], lse (optional) [Hq, total_q]. Errors as for Attention.
// Source: FlashAttention's flash_attn_varlen_func.
FLASHLANE_API Status AttentionVarlen(const VarlenInputs& inputs, const AttentionParams& params,
                                     const AttentionOutputs& outputs,
                                     const ExecOptions& options = {}) noexcept;

// Attention over some of the keys.
struct PartialAttention {
  ConstTensorView out = {};  // [B, H, S, Dv], any attention dtype
  ConstTensorView lse = {};  // [B, H, S], F32 (F64 for F64), natural log
};

// Attention over the keys of a and b together, which must be disjoint. A side whose lse is -inf is
// ignored whatever its out holds, and the other side comes back bit for bit; both -inf gives out 0.
// Sides may be exchanged without changing a bit. The outputs may be exactly a side's own out and
// lse (the same memory, shape and strides), to accumulate in place. Of ExecOptions, kernel and
// accumulator are ignored. Errors as for Attention.
FLASHLANE_API Status MergeStates(const PartialAttention& a, const PartialAttention& b,
                                 const AttentionOutputs& outputs,
                                 const ExecOptions& options = {}) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_ATTENTION_H_
