// attnk.tiled: the forward paths by name, what they cost, and how far each is from the reference.
#ifndef FLASHLANE_FLAT_TILED_H_
#define FLASHLANE_FLAT_TILED_H_

#include <cstdint>

#include "flashlane/export.h"
#include "flashlane/flat/contract.h"
#include "flashlane/flat/flash.h"
#include "flashlane/flat/sdpa.h"

namespace flashlane::flat {

// `tile` keys at a time: flash_forward_flat.
FLASHLANE_API AttnStatus tiled_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                                            const FlatParams& params, std::int64_t tile,
                                            const FlatOutputs& outputs,
                                            const FlatOptions& options = {}) noexcept;

// All keys in one sweep, in the kernel's own blocks: what flashlane::Attention does, and what to
// use for speed.
FLASHLANE_API AttnStatus direct_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                                             const FlatParams& params, const FlatOutputs& outputs,
                                             const FlatOptions& options = {}) noexcept;

// NOT FOR USE: softmax without subtracting the row's maximum, to show what that is for. Scores
// above 709 make out NaN or 0 and lse infinite; where all are below -745, out is NaN and lse -inf.
// Nothing else in the library can reach it.
FLASHLANE_API AttnStatus unstable_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                                               const FlatParams& params, const FlatOutputs& outputs,
                                               const FlatOptions& options = {}) noexcept;

// Of the two products over the pairs of query and key that causal leaves: 4 * head_dim for each and
// every query head. Biases are not looked at. Saturates at the largest number.
FLASHLANE_API AttnStatus attn_flops_forward(const FlatDims& dims, bool causal,
                                            std::uint64_t* flops) noexcept;

struct ReferenceDelta {
  double max_out_diff = 0.0;  // as in FlashAgreement
  double max_lse_diff = 0.0;
  std::int64_t elements = 0;  // of out
  AttnStatus status = ATTN_UNKNOWN;
};

// Runs `backend` and sdpa_forward_flat on the same inputs. tile is for flash and tiled; the others
// ignore it. A budget counts the flops of both.
FLASHLANE_API ReferenceDelta attn_reference_delta_flat(AttnBackend backend,
                                                       const FlatInputs& inputs,
                                                       const FlatDims& dims,
                                                       const FlatParams& params, std::int64_t tile,
                                                       const FlatOptions& options = {}) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_TILED_H_
