// attnk.contract: sizes, scalars, names, work budget.

#include "flashlane/flat/contract.h"

#include <cmath>
#include <cstdint>
#include <string_view>

#include "dispatch/cost.h"
#include "dispatch/flat/call.h"

namespace flashlane::flat {
namespace {

struct StatusRow {
  AttnStatus code;
  const char* name;
  const char* message;
};

constexpr StatusRow kUnknownStatus = {ATTN_UNKNOWN, "ATTN_UNKNOWN", "no such status"};

constexpr StatusRow kStatuses[] = {
    {ATTN_OK, "ATTN_OK", "ok"},
    {ATTN_BAD_BATCH, "ATTN_BAD_BATCH", "batch is negative"},
    {ATTN_BAD_H_Q, "ATTN_BAD_H_Q", "h_q is below 1"},
    {ATTN_BAD_H_KV, "ATTN_BAD_H_KV", "h_kv is below 1"},
    {ATTN_BAD_GROUP, "ATTN_BAD_GROUP", "h_q is not a multiple of h_kv"},
    {ATTN_BAD_N_TOK_Q, "ATTN_BAD_N_TOK_Q", "n_tok_q is negative"},
    {ATTN_BAD_N_TOK_K, "ATTN_BAD_N_TOK_K", "n_tok_k is negative"},
    {ATTN_BAD_HEAD_DIM, "ATTN_BAD_HEAD_DIM",
     "head_dim is below 1 or, of rotary embeddings, not even"},
    {ATTN_SIZE_OVERFLOW, "ATTN_SIZE_OVERFLOW", "a buffer of that size does not fit in memory"},
    {ATTN_BAD_ROTARY_DIM, "ATTN_BAD_ROTARY_DIM", "rotary_dim is not even and within [0, head_dim]"},
    {ATTN_BAD_N_POS, "ATTN_BAD_N_POS", "n_pos is negative"},
    {ATTN_BAD_SCALE, "ATTN_BAD_SCALE", "scale is not finite"},
    {ATTN_BAD_STEP, "ATTN_BAD_STEP",
     "step is not finite, not above 0, or too small for the inputs"},
    {ATTN_BAD_THETA, "ATTN_BAD_THETA", "theta is not finite or not above 0"},
    {ATTN_BAD_WINDOW, "ATTN_BAD_WINDOW", "a window is negative"},
    {ATTN_BAD_TILE, "ATTN_BAD_TILE", "tile is below 1"},
    {ATTN_BAD_OFFSET, "ATTN_BAD_OFFSET", "offset is beyond 2^61 in magnitude"},
    {ATTN_BAD_LENGTH, "ATTN_BAD_LENGTH",
     "k_len is not within [0, n_tok_k], or cu_seqlens do not rise from 0 to the number of tokens"},
    {ATTN_BAD_POSITION, "ATTN_BAD_POSITION",
     "a position is no row of the tables, or beyond 2^53 in magnitude"},
    {ATTN_BAD_SCALING, "ATTN_BAD_SCALING", "a parameter of the scaling is out of range"},
    {ATTN_BAD_BACKEND, "ATTN_BAD_BACKEND", "no such backend"},
    {ATTN_BAD_THREADS, "ATTN_BAD_THREADS", "num_threads is negative; 0 means all"},
    {ATTN_OVER_FLOPS, "ATTN_OVER_FLOPS", "the call needs more than max_flops"},
    {ATTN_OVER_BYTES, "ATTN_OVER_BYTES", "the call needs more than max_bytes"},
    {ATTN_NULL_BUFFER, "ATTN_NULL_BUFFER", "a buffer that the call needs is null"},
    {ATTN_SHORT_BUFFER, "ATTN_SHORT_BUFFER", "a buffer is shorter than the sizes say"},
    {ATTN_MISALIGNED_BUFFER, "ATTN_MISALIGNED_BUFFER",
     "a buffer is not aligned to its elements' size"},
    {ATTN_BUFFER_OVERLAP, "ATTN_BUFFER_OVERLAP",
     "an output shares memory with an input or another output"},
    {ATTN_NO_OUTPUT, "ATTN_NO_OUTPUT", "no output is given"},
    {ATTN_OUT_OF_MEMORY, "ATTN_OUT_OF_MEMORY", "memory could not be allocated"},
    {ATTN_UNSUPPORTED, "ATTN_UNSUPPORTED", "this build or machine cannot do it"},
    {ATTN_BAD_ENVIRONMENT, "ATTN_BAD_ENVIRONMENT",
     "FLASHLANE_TARGET or FLASHLANE_NUM_THREADS is not valid"},
};

const StatusRow& RowOf(int32_t code) {
  for (const StatusRow& row : kStatuses) {
    if (row.code == code) return row;
  }
  return kUnknownStatus;
}

constexpr const char* kBackends[] = {"sdpa", "flash", "tiled", "direct", "unstable"};
constexpr int32_t kNumBackends = sizeof(kBackends) / sizeof(kBackends[0]);
static_assert(kNumBackends == ATTN_BACKEND_UNSTABLE + 1);

constexpr int64_t kMaxOffset = int64_t{1} << 61;  // the core's

}  // namespace

const char* attn_status_name(int32_t code) noexcept { return RowOf(code).name; }

const char* attn_status_message(int32_t code) noexcept { return RowOf(code).message; }

AttnStatus attn_status_from_name(std::string_view name) noexcept {
  for (const StatusRow& row : kStatuses) {
    if (name == row.name) return row.code;
  }
  return ATTN_UNKNOWN;
}

const char* attn_backend_name(int32_t backend) noexcept {
  return backend >= 0 && backend < kNumBackends ? kBackends[backend] : "unknown";
}

AttnBackend attn_backend_from_name(std::string_view name) noexcept {
  for (int32_t i = 0; i < kNumBackends; ++i) {
    if (name == kBackends[i]) return static_cast<AttnBackend>(i);
  }
  return ATTN_BACKEND_UNKNOWN;
}

AttnStatus attn_dims_check(int64_t batch, int64_t h_q, int64_t h_kv, int64_t n_tok_q,
                           int64_t n_tok_k, int64_t head_dim) noexcept {
  if (batch < 0) return ATTN_BAD_BATCH;
  if (h_q < 1) return ATTN_BAD_H_Q;
  if (h_kv < 1) return ATTN_BAD_H_KV;
  if (h_q % h_kv != 0) return ATTN_BAD_GROUP;
  if (n_tok_q < 0) return ATTN_BAD_N_TOK_Q;
  if (n_tok_k < 0) return ATTN_BAD_N_TOK_K;
  if (head_dim < 1) return ATTN_BAD_HEAD_DIM;
  // A row of all heads and a batch of rows apart: neither may hide behind a size of 0.
  const auto row = [head_dim](int64_t heads) {
    return SaturatingProduct(static_cast<uint64_t>(heads), static_cast<uint64_t>(head_dim));
  };
  const uint64_t width = row(h_q);  // h_kv is not more
  const uint64_t sequence_q = SaturatingProduct(width, static_cast<uint64_t>(n_tok_q));
  const uint64_t sequence_k = SaturatingProduct(row(h_kv), static_cast<uint64_t>(n_tok_k));
  const auto sequences = static_cast<uint64_t>(batch);
  const bool fits = SizeFits(width) && SizeFits(sequence_q) && SizeFits(sequence_k) &&
                    SizeFits(SaturatingProduct(sequence_q, sequences)) &&
                    SizeFits(SaturatingProduct(sequence_k, sequences));
  return fits ? ATTN_OK : ATTN_SIZE_OVERFLOW;
}

AttnStatus attn_scale_check(double scale) noexcept {
  return std::isfinite(scale) ? ATTN_OK : ATTN_BAD_SCALE;
}

AttnStatus attn_step_check(double step) noexcept {
  return std::isfinite(step) && step > 0.0 ? ATTN_OK : ATTN_BAD_STEP;
}

AttnStatus attn_theta_check(double theta) noexcept {
  return std::isfinite(theta) && theta > 0.0 ? ATTN_OK : ATTN_BAD_THETA;
}

AttnStatus attn_window_check(int64_t window) noexcept {
  return window >= 0 ? ATTN_OK : ATTN_BAD_WINDOW;
}

AttnStatus attn_tile_check(int64_t tile) noexcept { return tile >= 1 ? ATTN_OK : ATTN_BAD_TILE; }

AttnStatus attn_offset_check(int64_t offset) noexcept {
  return offset >= -kMaxOffset && offset <= kMaxOffset ? ATTN_OK : ATTN_BAD_OFFSET;
}

AttnStatus attn_budget_check(uint64_t flops, uint64_t bytes, const FlatOptions& options) noexcept {
  if (options.num_threads < 0) return ATTN_BAD_THREADS;
  if (flops > options.max_flops) return ATTN_OVER_FLOPS;
  return bytes > options.max_bytes ? ATTN_OVER_BYTES : ATTN_OK;
}

uint64_t attn_work_product(uint64_t a, uint64_t b) noexcept { return SaturatingProduct(a, b); }

}  // namespace flashlane::flat
