// attnk.rope: rotary position embedding over flat buffers. flashlane/rope.h has it for all dtypes
// and strides.
#ifndef FLASHLANE_FLAT_ROPE_H_
#define FLASHLANE_FLAT_ROPE_H_

#include <cstdint>

#include "flashlane/export.h"
#include "flashlane/flat/contract.h"
#include "flashlane/rope.h"

namespace flashlane::flat {

// inv_freq[head_dim / 2]: theta^(-2i / head_dim), radians per position.
FLASHLANE_API AttnStatus rope_inv_freq(std::int64_t head_dim, double theta, Doubles inv_freq,
                                       const FlatOptions& options = {}) noexcept;

// With the frequencies of RopeScaling: Llama 3, linear, NTK, YaRN. *attention_factor, where not
// null, is what the tables are multiplied by: 1 for all but YaRN.
FLASHLANE_API AttnStatus rope_inv_freq_scaled(std::int64_t head_dim, double theta,
                                              const RopeScaling& scaling, Doubles inv_freq,
                                              double* attention_factor = nullptr,
                                              const FlatOptions& options = {}) noexcept;

struct FlatRopeTables {
  Doubles cos_t = {};  // [n_pos][head_dim / 2]
  Doubles sin_t = {};  // the same
};

// Rows 0..n_pos - 1 of cos(position * inv_freq) and sin, angles in F64.
FLASHLANE_API AttnStatus rope_table(std::int64_t head_dim, std::int64_t n_pos, double theta,
                                    const FlatRopeTables& tables,
                                    const FlatOptions& options = {}) noexcept;

// Row i is position start + i, within +-2^53.
struct FlatRopeTableParams {
  std::int64_t head_dim = 0;
  std::int64_t n_pos = 0;
  double theta = 10000.0;
  RopeScaling scaling = {};
  std::int64_t start = 0;
};
FLASHLANE_API AttnStatus rope_table_scaled(const FlatRopeTableParams& params,
                                           const FlatRopeTables& tables,
                                           const FlatOptions& options = {}) noexcept;

struct FlatRopeInputs {
  ConstDoubles x = {};         // [n_tok][h][head_dim]
  ConstDoubles cos_t = {};     // [n_pos][rotary_dim / 2]; as many rows as it has whole ones
  ConstDoubles sin_t = {};     // the same
  ConstIndices position = {};  // [n_tok]: the row of each token. A packed batch restarts it
};

struct FlatRopeDims {
  std::int64_t n_tok = 0;
  std::int64_t h = 1;
  std::int64_t head_dim = 2;
  std::int64_t rotary_dim = 0;  // dimensions that are turned, the first ones; 0 = all of head_dim
};

// Turns each pair (x, y) of dimensions to (x cos - y sin, x sin + y cos). Pairs are i and
// i + rotary_dim / 2 (GPT-NeoX), or 2i and 2i + 1 (interleaved, GPT-J): a checkpoint is made for
// one of them, and the other runs without error and is wrong. The rest is copied. out is
// [n_tok][h][head_dim] and may be exactly x.
FLASHLANE_API AttnStatus rope_apply_flat(const FlatRopeInputs& inputs, const FlatRopeDims& dims,
                                         bool interleaved, Doubles out,
                                         const FlatOptions& options = {}) noexcept;
// By the negated angle: brings x back.
FLASHLANE_API AttnStatus rope_apply_inverse_flat(const FlatRopeInputs& inputs,
                                                 const FlatRopeDims& dims, bool interleaved,
                                                 Doubles out,
                                                 const FlatOptions& options = {}) noexcept;

}  // namespace flashlane::flat

#endif  // FLASHLANE_FLAT_ROPE_H_
