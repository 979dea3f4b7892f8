// attnk.flash: the vector kernel over tiles of keys, and its agreement with the reference.

#include "flashlane/flat/flash.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dispatch/flat/call.h"
#include "dispatch/flat/compare.h"
#include "dispatch/flat/tiles.h"

namespace flashlane::flat {
namespace {

// Keys that any query sees.
int64_t LiveKeys(const FlatDims& dims, bool causal) {
  if (dims.n_tok_q == 0) return 0;
  return causal ? std::min(dims.n_tok_k, dims.n_tok_q) : dims.n_tok_k;
}

PartialAttention PartialOf(OwnOutputs& outputs, const FlatDims& dims) {
  const AttentionOutputs views = ViewsOf(FlatOutputs(outputs), dims);
  return {views.out, views.lse};
}

// The operands of keys [begin, begin + count).
AttentionInputs KeysOf(const AttentionInputs& all, int64_t begin, int64_t count) {
  AttentionInputs tile = all;
  for (ConstTensorView* operand : {&tile.k, &tile.v}) {
    operand->data = static_cast<const double*>(operand->data) + begin * operand->strides[2];
    operand->shape[2] = count;
  }
  if (tile.bias.present()) {
    tile.bias.data = static_cast<const double*>(tile.bias.data) + begin;
    tile.bias.shape[3] = count;
  }
  return tile;
}

// Fills in all but status.
AttnStatus Compare(const FlatInputs& inputs, const FlatDims& dims, const FlatParams& params,
                   int64_t tile, const FlatOptions& options, FlashAgreement* result) {
  const ExecOptions naive = CoreOptions(options, Kernel::kNaive);
  OwnOutputs flash(dims), reference(dims), magnitude(dims);
  const std::vector<double> magnitudes = Magnitudes(inputs, dims);
  FlatInputs positive = inputs;
  positive.v = magnitudes;
  AttnStatus s = RunTiles(inputs, dims, params, tile, flash, options);
  if (s == ATTN_OK) s = RunForward(inputs, dims, params, reference, naive);
  if (s == ATTN_OK) s = RunForward(positive, dims, params, magnitude, naive);
  if (s != ATTN_OK) return s;

  const Tolerances allowed(dims, RowGrowth(inputs, dims, params.scale, reference.lse),
                           magnitude.out);
  JudgeAgreement(flash, reference, allowed, result);
  return ATTN_OK;
}

}  // namespace

uint64_t TilesBytes(const FlatDims& dims, bool causal, int64_t tile) {
  return tile >= LiveKeys(dims, causal) ? 0 : SaturatingProduct(2, OwnOutputs::BytesFor(dims));
}

AttnStatus RunTiles(const FlatInputs& inputs, const FlatDims& dims, const FlatParams& params,
                    int64_t tile, const FlatOutputs& outputs, const FlatOptions& options) {
  const ExecOptions core = CoreOptions(options, Kernel::kFlash);
  const int64_t live = LiveKeys(dims, params.causal);
  if (tile >= live) return RunForward(inputs, dims, params, outputs, core);

  const AttentionInputs all = ViewsOf(inputs, dims);
  AttentionParams tile_params = ParamsOf(params);
  OwnOutputs sum(dims), part(dims);
  for (int64_t begin = 0; begin < live; begin += tile) {
    const int64_t count = std::min(tile, live - begin);
    tile_params.q_start = -begin;  // seen from the tile's first key
    const AttentionOutputs views = ViewsOf(FlatOutputs(begin == 0 ? sum : part), dims);
    Status status = Attention(KeysOf(all, begin, count), tile_params, views, core);
    if (status.ok() && begin > 0) {
      // Into the caller's buffers with the last tile only: until then something may fail.
      const bool last = count == live - begin;
      const AttentionOutputs merged = ViewsOf(last ? outputs : FlatOutputs(sum), dims);
      status = MergeStates(PartialOf(sum, dims), PartialOf(part, dims), merged, core);
    }
    if (!status.ok()) return FromCore(status);
    if (count == live - begin) break;  // tile may be so large that adding it overflows
  }
  return ATTN_OK;
}

AttnStatus flash_forward_flat(const FlatInputs& inputs, const FlatDims& dims,
                              const FlatParams& params, int64_t tile, const FlatOutputs& outputs,
                              const FlatOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (const AttnStatus s = CheckSizesAndScale(inputs, dims, params); s != ATTN_OK) return s;
    if (const AttnStatus s = attn_tile_check(tile); s != ATTN_OK) return s;
    const uint64_t own = TilesBytes(dims, params.causal, tile);
    const AttnStatus s = CheckForwardCall(inputs, dims, params, outputs, options, own);
    return s != ATTN_OK ? s : RunTiles(inputs, dims, params, tile, outputs, options);
  });
}

FlashAgreement flash_agrees_with_sdpa(const FlatInputs& inputs, const FlatDims& dims,
                                      const FlatParams& params, int64_t tile,
                                      const FlatOptions& options) noexcept {
  FlashAgreement result;
  result.status = WithoutThrowing([&] {
    if (const AttnStatus s = CheckSizesAndScale(inputs, dims, params); s != ATTN_OK) return s;
    if (const AttnStatus s = attn_tile_check(tile); s != ATTN_OK) return s;
    // Three passes; their results, |v| and twice as many numbers for what is allowed.
    const uint64_t flops = SaturatingProduct(3, ForwardFlopsOf(dims, params.causal));
    const uint64_t own = SaturatingSum(SaturatingProduct(5, OwnOutputs::BytesFor(dims)),
                                       SaturatingProduct(Elements(dims).kv, sizeof(double)));
    const uint64_t bytes = SaturatingSum(own, TilesBytes(dims, params.causal, tile));
    const AttnStatus s = CheckInputsOnly(inputs, dims, options, flops, bytes);
    return s != ATTN_OK ? s : Compare(inputs, dims, params, tile, options, &result);
  });
  return result;
}

}  // namespace flashlane::flat
