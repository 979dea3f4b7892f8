// attnk.flash: the tiled forward pass, which never holds a matrix of scores, and the proof that it
// agrees with the reference.
#ifndef FLASHLANE_FLAT_FLASH_H_
#define FLASHLANE_FLAT_FLASH_H_

#include <cstdint>

#include "flashlane/export.h"
#include "flashlane/flat/contract.h"
#include "flashlane/flat/sdpa.h"

namespace flashlane::flat {

// Keys are taken `tile` at a time by the vector kernel, and the results of all tiles united in
// order (flashlane::MergeStates). tile >= n_tok_k is the kernel's own sweep, and the fastest.
FLASHLANE_API AttnStatus flash_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                                            const FlatParams& params, std::int64_t tile,
                                            const FlatOutputs& outputs,
                                            const FlatOptions& options = {}) noexcept;

struct FlashAgreement {
  double max_out_diff = 0.0;
  double max_lse_diff = 0.0;
  double tolerance = 0.0;     // the smallest that an element of out was held against
  bool agrees = false;        // every element of out and of lse is within its own tolerance
  std::int64_t elements = 0;  // of out
  AttnStatus status = ATTN_UNKNOWN;
};

// Runs flash_forward_flat and sdpa_forward_flat on the same inputs and compares. An element of out
// may differ by
//   1e-12 + 8 eps * growth * sum_j(p_j |v_j|),
//   growth = max(2, n_tok_k, (head_dim + 2) * |scale| * |q| * max_j |k_j|, |lse|),
// the last factor from the reference on |v|: what rounding can do to a sum of that many terms, of
// that size, with weights of such scores. lse may differ by 1e-12 + 8 eps * growth. NaN agrees
// with NaN, an infinity with itself; else either differs by infinity (which a q.k beyond F64 makes
// of a row, whatever scale is). A budget counts the flops of three forward passes.
FLASHLANE_API FlashAgreement flash_agrees_with_sdpa(const FlatInputs& inputs, const FlatDims& dims,
                                                    const FlatParams& params, std::int64_t tile,
                                                    const FlatOptions& options = {}) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_FLASH_H_
