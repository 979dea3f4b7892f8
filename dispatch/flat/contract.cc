// attnk.contract: statuses, names and the checks that need no buffer.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dispatch/flat/checks.h"
#include "flashlane/flat.h"

namespace flashlane::flat {
namespace {

struct NamedNumber {
  std::int32_t number;
  const char* name;
};

constexpr NamedNumber Named(AttnStatus status, const char* name) {
  return {static_cast<std::int32_t>(status), name};
}
constexpr NamedNumber Named(Backend backend, const char* name) {
  return {static_cast<std::int32_t>(backend), name};
}

constexpr NamedNumber kStatuses[] = {
    Named(AttnStatus::kOk, "ATTN_OK"),
    Named(AttnStatus::kBadBatch, "ATTN_BAD_BATCH"),
    Named(AttnStatus::kBadHeadsQ, "ATTN_BAD_HEADS_Q"),
    Named(AttnStatus::kBadHeadsKv, "ATTN_BAD_HEADS_KV"),
    Named(AttnStatus::kHeadsNotDivisible, "ATTN_HEADS_NOT_DIVISIBLE"),
    Named(AttnStatus::kBadTokensQ, "ATTN_BAD_TOKENS_Q"),
    Named(AttnStatus::kBadTokensK, "ATTN_BAD_TOKENS_K"),
    Named(AttnStatus::kBadHeadDim, "ATTN_BAD_HEAD_DIM"),
    Named(AttnStatus::kSizeOverflow, "ATTN_SIZE_OVERFLOW"),
    Named(AttnStatus::kBadScale, "ATTN_BAD_SCALE"),
    Named(AttnStatus::kBadStep, "ATTN_BAD_STEP"),
    Named(AttnStatus::kBadTheta, "ATTN_BAD_THETA"),
    Named(AttnStatus::kBadWindow, "ATTN_BAD_WINDOW"),
    Named(AttnStatus::kBadTile, "ATTN_BAD_TILE"),
    Named(AttnStatus::kBadOffset, "ATTN_BAD_OFFSET"),
    Named(AttnStatus::kBadLength, "ATTN_BAD_LENGTH"),
    Named(AttnStatus::kBadPosition, "ATTN_BAD_POSITION"),
    Named(AttnStatus::kBadScaling, "ATTN_BAD_SCALING"),
    Named(AttnStatus::kBadBuffer, "ATTN_BAD_BUFFER"),
    Named(AttnStatus::kBudgetExceeded, "ATTN_BUDGET_EXCEEDED"),
    Named(AttnStatus::kOutOfMemory, "ATTN_OUT_OF_MEMORY"),
    Named(AttnStatus::kBadEnvironment, "ATTN_BAD_ENVIRONMENT"),
    Named(AttnStatus::kBadBackend, "ATTN_BAD_BACKEND"),
};

constexpr NamedNumber kBackends[] = {
    Named(Backend::kSdpa, "sdpa"),         Named(Backend::kFlash, "flash"),
    Named(Backend::kTiled, "tiled"),       Named(Backend::kDirect, "direct"),
    Named(Backend::kUnstable, "unstable"),
};

template <std::size_t kCount>
const char* NameOf(const NamedNumber (&list)[kCount], std::int32_t number) {
  for (const NamedNumber& entry : list) {
    if (entry.number == number) return entry.name;
  }
  return nullptr;
}

template <std::size_t kCount>
std::int32_t NumberOf(const NamedNumber (&list)[kCount], const char* name) {
  for (const NamedNumber& entry : list) {
    if (name != nullptr && std::strcmp(entry.name, name) == 0) return entry.number;
  }
  return -1;
}

}  // namespace

const char* AttnStatusName(std::int32_t status) noexcept { return NameOf(kStatuses, status); }
std::int32_t AttnStatusFromName(const char* name) noexcept { return NumberOf(kStatuses, name); }
const char* BackendName(std::int32_t backend) noexcept { return NameOf(kBackends, backend); }
std::int32_t BackendFromName(const char* name) noexcept { return NumberOf(kBackends, name); }

AttnStatus AttnDimsCheck(std::int64_t batch, std::int64_t h_q, std::int64_t h_kv,
                         std::int64_t n_tok_q, std::int64_t n_tok_k,
                         std::int64_t head_dim) noexcept {
  if (batch < 1) return AttnStatus::kBadBatch;
  if (h_q < 1) return AttnStatus::kBadHeadsQ;
  if (h_kv < 1) return AttnStatus::kBadHeadsKv;
  if (h_q % h_kv != 0) return AttnStatus::kHeadsNotDivisible;
  if (n_tok_q < 1) return AttnStatus::kBadTokensQ;
  if (n_tok_k < 1) return AttnStatus::kBadTokensK;
  if (head_dim < 1) return AttnStatus::kBadHeadDim;
  std::int64_t elements = 0;
  AttnStatus status = Elements({batch, n_tok_q, h_q, head_dim}, &elements);
  if (status == AttnStatus::kOk) status = Elements({batch, n_tok_k, h_kv, head_dim}, &elements);
  return status == AttnStatus::kOk ? Elements({n_tok_q, n_tok_k}, &elements) : status;
}

AttnStatus AttnScaleCheck(double scale) noexcept {
  return std::isfinite(scale) && scale > 0 ? AttnStatus::kOk : AttnStatus::kBadScale;
}
AttnStatus AttnStepCheck(double step) noexcept {
  return std::isfinite(step) && step > 0 ? AttnStatus::kOk : AttnStatus::kBadStep;
}
AttnStatus AttnThetaCheck(double theta) noexcept {
  return std::isfinite(theta) && theta > 1 ? AttnStatus::kOk : AttnStatus::kBadTheta;
}
AttnStatus AttnWindowCheck(std::int64_t window) noexcept {
  return window >= 1 ? AttnStatus::kOk : AttnStatus::kBadWindow;
}

AttnStatus AttnBudgetCheck(std::uint64_t flops, std::uint64_t bytes,
                           const WorkBudget& budget) noexcept {
  return flops > budget.max_flops || bytes > budget.max_bytes ? AttnStatus::kBudgetExceeded
                                                              : AttnStatus::kOk;
}

}  // namespace flashlane::flat
