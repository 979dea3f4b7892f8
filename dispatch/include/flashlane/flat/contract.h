// attnk.contract: what the flat modules ask of their arguments, and the types that they share.
//
// Every function of the modules checks, in this order, before it reads or writes a buffer: sizes,
// scalars, the work budget, buffers (null, short, misaligned, overlapping, none at all), then what
// index buffers hold. The first broken rule is the status; on any status but ATTN_OK no output byte
// has changed.
#ifndef FLASHLANE_FLAT_CONTRACT_H_
#define FLASHLANE_FLAT_CONTRACT_H_

#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "flashlane/export.h"

namespace flashlane::flat {

// A code of its own for every rule. Numbers are part of the interface and never change.
enum [[nodiscard]] AttnStatus : std::int32_t{
    ATTN_UNKNOWN = -1,  // what looking up an unknown name gives
    ATTN_OK = 360,
    // Sizes.
    ATTN_BAD_BATCH = 361,       // negative
    ATTN_BAD_H_Q = 362,         // below 1
    ATTN_BAD_H_KV = 363,        // below 1
    ATTN_BAD_GROUP = 364,       // h_q is not a multiple of h_kv
    ATTN_BAD_N_TOK_Q = 365,     // negative
    ATTN_BAD_N_TOK_K = 366,     // negative
    ATTN_BAD_HEAD_DIM = 367,    // below 1; of rotary embeddings odd, too
    ATTN_SIZE_OVERFLOW = 368,   // a buffer of that size does not fit in 62 bits of bytes
    ATTN_BAD_ROTARY_DIM = 369,  // negative, odd, or above head_dim
    ATTN_BAD_N_POS = 370,       // negative
                                // Scalars.
    ATTN_BAD_SCALE = 371,       // not finite
    ATTN_BAD_STEP = 372,        // not finite, not above 0, or lost in an input's rounding
    ATTN_BAD_THETA = 373,       // not finite or not above 0
    ATTN_BAD_WINDOW = 374,      // negative
    ATTN_BAD_TILE = 375,        // below 1
    ATTN_BAD_OFFSET = 376,      // beyond 2^61 in magnitude
    ATTN_BAD_LENGTH = 377,      // k_len or cu_seqlens: not within, or not rising to, the tokens
    ATTN_BAD_POSITION = 378,    // not a row of the tables; of tables, beyond 2^53
    ATTN_BAD_SCALING = 379,     // a parameter of RopeScaling
    ATTN_BAD_BACKEND = 380,     // no such backend
    ATTN_BAD_THREADS = 381,     // negative
    // Work budget.
    ATTN_OVER_FLOPS = 382, ATTN_OVER_BYTES = 383,
    // Buffers.
    ATTN_NULL_BUFFER = 384, ATTN_SHORT_BUFFER = 385, ATTN_MISALIGNED_BUFFER = 386,
    ATTN_BUFFER_OVERLAP = 387,  // an output shares memory with an input or another output
    ATTN_NO_OUTPUT = 388,       // of outputs that may be left out, all are
    // Not the arguments' fault.
    ATTN_OUT_OF_MEMORY = 389,
    ATTN_UNSUPPORTED = 390,      // by this build or machine
    ATTN_BAD_ENVIRONMENT = 391,  // FLASHLANE_TARGET or FLASHLANE_NUM_THREADS
};

// "ATTN_OK"; "ATTN_UNKNOWN" where there is no such code.
FLASHLANE_API const char* attn_status_name(std::int32_t code) noexcept;
// ATTN_UNKNOWN where there is no such name.
FLASHLANE_API AttnStatus attn_status_from_name(std::string_view name) noexcept;
// The rule, in words. Never null.
FLASHLANE_API const char* attn_status_message(std::int32_t code) noexcept;

// Who computes a forward pass: a function <name>_forward_flat each.
enum AttnBackend : std::int32_t {
  ATTN_BACKEND_UNKNOWN = -1,
  ATTN_BACKEND_SDPA = 0,
  ATTN_BACKEND_FLASH = 1,
  ATTN_BACKEND_TILED = 2,
  ATTN_BACKEND_DIRECT = 3,
  ATTN_BACKEND_UNSTABLE = 4,
};

// "sdpa", "flash", "tiled", "direct", "unstable"; "unknown".
FLASHLANE_API const char* attn_backend_name(std::int32_t backend) noexcept;
FLASHLANE_API AttnBackend attn_backend_from_name(std::string_view name) noexcept;

// `size` elements at `data`. Converts from a container (std::vector, std::array, std::span). A
// default-constructed buffer is absent, where it may be. Longer than needed is fine: the rest is
// neither read nor written.
template <typename T>
struct FlatBuffer {
  T* data = nullptr;
  std::int64_t size = 0;

