// The attnk modules: attention, masks, RoPE and gradients over flat row-major [token][head][dim]
// buffers of doubles, for one sequence, with grouped queries (query head h reads kv head
// h / (h_q / h_kv)). Thin functions over Attention, AttentionBackward and ApplyRope; for other
// dtypes, strides or batches call those.
//
// Every function returns one of the specification's statuses; anything but AttnStatus::kOk means
// that no output has changed. Checked in this order: dimensions, work budget, scalars, buffers.
// Buffers may be longer than needed; outputs overlap nothing. Names are the specification's in
// CamelCase: sdpa_forward_flat is SdpaForwardFlat.
#ifndef FLASHLANE_FLAT_H_
#define FLASHLANE_FLAT_H_

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/rope.h"

namespace flashlane::flat {

// ---------------------------------------------------------------------------------------------
// attnk.contract

enum class AttnStatus : std::int32_t {
  kOk = 360,
  kBadBatch = 361,           // batch < 1
  kBadHeadsQ = 362,          // h_q < 1
  kBadHeadsKv = 363,         // h_kv < 1
  kHeadsNotDivisible = 364,  // h_q is no multiple of h_kv
  kBadTokensQ = 365,         // n_tok_q < 1
  kBadTokensK = 366,         // n_tok_k < 1
  kBadHeadDim = 367,         // head_dim < 1; of RoPE: odd
  kSizeOverflow = 368,       // a buffer of that size could not be addressed
  kBadScale = 369,           // not finite, or not > 0
  kBadStep = 370,            // not finite, or not > 0
  kBadTheta = 371,           // not finite, or not > 1
  kBadWindow = 372,          // < 1
  kBadTile = 373,            // < 1
  kBadOffset = 374,          // beyond +-2^61
  kBadLength = 375,          // a length that is negative or more than there is
  kBadPosition = 376,        // negative, or beyond the table
  kBadScaling = 377,         // RopeScaling breaks a rule of rope.h
  kBadBuffer = 378,          // null, shorter than its sizes say, or an output that overlaps
  kBudgetExceeded = 379,     // more flops or bytes than the budget allows
  kOutOfMemory = 380,
  kBadEnvironment = 381,  // FLASHLANE_TARGET names a target that does not run here
  kBadBackend = 382,      // no such backend
};

// "ATTN_OK", "ATTN_BAD_BATCH", ...; null for a number that is none.
FLASHLANE_API const char* AttnStatusName(std::int32_t status) noexcept;
// The status of that name, -1 for a name that is none or null.
FLASHLANE_API std::int32_t AttnStatusFromName(const char* name) noexcept;

// Ways to compute a forward.
enum class Backend : std::int32_t {
  kSdpa = 0,      // materialised reference
  kFlash = 1,     // keys in tiles of the caller's size, merged
  kTiled = 2,     // kFlash under the name of attnk.tiled
  kDirect = 3,    // production, tiles of the kernel's own size
  kUnstable = 4,  // without subtracting the maximum
};
// "sdpa", "flash", "tiled", "direct", "unstable"; null for a number that is none.
FLASHLANE_API const char* BackendName(std::int32_t backend) noexcept;
FLASHLANE_API std::int32_t BackendFromName(const char* name) noexcept;  // -1: none

// What a call may take. flops as AttnFlops says; bytes of operands, results and the module's own
// copies (of RoPE: of x and out, or of the tables made); what kernels borrow per thread is not in
// it.
struct WorkBudget {
  std::uint64_t max_flops = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();
};

// The first rule that is broken, in the order of the statuses.
FLASHLANE_API AttnStatus AttnDimsCheck(std::int64_t batch, std::int64_t h_q, std::int64_t h_kv,
                                       std::int64_t n_tok_q, std::int64_t n_tok_k,
                                       std::int64_t head_dim) noexcept;
FLASHLANE_API AttnStatus AttnScaleCheck(double scale) noexcept;
FLASHLANE_API AttnStatus AttnStepCheck(double step) noexcept;
FLASHLANE_API AttnStatus AttnThetaCheck(double theta) noexcept;
FLASHLANE_API AttnStatus AttnWindowCheck(std::int64_t window) noexcept;
// kBudgetExceeded where either is more than the budget.
FLASHLANE_API AttnStatus AttnBudgetCheck(std::uint64_t flops, std::uint64_t bytes,
                                         const WorkBudget& budget) noexcept;

// A caller's doubles. From anything with data() and size().
template <typename Element>
struct BasicBuffer {
  Element* data = nullptr;
  std::int64_t size = 0;

