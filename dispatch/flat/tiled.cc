// attnk.tiled: the forward paths by name.

#include "flashlane/flat/tiled.h"

#include <cstdint>

#include "dispatch/flat/call.h"
#include "dispatch/flat/compare.h"
#include "dispatch/flat/tiles.h"
#include "dispatch/flat/unstable.h"

namespace flashlane::flat {
namespace {

bool TakesTile(AttnBackend backend) {
  return backend == ATTN_BACKEND_FLASH || backend == ATTN_BACKEND_TILED;
}

// Of a checked call.
AttnStatus RunBackend(AttnBackend backend, const FlatInputs& inputs, const FlatDims& dims,
                      const FlatParams& params, const FlatOutputs& outputs,
                      const FlatOptions& options) {
  const bool naive = backend == ATTN_BACKEND_SDPA;
  if (backend != ATTN_BACKEND_UNSTABLE) {
    return RunForward(inputs, dims, params, outputs,
                      CoreOptions(options, naive ? Kernel::kNaive : Kernel::kFlash));
  }
  RunUnstable(inputs, dims, params, outputs);
  return ATTN_OK;
}

AttnStatus CheckBackend(AttnBackend backend, int64_t tile) {
  if (backend < ATTN_BACKEND_SDPA || backend > ATTN_BACKEND_UNSTABLE) return ATTN_BAD_BACKEND;
  return TakesTile(backend) ? attn_tile_check(tile) : ATTN_OK;
}

}  // namespace

AttnStatus tiled_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                              const FlatParams& params, int64_t tile, const FlatOutputs& outputs,
                              const FlatOptions& options) noexcept {
  return flash_forward_flat(inputs, dims, params, tile, outputs, options);
}

AttnStatus direct_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                               const FlatParams& params, const FlatOutputs& outputs,
                               const FlatOptions& options) noexcept {
  const AttnStatus s = CheckForwardCall(inputs, dims, params, outputs, options);
  if (s != ATTN_OK) return s;
  return RunBackend(ATTN_BACKEND_DIRECT, inputs, dims, params, outputs, options);
}

AttnStatus unstable_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                                 const FlatParams& params, const FlatOutputs& outputs,
                                 const FlatOptions& options) noexcept {
  const AttnStatus s = CheckForwardCall(inputs, dims, params, outputs, options);
  if (s != ATTN_OK) return s;
  return RunBackend(ATTN_BACKEND_UNSTABLE, inputs, dims, params, outputs, options);
}

AttnStatus attn_flops_forward(const FlatDims& dims, bool causal, uint64_t* flops) noexcept {
  if (const AttnStatus s = CheckDims(dims); s != ATTN_OK) return s;
  if (flops == nullptr) return ATTN_NULL_BUFFER;
  *flops = ForwardFlopsOf(dims, causal);
  return ATTN_OK;
}

ReferenceDelta attn_reference_delta_flat(AttnBackend backend, const FlatInputs& inputs,
                                         const FlatDims& dims, const FlatParams& params,
                                         int64_t tile, const FlatOptions& options) noexcept {
  ReferenceDelta result;
  result.status = WithoutThrowing([&] {
    AttnStatus s = CheckSizesAndScale(inputs, dims, params);
    if (s == ATTN_OK) s = CheckBackend(backend, tile);
    if (s != ATTN_OK) return s;
    const bool tiles = TakesTile(backend);
    const uint64_t flops = SaturatingProduct(2, ForwardFlopsOf(dims, params.causal));
    const uint64_t bytes = SaturatingSum(SaturatingProduct(2, OwnOutputs::BytesFor(dims)),
                                         tiles ? TilesBytes(dims, params.causal, tile) : 0);
    s = CheckInputsOnly(inputs, dims, options, flops, bytes);
    if (s != ATTN_OK) return s;
    OwnOutputs path(dims), reference(dims);
    s = RunBackend(ATTN_BACKEND_SDPA, inputs, dims, params, reference, options);
    if (s == ATTN_OK) {
      s = tiles ? RunTiles(inputs, dims, params, tile, path, options)
                : RunBackend(backend, inputs, dims, params, path, options);
    }
    if (s != ATTN_OK) return s;
    result.max_out_diff = MaxDifference(path.out, reference.out);
    result.max_lse_diff = MaxDifference(path.lse, reference.lse);
    result.elements = static_cast<int64_t>(path.out.size());
    return ATTN_OK;
  });
  return result;
}

}  // namespace flashlane::flat
