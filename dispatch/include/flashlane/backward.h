// Gradients of attention, by recompute: no attention matrix is ever kept.
//
//   Status status = flashlane::AttentionBackward(
//       {.forward = {.q = q, .k = k, .v = v}, .dout = dout}, {}, {.dq = dq, .dk = dk, .dv = dv});
#ifndef FLASHLANE_BACKWARD_H_
#define FLASHLANE_BACKWARD_H_

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// The operands of the forward call, the gradient of its out and, if the caller kept them, its
// results: both or neither. They spare the call the forward pass; they must be what Attention gives
// for these operands and parameters.
struct BackwardInputs {
  AttentionInputs forward = {};
  ConstTensorView dout = {};  // [B, Hq, Sq, Dv], q's dtype
  ConstTensorView out = {};   // optional, with lse: [B, Hq, Sq, Dv], q's dtype
  ConstTensorView lse = {};   // optional, with out: [B, Hq, Sq], F32 (F64 when q is F64)
};

// Gradients, any of them and at least one: those left out are not computed, and the others have the
// same bits without them. None may overlap another or an input.
struct BackwardOutputs {
  TensorView dq = {};      // [B, Hq, Sq, D], q's dtype
  TensorView dk = {};      // [B, Hkv, Sk, D], q's dtype; summed over the query heads of the kv head
  TensorView dv = {};      // [B, Hkv, Sk, Dv], q's dtype; likewise
  TensorView dbias = {};   // bias's shape and dtype; summed over dimensions that bias has as 1
  TensorView dsinks = {};  // [Hq], sinks' dtype; summed over batch and queries
};

// The gradients of sum(dout * out) where out is Attention's for the same inputs and parameters:
//   P = exp(s - lse)    dP = dout v^T    dS = P * (dP - delta)    delta = sum(dout * out) per row
//   dv = P^T dout    dbias = dS    dsinks = -sum(exp(sink - lse) * delta)
// and, with dS times 1 - tanh^2 where scores are capped, dq = scale dS k, dk = scale dS^T q.
//
// Every query row that sees no key, and every key that no query sees, contributes exactly nothing
// and has gradients of exactly 0; so have keys at or past k_len, which are never read. What a
// hidden key holds reaches no gradient. A visible NaN or infinite value reaches the gradients of
// its own query rows and of the keys that they see; where scores are capped, one in q or k only as
// far as the cap's slope, which is 0 there, lets it, and one in dout not to dv of keys whose weight
// underflows. A score of -inf counts as hidden.
//
// P sums to what it should over a row, however large lse is and although lse is rounded: where that
// would show, the sum is taken anew. Kept out and lse may be those of more keys than this call has
// (sequences sharded over calls); P then sums to the call's share, as far as the rounding of lse
// tells the two apart.
//
// Same bits on every repeat, for any thread count, and for a sequence alone or in a batch (dbias
// and dsinks, which may be sums over the batch, excepted), with the results of Attention on the
// same target kept or without. ExecOptions as for Attention; Kernel::kNaive is the scalar oracle,
// which never uses kept results. Errors as for Attention; on any error no output byte has changed.
// Source: Dao, "FlashAttention-2" (2023), algorithm 2.
FLASHLANE_API Status AttentionBackward(const BackwardInputs& inputs, const AttentionParams& params,
                                       const BackwardOutputs& outputs,
                                       const ExecOptions& options = {}) noexcept;

// As BackwardInputs, of a packed batch.
struct VarlenBackwardInputs {
  VarlenInputs forward = {};
  ConstTensorView dout = {};  // [total_q, Hq, Dv]
  ConstTensorView out = {};   // optional, with lse: [total_q, Hq, Dv]
  ConstTensorView lse = {};   // optional, with out: [Hq, total_q]
};

// AttentionBackward for each sequence as for a batch entry of its own, and with the same bits. dq
// is [total_q, Hq, D], dk [total_k, Hkv, D], dv [total_k, Hkv, Dv], dsinks [Hq]; there is no bias.
// Rows past the last sequence are not written. Errors as for AttentionBackward.
FLASHLANE_API Status AttentionVarlenBackward(const VarlenBackwardInputs& inputs,
                                             const AttentionParams& params,
                                             const BackwardOutputs& outputs,
                                             const ExecOptions& options = {}) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_BACKWARD_H_