  BasicBuffer() = default;
  BasicBuffer(Element* data_in, std::int64_t size_in) noexcept : data(data_in), size(size_in) {}
  template <typename Container, typename = std::enable_if_t<std::is_convertible_v<
                                    decltype(std::declval<Container&>().data()), Element*>>>
  BasicBuffer(Container&& from) noexcept  // NOLINT: implicit on purpose
      : data(from.data()), size(static_cast<std::int64_t>(from.size())) {}
};
using ConstBuffer = BasicBuffer<const double>;
using Buffer = BasicBuffer<double>;
using ConstIndices = BasicBuffer<const std::int64_t>;

// Operands and parameters that the modules share.
struct FlatAttention {
  ConstBuffer q;     // [n_tok_q][h_q][head_dim]
  ConstBuffer k;     // [n_tok_k][h_kv][head_dim]
  ConstBuffer v;     // [n_tok_k][h_kv][head_dim]
  ConstBuffer bias;  // [n_tok_q][n_tok_k], added to the scores of every head; empty: none
  std::int64_t n_tok_q = 0;
  std::int64_t n_tok_k = 0;
  std::int64_t h_q = 0;
  std::int64_t h_kv = 0;
  std::int64_t head_dim = 0;
  double scale = 0;     // of q.k
  bool causal = false;  // query i sees keys 0 to i, as MaskCausalFlat with offset 0
};

struct FlatOutputs {
  Buffer out;  // [n_tok_q][h_q][head_dim]
  Buffer lse;  // [h_q][n_tok_q]: log of the sum of exp(score) per (head, query) row
};

// ---------------------------------------------------------------------------------------------
// attnk.sdpa and attnk.flash

// The materialised reference: the scalar oracle, in doubles.
FLASHLANE_API AttnStatus SdpaForwardFlat(const FlatAttention& in, const FlatOutputs& to,
                                         const WorkBudget& budget = {}) noexcept;

// The same on the tiled kernel: keys in tiles of `tile` (>= 1), whose results are merged in order.
FLASHLANE_API AttnStatus FlashForwardFlat(const FlatAttention& in, std::int64_t tile,
                                          const FlatOutputs& to,
                                          const WorkBudget& budget = {}) noexcept;

// How far a forward is from the reference.
struct Agreement {
  double max_out_difference = 0;
  double max_lse_difference = 0;
  // Of the element of out with the largest difference: 1e-12 + 8 n_tok_k eps max(1, |lse|) times
  // the sum of weight * |v| that made the element; lse is held to 1e-12 + 8 n_tok_k eps max(1,
  // |lse|).
  double tolerance = 0;
  bool agrees = false;        // every element of out and lse is within its own tolerance
  std::int64_t elements = 0;  // of out
  AttnStatus status = AttnStatus::kOk;
};

// FlashForwardFlat against SdpaForwardFlat. Budget: of all three passes together.
FLASHLANE_API Agreement FlashAgreesWithSdpa(const FlatAttention& in, std::int64_t tile,
                                            const WorkBudget& budget = {}) noexcept;

// ---------------------------------------------------------------------------------------------
// attnk.tiled

FLASHLANE_API AttnStatus TiledForwardFlat(const FlatAttention& in, std::int64_t tile,
                                          const FlatOutputs& to,
                                          const WorkBudget& budget = {}) noexcept;
FLASHLANE_API AttnStatus DirectForwardFlat(const FlatAttention& in, const FlatOutputs& to,
                                           const WorkBudget& budget = {}) noexcept;
// exp(score) without subtracting the maximum, to show what that is for: scores beyond 709 overflow
// to infinity and NaN. For demonstration only; nothing else calls it.
FLASHLANE_API AttnStatus UnstableForwardFlat(const FlatAttention& in, const FlatOutputs& to,
                                             const WorkBudget& budget = {}) noexcept;

// Of the two products: 4 head_dim per head and visible pair. Saturates; 0 for bad dimensions.
FLASHLANE_API std::uint64_t AttnFlops(std::int64_t n_tok_q, std::int64_t n_tok_k, std::int64_t h_q,
                                      std::int64_t head_dim, bool causal) noexcept;

// One backend against SdpaForwardFlat. `tile`: of those that have one.
FLASHLANE_API Agreement ReferenceDeltaFlat(Backend backend, const FlatAttention& in,
                                           std::int64_t tile,
                                           const WorkBudget& budget = {}) noexcept;

// ---------------------------------------------------------------------------------------------
// attnk.mask: additive biases [n_tok_q][n_tok_k], 0 where a key is seen and kMaskedBias elsewhere,
// and the same masks as parameters of Attention. They differ where a row sees nothing: by a bias
// its weights are those of unmasked scores (all are equally far down), natively out is 0.

inline constexpr double kMaskedBias = -1e9;

// Query i sees keys j <= i + offset.
FLASHLANE_API AttnStatus MaskCausalFlat(std::int64_t n_tok_q, std::int64_t n_tok_k,
                                        std::int64_t offset, const Buffer& bias,
                                        const WorkBudget& budget = {}) noexcept;
// Query i sees the `window` keys up to and with i + offset.
FLASHLANE_API AttnStatus MaskSlidingWindowFlat(std::int64_t n_tok_q, std::int64_t n_tok_k,
                                               std::int64_t window, std::int64_t offset,
                                               const Buffer& bias,
                                               const WorkBudget& budget = {}) noexcept;
// Every query sees keys below n_valid.
FLASHLANE_API AttnStatus MaskPaddingFlat(std::int64_t n_tok_q, std::int64_t n_tok_k,
                                         std::int64_t n_valid, const Buffer& bias,
                                         const WorkBudget& budget = {}) noexcept;
// Packed sequences of these lengths, one after the other: a query sees the keys of its own.
// bias is [sum][sum].
FLASHLANE_API AttnStatus MaskBlockDiagonalFlat(const ConstIndices& lengths, const Buffer& bias,
                                               const WorkBudget& budget = {}) noexcept;

FLASHLANE_API AttnStatus MaskCausalNative(std::int64_t offset, AttentionParams* params) noexcept;
FLASHLANE_API AttnStatus MaskSlidingWindowNative(std::int64_t window, std::int64_t offset,
                                                 AttentionParams* params) noexcept;
FLASHLANE_API AttnStatus MaskPaddingNative(std::int64_t n_valid, AttentionParams* params) noexcept;
// cu_seqlens of AttentionVarlen, one more than there are lengths.
FLASHLANE_API AttnStatus MaskBlockDiagonalNative(
    const ConstIndices& lengths, const BasicBuffer<std::int64_t>& cu_seqlens) noexcept;

// ---------------------------------------------------------------------------------------------
// attnk.rope

// theta^(-2i / head_dim), [head_dim / 2]. With `scaling`: as RopeInverseFrequencies.
FLASHLANE_API AttnStatus RopeInvFreqFlat(std::int64_t head_dim, double theta,
                                         const Buffer& inv_freq,
                                         const RopeScaling& scaling = {}) noexcept;

struct RopeTableBuffers {
  Buffer cos;  // [n_positions][head_dim / 2]
  Buffer sin;  // the same
};
// Of positions 0 to n_positions - 1; angles in doubles, right at any position.
FLASHLANE_API AttnStatus RopeTableFlat(std::int64_t head_dim, std::int64_t n_positions,
                                       double theta, const RopeTableBuffers& table,
                                       const RopeScaling& scaling = {},
                                       const WorkBudget& budget = {}) noexcept;

struct FlatRope {
  ConstBuffer x;         // [n_tok][n_heads][head_dim]
  ConstBuffer cos, sin;  // [positions][head_dim / 2]
  std::int64_t n_tok = 0;
  std::int64_t n_heads = 0;
  std::int64_t head_dim = 0;
  ConstIndices position;  // [n_tok]: row of the table per token
  // Pairs (2i, 2i + 1), GPT-J; else (i, i + head_dim / 2), GPT-NeoX.
  bool interleaved = false;
};
// `out` as x, and may be x itself. Inverse: by the negated angle.
FLASHLANE_API AttnStatus RopeApplyFlat(const FlatRope& in, const Buffer& out,
                                       const WorkBudget& budget = {}) noexcept;
FLASHLANE_API AttnStatus RopeApplyInverseFlat(const FlatRope& in, const Buffer& out,
                                              const WorkBudget& budget = {}) noexcept;

// ---------------------------------------------------------------------------------------------
// attnk.backward

struct FlatGradients {
  Buffer dq, dk, dv;  // as q, k and v
};
// Gradients of sum(dout * out), by the scalar oracle; dout as out.
FLASHLANE_API AttnStatus SdpaBwdFlat(const FlatAttention& in, const ConstBuffer& dout,
                                     const FlatGradients& to,
                                     const WorkBudget& budget = {}) noexcept;

struct Gradcheck {
  double max_error = 0;
  double tolerance = 0;  // 2 step^2 (1 + the largest gradient)
  bool agrees = false;
  std::int64_t elements = 0;  // of out, whose sum is differentiated
  AttnStatus status = AttnStatus::kOk;
};
// SdpaBwdFlat with dout = 1 against central differences of SdpaForwardFlat, each element of q, k
// and v moved by `step` either way. Budget: of all forwards.
FLASHLANE_API Gradcheck AttnBwdGradcheckFlat(const FlatAttention& in, double step,
                                             const WorkBudget& budget = {}) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_H_
