// Attention over a paged key/value cache: decode, speculative tails, chunked prefill, and batches
// that mix them.
//
//   Status status = flashlane::AttentionPaged(
//       {.q = q, .k_cache = k_cache, .v_cache = v_cache, .block_table = block_table,
//        .context_lens = context_lens}, {}, {.out = out});
#ifndef FLASHLANE_PAGED_H_
#define FLASHLANE_PAGED_H_

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// q, k_cache, v_cache share one dtype: F32, F64, BF16 or F16. Token t of sequence b lies in block
// block_table[b][t / block_size], at slot t % block_size; blocks may be shared between sequences
// and stand in any order. Pools may be strided (K and V interleaved in one pool, V a slice of K).
struct PagedInputs {
  ConstTensorView q = {};        // [B, Hq, Sq, D]; or packed, with cu_seqlens_q: [total_q, Hq, D]
  ConstTensorView k_cache = {};  // [num_blocks, block_size, Hkv, D]
  ConstTensorView v_cache = {};  // [num_blocks, block_size, Hkv, Dv]
  // [B, max_blocks], U32 or I32; entries past the live length are never read.
  ConstTensorView block_table = {};
  // [B], U32, I32 or I64: live tokens of the sequence, the queries' own included; at most
  // max_blocks * block_size.
  ConstTensorView context_lens = {};

  // Optional. [B + 1], I32, I64 or U32: sequence b owns rows [cu_seqlens_q[b], cu_seqlens_q[b + 1])
  // of q and out (vLLM's query_start_loc).
  ConstTensorView cu_seqlens_q = {};
  ConstTensorView alibi_slopes = {};  // [Hq], q's dtype or F32
  ConstTensorView sinks = {};         // [Hq], q's dtype or F32
  // [B|1, Hq|1, Sq, Sq], BOOL: which of the last Sq keys each query sees (draft trees), besides
  // causality; the keys before them are visible to all. Not with cu_seqlens_q.
  ConstTensorView mask = {};
};

// Query i of a sequence with Sq queries stands at a = max(context_lens[b] - Sq + i, 0) and sees the
// keys j <= a, so params.causal is implied and a right window adds nothing. params.k_len and
// params.q_start must be left at their defaults: context_lens says both. ALiBi adds
// slope_h * (j - a). out is as q, of width Dv; lse is [B, Hq, Sq], or [Hq, total_q] where packed.
//
// The result has the bits of Attention (AttentionVarlen) over the same keys laid out contiguously,
// whatever block_size. Otherwise as Attention. Errors as for Attention; before anything is read or
// written also where a table entry within the live length is not below num_blocks, or a context is
// longer than its table. Source: Kwon et al., "PagedAttention" (2023).
FLASHLANE_API Status AttentionPaged(const PagedInputs& inputs, const AttentionParams& params,
                                    const AttentionOutputs& outputs,
                                    const ExecOptions& options = {}) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_PAGED_H_
