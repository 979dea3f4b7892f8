// attnk.backward: analytic gradients, and a check of them by finite differences.
#ifndef FLASHLANE_FLAT_BACKWARD_H_
#define FLASHLANE_FLAT_BACKWARD_H_

#include <cstdint>

#include "flashlane/export.h"
#include "flashlane/flat/contract.h"
#include "flashlane/flat/sdpa.h"

namespace flashlane::flat {

// Any of them, and at least one.
struct FlatGradients {
  Doubles dq = {};  // [n_tok_q][h_q][head_dim]
  Doubles dk = {};  // [n_tok_k][h_kv][head_dim]; summed over the query heads of the kv head
  Doubles dv = {};  // [n_tok_k][h_kv][head_dim]; likewise
};

// Gradients of sum(dout * out), out as of sdpa_forward_flat; dout is [n_tok_q][h_q][head_dim].
// By recompute (flashlane::AttentionBackward); a budget counts 10 head_dim flops per pair.
struct FlatBackwardInputs {
  FlatInputs forward = {};
  ConstDoubles dout = {};
};
FLASHLANE_API AttnStatus sdpa_bwd_flat(const FlatBackwardInputs& inputs, const FlatDims& dims,
                                       const FlatParams& params, const FlatGradients& gradients,
                                       const FlatOptions& options = {}) noexcept;

struct GradcheckResult {
  double max_error = 0.0;     // largest |analytic - numerical| of dq, dk and dv
  double tolerance = 0.0;     // of that element
  bool agrees = false;        // every element is within its own tolerance
  std::int64_t elements = 0;  // of out, whose sum is differentiated
  AttnStatus status = ATTN_UNKNOWN;
};

// Gradients of sum(out) by sdpa_bwd_flat against central differences of sdpa_forward_flat with
// `step`, element by element of q, k and v. An element may differ by the largest of
//   2 step^2 (1 + |numerical|), the difference to the quotient with twice the step (what the
//   quotient leaves out, if a step moves no score by more than some tenths), and 8 eps * growth *
//   sum(p |v|) / step of all rows that the element reaches (what rounding does to it; growth as for
//   flash_agrees_with_sdpa, of v max(2, n_tok_k)).
// NaN and infinities agree with nothing. Costs four forward passes per element, which is what a
// budget counts: for small problems.
FLASHLANE_API GradcheckResult attn_bwd_gradcheck_flat(const FlatInputs& inputs,
                                                      const FlatDims& dims,
                                                      const FlatParams& params, double step,
                                                      const FlatOptions& options = {}) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_BACKWARD_H_
