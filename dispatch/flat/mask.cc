// attnk.mask: masks as additive biases, and as the core has them.

#include <algorithm>
#include <cstdint>

#include "dispatch/cost.h"
#include "dispatch/flat/checks.h"
#include "flashlane/flat.h"

namespace flashlane::flat {
namespace {

constexpr std::int64_t kMaxOffset = std::int64_t{1} << 61;  // as QStart's

AttnStatus CheckOffset(std::int64_t offset) {
  return offset >= -kMaxOffset && offset <= kMaxOffset ? AttnStatus::kOk : AttnStatus::kBadOffset;
}

AttnStatus CheckSizes(std::int64_t n_tok_q, std::int64_t n_tok_k, const WorkBudget& budget) {
  const AttnStatus dims = AttnDimsCheck(1, 1, 1, n_tok_q, n_tok_k, 1);
  if (dims != AttnStatus::kOk) return dims;
  const auto elements = static_cast<std::uint64_t>(n_tok_q * n_tok_k);
  return AttnBudgetCheck(0, SaturatingProduct(elements, sizeof(double)), budget);
}

// One row: keys [begin, end) are seen.
void FillRow(std::int64_t n_tok_k, std::int64_t begin, std::int64_t end, double* row) {
  begin = std::clamp<std::int64_t>(begin, 0, n_tok_k);
  end = std::clamp(end, begin, n_tok_k);
  std::fill(row, row + begin, kMaskedBias);
  std::fill(row + begin, row + end, 0.0);
  std::fill(row + end, row + n_tok_k, kMaskedBias);
}

// Lengths that are not negative and whose sum is a size.
AttnStatus CheckLengths(const ConstIndices& lengths, std::int64_t* sum) {
  *sum = 0;
  if (lengths.size < 0 || (lengths.data == nullptr && lengths.size > 0)) {
    return AttnStatus::kBadBuffer;
  }
  for (std::int64_t b = 0; b < lengths.size; ++b) {
    if (lengths.data[b] < 0) return AttnStatus::kBadLength;
    if (__builtin_add_overflow(*sum, lengths.data[b], sum)) return AttnStatus::kSizeOverflow;
  }
  return AttnStatus::kOk;
}

}  // namespace

AttnStatus MaskCausalFlat(std::int64_t n_tok_q, std::int64_t n_tok_k, std::int64_t offset,
                          const Buffer& bias, const WorkBudget& budget) noexcept {
  if (const AttnStatus s = CheckSizes(n_tok_q, n_tok_k, budget); s != AttnStatus::kOk) return s;
  if (const AttnStatus s = CheckOffset(offset); s != AttnStatus::kOk) return s;
  const AttnStatus s = CheckBuffers({Needed::Output(bias, n_tok_q * n_tok_k)});
  if (s != AttnStatus::kOk) return s;
  for (std::int64_t i = 0; i < n_tok_q; ++i) {
    FillRow(n_tok_k, 0, i + offset + 1, bias.data + i * n_tok_k);
  }
  return AttnStatus::kOk;
}

AttnStatus MaskSlidingWindowFlat(std::int64_t n_tok_q, std::int64_t n_tok_k, std::int64_t window,
                                 std::int64_t offset, const Buffer& bias,
                                 const WorkBudget& budget) noexcept {
  if (const AttnStatus s = CheckSizes(n_tok_q, n_tok_k, budget); s != AttnStatus::kOk) return s;
  if (const AttnStatus s = AttnWindowCheck(window); s != AttnStatus::kOk) return s;
  if (const AttnStatus s = CheckOffset(offset); s != AttnStatus::kOk) return s;
  const AttnStatus s = CheckBuffers({Needed::Output(bias, n_tok_q * n_tok_k)});
  if (s != AttnStatus::kOk) return s;
  for (std::int64_t i = 0; i < n_tok_q; ++i) {
    const std::int64_t end = i + offset + 1;
    // A window as long as all there is, or longer, begins before the first key.
    const std::int64_t begin = window >= end ? 0 : end - window;
    FillRow(n_tok_k, begin, end, bias.data + i * n_tok_k);
  }
  return AttnStatus::kOk;
}

AttnStatus MaskPaddingFlat(std::int64_t n_tok_q, std::int64_t n_tok_k, std::int64_t n_valid,
                           const Buffer& bias, const WorkBudget& budget) noexcept {
  if (const AttnStatus s = CheckSizes(n_tok_q, n_tok_k, budget); s != AttnStatus::kOk) return s;
  if (n_valid < 0 || n_valid > n_tok_k) return AttnStatus::kBadLength;
  const AttnStatus s = CheckBuffers({Needed::Output(bias, n_tok_q * n_tok_k)});
  if (s != AttnStatus::kOk) return s;
  for (std::int64_t i = 0; i < n_tok_q; ++i) FillRow(n_tok_k, 0, n_valid, bias.data + i * n_tok_k);
  return AttnStatus::kOk;
}

AttnStatus MaskBlockDiagonalFlat(const ConstIndices& lengths, const Buffer& bias,
                                 const WorkBudget& budget) noexcept {
  std::int64_t tokens = 0;
  if (const AttnStatus s = CheckLengths(lengths, &tokens); s != AttnStatus::kOk) return s;
  if (const AttnStatus s = CheckSizes(tokens, tokens, budget); s != AttnStatus::kOk) return s;
  const AttnStatus s =
      CheckBuffers({Needed::Output(bias, tokens * tokens), Needed::Input(lengths, lengths.size)});
  if (s != AttnStatus::kOk) return s;
  std::int64_t begin = 0;
  for (std::int64_t b = 0; b < lengths.size; ++b) {
    const std::int64_t end = begin + lengths.data[b];
    for (std::int64_t i = begin; i < end; ++i) {
      FillRow(tokens, begin, end, bias.data + i * tokens);
    }
    begin = end;
  }
  return AttnStatus::kOk;
}

AttnStatus MaskCausalNative(std::int64_t offset, AttentionParams* params) noexcept {
  if (params == nullptr) return AttnStatus::kBadBuffer;
  if (const AttnStatus s = CheckOffset(offset); s != AttnStatus::kOk) return s;
  params->causal = true;
  params->q_start = offset;
  return AttnStatus::kOk;
}

AttnStatus MaskSlidingWindowNative(std::int64_t window, std::int64_t offset,
                                   AttentionParams* params) noexcept {
  if (params == nullptr) return AttnStatus::kBadBuffer;
  if (const AttnStatus s = AttnWindowCheck(window); s != AttnStatus::kOk) return s;
  if (const AttnStatus s = MaskCausalNative(offset, params); s != AttnStatus::kOk) return s;
  params->window_size_left = window - 1;
  return AttnStatus::kOk;
}

AttnStatus MaskPaddingNative(std::int64_t n_valid, AttentionParams* params) noexcept {
  if (params == nullptr) return AttnStatus::kBadBuffer;
  if (n_valid < 0) return AttnStatus::kBadLength;
  params->k_len = n_valid;
  return AttnStatus::kOk;
}

AttnStatus MaskBlockDiagonalNative(const ConstIndices& lengths,
                                   const BasicBuffer<std::int64_t>& cu_seqlens) noexcept {
  std::int64_t tokens = 0;
  if (const AttnStatus s = CheckLengths(lengths, &tokens); s != AttnStatus::kOk) return s;
  const AttnStatus s = CheckBuffers(
      {Needed::Output(cu_seqlens, lengths.size + 1), Needed::Input(lengths, lengths.size)});
  if (s != AttnStatus::kOk) return s;
  cu_seqlens.data[0] = 0;
  for (std::int64_t b = 0; b < lengths.size; ++b) {
    cu_seqlens.data[b + 1] = cu_seqlens.data[b] + lengths.data[b];
  }
  return AttnStatus::kOk;
}

}  // namespace flashlane::flat
