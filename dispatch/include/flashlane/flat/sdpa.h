// attnk.sdpa: scaled dot-product attention, materialised: the slow, obviously correct reference.
#ifndef FLASHLANE_FLAT_SDPA_H_
#define FLASHLANE_FLAT_SDPA_H_

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/flat/contract.h"

namespace flashlane::flat {

struct FlatInputs {
  ConstDoubles q = {};     // [n_tok_q][h_q][head_dim]
  ConstDoubles k = {};     // [n_tok_k][h_kv][head_dim]
  ConstDoubles v = {};     // [n_tok_k][h_kv][head_dim]
  ConstDoubles bias = {};  // [n_tok_q][n_tok_k], shared by all heads: added to scale * q.k. May be
                           // absent or empty. -inf hides a key; -1e9 gives it a weight of 0 where
                           // the row has another
};

struct FlatOutputs {
  Doubles out = {};  // [n_tok_q][h_q][head_dim]
  Doubles lse = {};  // [h_q][n_tok_q]: ln(sum(exp(score))) per row; may be absent
};

// Softmax of a whole row of scores, then its weighted average of v: Kernel::kNaive.
FLASHLANE_API AttnStatus sdpa_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                                           const FlatParams& params, const FlatOutputs& outputs,
                                           const FlatOptions& options = {}) noexcept;

// Flat buffers as views for the calls of flashlane/attention.h, with batch 1: for what the flat
// functions do not take, such as the native masks of flat/mask.h. Sizes and buffers are checked.
FLASHLANE_API AttnStatus attention_views_flat(const FlatInputs& inputs, const FlatDims& dims,
                                              AttentionInputs* views) noexcept;
FLASHLANE_API AttnStatus attention_views_flat(const FlatOutputs& outputs, const FlatDims& dims,
                                              AttentionOutputs* views) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_SDPA_H_
