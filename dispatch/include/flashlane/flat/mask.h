// attnk.mask: masks as additive biases, 0 where a query sees a key and -1e9 where not, for the bias
// of the flat functions; and the same masks as the kernels' own, which skip what is hidden.
//
// Where a query sees any key the two give the same answer, but for hidden values that are NaN or
// infinite (0 times them is not 0) and scores as low as -1e9. A query that sees none is a uniform
// average under a bias of -1e9, and out 0, lse -inf under a native mask. Biases add up: a key is
// hidden where any of them says so.
#ifndef FLASHLANE_FLAT_MASK_H_
#define FLASHLANE_FLAT_MASK_H_

#include <cstdint>
#include <optional>

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/flat/contract.h"
#include "flashlane/flat/sdpa.h"

namespace flashlane::flat {

inline constexpr double kMaskedBias = -1e9;

// Masks are written to mask[n_tok_q][n_tok_k]. A budget counts one flop per element.

// Query i sees keys j <= i + offset. offset n_tok_k - n_tok_q: the last query sees all keys.
FLASHLANE_API AttnStatus mask_causal_flat(std::int64_t n_tok_q, std::int64_t n_tok_k,
                                          std::int64_t offset, Doubles mask,
                                          const FlatOptions& options = {}) noexcept;
// causal, and q_start = offset.
FLASHLANE_API AttnStatus mask_causal_native(std::int64_t offset, AttentionParams* params) noexcept;

// Query i stands at a = i + offset and sees keys a - left <= j <= a + right, both inclusive, as in
// FlashAttention: left 3 and right 0 is causal with 4 keys. Absent: unlimited on that side.
struct FlatWindow {
  std::optional<std::int64_t> window_size_left = {};
  std::optional<std::int64_t> window_size_right = {};
  std::int64_t offset = 0;
};

FLASHLANE_API AttnStatus mask_sliding_window_flat(std::int64_t n_tok_q, std::int64_t n_tok_k,
                                                  const FlatWindow& window, Doubles mask,
                                                  const FlatOptions& options = {}) noexcept;
// Windows, and q_start = offset.
FLASHLANE_API AttnStatus mask_sliding_window_native(const FlatWindow& window,
                                                    AttentionParams* params) noexcept;

// Every query sees keys j < k_len; the rest is padding. 0 <= k_len <= n_tok_k.
FLASHLANE_API AttnStatus mask_padding_flat(std::int64_t n_tok_q, std::int64_t n_tok_k,
                                           std::int64_t k_len, Doubles mask,
                                           const FlatOptions& options = {}) noexcept;
// k_len.
FLASHLANE_API AttnStatus mask_padding_native(std::int64_t n_tok_k, std::int64_t k_len,
                                             AttentionParams* params) noexcept;

// Packed sequences: queries [cu_seqlens_q[s], cu_seqlens_q[s + 1]) see keys
// [cu_seqlens_k[s], cu_seqlens_k[s + 1]), and no others. Both begin with 0, never fall, end with
// the number of tokens, and are of one length, number of sequences + 1.
struct FlatSequences {
  ConstIndices cu_seqlens_q = {};
  ConstIndices cu_seqlens_k = {};
};

FLASHLANE_API AttnStatus mask_block_diagonal_flat(std::int64_t n_tok_q, std::int64_t n_tok_k,
                                                  const FlatSequences& sequences, Doubles mask,
                                                  const FlatOptions& options = {}) noexcept;
// The operands of AttentionVarlen, whose causal counts from the beginning of each sequence. It
// takes no bias (ATTN_UNSUPPORTED). Views, so the buffers must outlive the call.
FLASHLANE_API AttnStatus mask_block_diagonal_native(const FlatInputs& inputs, const FlatDims& dims,
                                                    const FlatSequences& sequences,
                                                    VarlenInputs* views) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_MASK_H_