  FlatBuffer() = default;
  FlatBuffer(T* data_in, std::int64_t size_in) noexcept : data(data_in), size(size_in) {}
  template <typename Container, typename Pointer = decltype(std::declval<Container&>().data()),
            typename = decltype(std::declval<Container&>().size()),
            typename = std::enable_if_t<std::is_convertible_v<Pointer, T*>>>
  FlatBuffer(Container&& container) noexcept  // NOLINT: implicit on purpose
      : data(container.data()), size(static_cast<std::int64_t>(container.size())) {}
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U*, T*>>>
  FlatBuffer(const FlatBuffer<U>& other) noexcept  // NOLINT: implicit on purpose
      : data(other.data), size(other.size) {}

  bool present() const noexcept { return data != nullptr || size != 0; }
};

using ConstDoubles = FlatBuffer<const double>;
using Doubles = FlatBuffer<double>;
using ConstIndices = FlatBuffer<const std::int64_t>;

// Sizes of a call over one sequence. Query head h reads kv head h / (h_q / h_kv). No tokens is
// legal: a query without keys has out 0 and lse -inf.
struct FlatDims {
  std::int64_t n_tok_q = 0;
  std::int64_t n_tok_k = 0;
  std::int64_t h_q = 1;
  std::int64_t h_kv = 1;
  std::int64_t head_dim = 1;
};

struct FlatParams {
  double scale = 1.0;   // of q.k; finite
  bool causal = false;  // query i sees keys 0..i: token 0 of both stands at the same place
};

// How much a call may do; one that needs more is refused before anything else happens. flops are
// counted as each function says. bytes: operands and results, each once, and what the module
// allocates itself; the kernels' scratch, which no length makes grow, is not counted.
struct FlatOptions {
  std::uint64_t max_flops = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();
  int num_threads = 0;  // at most; 0 = all that the caller's arena grants. Changes no bit
};

// ATTN_OK, or the code of the first rule that is broken, in the order of the codes.
FLASHLANE_API AttnStatus attn_dims_check(std::int64_t batch, std::int64_t h_q, std::int64_t h_kv,
                                         std::int64_t n_tok_q, std::int64_t n_tok_k,
                                         std::int64_t head_dim) noexcept;

FLASHLANE_API AttnStatus attn_scale_check(double scale) noexcept;          // finite
FLASHLANE_API AttnStatus attn_step_check(double step) noexcept;            // finite, above 0
FLASHLANE_API AttnStatus attn_theta_check(double theta) noexcept;          // finite, above 0
FLASHLANE_API AttnStatus attn_window_check(std::int64_t window) noexcept;  // 0 or more
FLASHLANE_API AttnStatus attn_tile_check(std::int64_t tile) noexcept;      // 1 or more
FLASHLANE_API AttnStatus attn_offset_check(std::int64_t offset) noexcept;  // within +-2^61

// Whether work is within the limits, and num_threads a number of threads. Counts that do not fit in
// 64 bits saturate: the largest number is beyond every limit but that number itself, the default.
FLASHLANE_API AttnStatus attn_budget_check(std::uint64_t flops, std::uint64_t bytes,
                                           const FlatOptions& options) noexcept;
// The saturating product, to count work with.
FLASHLANE_API std::uint64_t attn_work_product(std::uint64_t a, std::uint64_t b) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_CONTRACT_H_
