// attnk.mask: masks as additive biases and as the kernels' own.

#include "flashlane/flat/mask.h"

#include <algorithm>
#include <cstdint>

#include "dispatch/flat/call.h"
#include "kernels/args.h"
#include "kernels/mask.h"

namespace flashlane::flat {
namespace {

// A mask is `elements` flops and as many doubles, beside what its function reads.
AttnStatus CheckMask(int64_t n_tok_q, int64_t n_tok_k, const Doubles& mask,
                     const FlatOptions& options, uint64_t bytes_read = 0) {
  const uint64_t elements =
      SaturatingProduct(static_cast<uint64_t>(n_tok_q), static_cast<uint64_t>(n_tok_k));
  const Needed need = Need(mask, elements);
  const uint64_t bytes = SaturatingSum(need.bytes(), bytes_read);
  const AttnStatus s = attn_budget_check(elements, bytes, options);
  return s != ATTN_OK ? s : CheckBuffers({}, {need});
}

void FillRow(double* row, int64_t n_tok_k, const kernels::KeyRange& visible) {
  std::fill_n(row, n_tok_k, kMaskedBias);
  if (!visible.empty()) std::fill_n(row + visible.begin, visible.size(), 0.0);
}

// Rows without a key may be any number, of no bytes.
int64_t RowsToFill(int64_t n_tok_q, int64_t n_tok_k) { return n_tok_k == 0 ? 0 : n_tok_q; }

// Positions and windows are the kernels': one place says which keys a query sees.
AttnStatus FillWindows(int64_t n_tok_q, const kernels::SequenceMask& window, Doubles mask) {
  const int64_t rows = RowsToFill(n_tok_q, window.k_len);
  for (int64_t i = 0; i < rows; ++i) {
    FillRow(mask.data + i * window.k_len, window.k_len, window.Visible(i));
  }
  return ATTN_OK;
}

AttnStatus CheckWindow(const FlatWindow& window) {
  for (const auto& size : {window.window_size_left, window.window_size_right}) {
    if (const AttnStatus s = attn_window_check(size.value_or(0)); s != ATTN_OK) return s;
  }
  return attn_offset_check(window.offset);
}

AttnStatus CheckPadding(int64_t n_tok_k, int64_t k_len) {
  return k_len >= 0 && k_len <= n_tok_k ? ATTN_OK : ATTN_BAD_LENGTH;
}

AttnStatus CheckRises(const ConstIndices& cu_seqlens, int64_t n_tok) {
  const int64_t* values = cu_seqlens.data;
  if (values[0] != 0 || values[cu_seqlens.size - 1] != n_tok) return ATTN_BAD_LENGTH;
  const bool rises = std::is_sorted(values, values + cu_seqlens.size);
  return rises ? ATTN_OK : ATTN_BAD_LENGTH;
}

Needed NeedAll(const ConstIndices& cu_seqlens) {
  return Need(cu_seqlens, static_cast<uint64_t>(std::max<int64_t>(cu_seqlens.size, 1)));
}

AttnStatus CheckSequences(const FlatSequences& sequences, int64_t n_tok_q, int64_t n_tok_k) {
  const Needed cu_q = NeedAll(sequences.cu_seqlens_q), cu_k = NeedAll(sequences.cu_seqlens_k);
  if (const AttnStatus s = CheckBuffers({cu_q, cu_k}, {}); s != ATTN_OK) return s;
  if (cu_q.size != cu_k.size) return ATTN_BAD_LENGTH;
  if (const AttnStatus s = CheckRises(sequences.cu_seqlens_q, n_tok_q); s != ATTN_OK) return s;
  return CheckRises(sequences.cu_seqlens_k, n_tok_k);
}

// [total, heads, dim] of [1, heads, total, dim].
ConstTensorView TokenMajor(const ConstTensorView& view) {
  return ConstTensorView(view.data, view.dtype, {view.shape[2], view.shape[1], view.shape[3]});
}

}  // namespace

AttnStatus mask_causal_flat(int64_t n_tok_q, int64_t n_tok_k, int64_t offset, Doubles mask,
                            const FlatOptions& options) noexcept {
  return mask_sliding_window_flat(n_tok_q, n_tok_k, {{}, 0, offset}, mask, options);
}

AttnStatus mask_causal_native(int64_t offset, AttentionParams* params) noexcept {
  if (const AttnStatus s = attn_offset_check(offset); s != ATTN_OK) return s;
  if (params == nullptr) return ATTN_NULL_BUFFER;
  params->causal = true;
  params->q_start = offset;
  return ATTN_OK;
}

AttnStatus mask_sliding_window_flat(int64_t n_tok_q, int64_t n_tok_k, const FlatWindow& window,
                                    Doubles mask, const FlatOptions& options) noexcept {
  if (const AttnStatus s = CheckTokens(n_tok_q, n_tok_k); s != ATTN_OK) return s;
  if (const AttnStatus s = CheckWindow(window); s != ATTN_OK) return s;
  if (const AttnStatus s = CheckMask(n_tok_q, n_tok_k, mask, options); s != ATTN_OK) return s;
  kernels::SequenceMask visible;
  visible.k_len = n_tok_k;
  visible.q_start = window.offset;
  visible.window_left = window.window_size_left.value_or(kernels::kUnlimited);
  visible.window_right = window.window_size_right.value_or(kernels::kUnlimited);
  return FillWindows(n_tok_q, visible, mask);
}

AttnStatus mask_sliding_window_native(const FlatWindow& window, AttentionParams* params) noexcept {
  if (const AttnStatus s = CheckWindow(window); s != ATTN_OK) return s;
  if (params == nullptr) return ATTN_NULL_BUFFER;
  params->window_size_left = window.window_size_left;
  params->window_size_right = window.window_size_right;
  params->q_start = window.offset;
  return ATTN_OK;
}

AttnStatus mask_padding_flat(int64_t n_tok_q, int64_t n_tok_k, int64_t k_len, Doubles mask,
                             const FlatOptions& options) noexcept {
  if (const AttnStatus s = CheckTokens(n_tok_q, n_tok_k); s != ATTN_OK) return s;
  if (const AttnStatus s = CheckPadding(n_tok_k, k_len); s != ATTN_OK) return s;
  if (const AttnStatus s = CheckMask(n_tok_q, n_tok_k, mask, options); s != ATTN_OK) return s;
  const int64_t rows = RowsToFill(n_tok_q, n_tok_k);
  for (int64_t i = 0; i < rows; ++i) FillRow(mask.data + i * n_tok_k, n_tok_k, {0, k_len});
  return ATTN_OK;
}

AttnStatus mask_padding_native(int64_t n_tok_k, int64_t k_len, AttentionParams* params) noexcept {
  if (n_tok_k < 0) return ATTN_BAD_N_TOK_K;
  if (const AttnStatus s = CheckPadding(n_tok_k, k_len); s != ATTN_OK) return s;
  if (params == nullptr) return ATTN_NULL_BUFFER;
  params->k_len = k_len;
  return ATTN_OK;
}

AttnStatus mask_block_diagonal_flat(int64_t n_tok_q, int64_t n_tok_k,
                                    const FlatSequences& sequences, Doubles mask,
                                    const FlatOptions& options) noexcept {
  if (const AttnStatus s = CheckTokens(n_tok_q, n_tok_k); s != ATTN_OK) return s;
  const ConstIndices &cu_q = sequences.cu_seqlens_q, &cu_k = sequences.cu_seqlens_k;
  const uint64_t lengths = BytesOf({NeedAll(cu_q), NeedAll(cu_k)});
  if (const AttnStatus s = CheckMask(n_tok_q, n_tok_k, mask, options, lengths); s != ATTN_OK) {
    return s;
  }
  const uint64_t elements = static_cast<uint64_t>(n_tok_q) * static_cast<uint64_t>(n_tok_k);
  if (const AttnStatus s = CheckBuffers({NeedAll(cu_q), NeedAll(cu_k)}, {Need(mask, elements)});
      s != ATTN_OK) {
    return s;
  }
  if (const AttnStatus s = CheckSequences(sequences, n_tok_q, n_tok_k); s != ATTN_OK) return s;
  const int64_t count = RowsToFill(cu_q.size - 1, n_tok_k);
  for (int64_t sequence = 0; sequence < count; ++sequence) {
    const kernels::KeyRange keys{cu_k.data[sequence], cu_k.data[sequence + 1]};
    for (int64_t i = cu_q.data[sequence]; i < cu_q.data[sequence + 1]; ++i) {
      FillRow(mask.data + i * n_tok_k, n_tok_k, keys);
    }
  }
  return ATTN_OK;
}

AttnStatus mask_block_diagonal_native(const FlatInputs& inputs, const FlatDims& dims,
                                      const FlatSequences& sequences,
                                      VarlenInputs* views) noexcept {
  AttentionInputs padded;
  if (const AttnStatus s = attention_views_flat(inputs, dims, &padded); s != ATTN_OK) return s;
  if (padded.bias.present()) return ATTN_UNSUPPORTED;
  if (const AttnStatus s = CheckSequences(sequences, dims.n_tok_q, dims.n_tok_k); s != ATTN_OK) {
    return s;
  }
  if (views == nullptr) return ATTN_NULL_BUFFER;
  views->q = TokenMajor(padded.q);
  views->k = TokenMajor(padded.k);
  views->v = TokenMajor(padded.v);
  const ConstIndices &cu_q = sequences.cu_seqlens_q, &cu_k = sequences.cu_seqlens_k;
  views->cu_seqlens_q = ConstTensorView(cu_q.data, DType::kI64, {cu_q.size});
  views->cu_seqlens_k = ConstTensorView(cu_k.data, DType::kI64, {cu_k.size});
  return ATTN_OK;
}

}  // namespace flashlane::flat
