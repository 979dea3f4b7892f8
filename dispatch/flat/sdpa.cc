// attnk.sdpa: the scalar oracle over flat buffers.

#include "flashlane/flat/sdpa.h"

#include "dispatch/flat/call.h"

namespace flashlane::flat {

AttnStatus sdpa_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                             const FlatParams& params, const FlatOutputs& outputs,
                             const FlatOptions& options) noexcept {
  if (const AttnStatus s = CheckForwardCall(inputs, dims, params, outputs, options); s != ATTN_OK) {
    return s;
  }
  return RunForward(inputs, dims, params, outputs, CoreOptions(options, Kernel::kNaive));
}

AttnStatus attention_views_flat(const FlatInputs& inputs, const FlatDims& dims,
                                AttentionInputs* views) noexcept {
  if (const AttnStatus s = CheckSizesAndScale(inputs, dims, {}); s != ATTN_OK) return s;
  if (const AttnStatus s = CheckInputsOnly(inputs, dims, {}, 0, 0); s != ATTN_OK) return s;
  if (views == nullptr) return ATTN_NULL_BUFFER;
  *views = ViewsOf(inputs, dims);
  return ATTN_OK;
}

AttnStatus attention_views_flat(const FlatOutputs& outputs, const FlatDims& dims,
                                AttentionOutputs* views) noexcept {
  if (const AttnStatus s = CheckDims(dims); s != ATTN_OK) return s;
  const ForwardBuffers need = BuffersOf({}, dims, outputs);
  if (const AttnStatus s = CheckBuffers({}, {need.out, need.lse}); s != ATTN_OK) return s;
  if (views == nullptr) return ATTN_NULL_BUFFER;
  *views = ViewsOf(outputs, dims);
  return ATTN_OK;
}

}  // namespace flashlane::flat
