// Rotary position embedding (RoPE): inverse frequencies, tables of cos and sin, and the rotation of
// q and k. Sources: Su et al., "RoFormer" (2021); for longer contexts Chen et al., "Positional
// interpolation" (2023), Peng et al., "YaRN" (2023) and the Llama 3.1 reference code; frequencies
// are those of Hugging Face transformers' ROPE_INIT_FUNCTIONS, computed in F64.
//
//   Once per model:
//     RopeInverseFrequencies(theta, scaling, inv_freq, &attention_factor);
//     RopeTable({.inv_freq = inv_freq, .attention_factor = attention_factor}, {cos, sin});
//   Per layer, in place:
//     ApplyRope({.q = q, .k = k, .cos = cos, .sin = sin, .positions = positions}, {}, {q, k});
//
// or let KvAppend (flashlane/kv_cache.h) rotate k on its way into a paged cache.
#ifndef FLASHLANE_ROPE_H_
#define FLASHLANE_ROPE_H_

#include <cstdint>
#include <optional>

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// How frequencies are stretched for contexts longer than the model was trained on. A member that
// the type does not name is ignored.
struct RopeScaling {
  enum class Type : std::uint8_t {
    kNone,        // theta^(-2i / rotary_dim)
    kLinear,      // positional interpolation: divided by factor
    kNtk,         // NTK-aware: theta * factor^(d / (d - 2)), d = rotary_dim
    kDynamicNtk,  // the same with factor * seqlen / original_max_position - (factor - 1)
    kYarn,        // NTK by parts: interpolated below beta_slow turns, kept above beta_fast
    kLlama3,      // interpolated where waves are longer than the old context / low_freq_factor
  };
  Type type = Type::kNone;
  double factor = 1.0;                     // all but kNone: finite and > 0
  std::int64_t original_max_position = 0;  // kDynamicNtk, kYarn, kLlama3: >= 1
  std::int64_t seqlen = 0;                 // kDynamicNtk; at most the original: no scaling

  // kYarn. Turns within the original context; beta_fast > beta_slow > 0.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;  // the range of the ramp to whole pairs
  // What cos and sin are multiplied by; absent: 0.1 ln(factor) + 1, or where both of the next two
  // are there and not 0 (DeepSeek), (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) +
  // 1); 1 where factor <= 1.
  std::optional<double> attention_factor = {};
  std::optional<double> mscale = {};
  std::optional<double> mscale_all_dim = {};

  // kLlama3: high_freq_factor > low_freq_factor > 0.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
};

// inv_freq [rotary_dim / 2], F64: radians per position of each pair of dimensions. theta is finite
// and > 0 (kYarn: > 1), and so far from 0 that the frequencies are finite. *attention_factor, where
// not null, is what the table is to be multiplied by: 1 for all types but kYarn. rotary_dim 2 has
// no kNtk and no kDynamicNtk. Errors: kInvalidArgument.
FLASHLANE_API Status RopeInverseFrequencies(double theta, const RopeScaling& scaling,
                                            const TensorView& inv_freq,
                                            double* attention_factor = nullptr) noexcept;

struct RopeTableInputs {
  ConstTensorView inv_freq = {};  // [rotary_dim / 2], F64, finite
  // [num_positions], I32 or I64: the position of each row; any within +-2^53. Absent: row i is
  // position start + i.
  ConstTensorView positions = {};
  std::int64_t start = 0;
  double attention_factor = 1.0;  // finite
};

struct RopeTableOutputs {
  TensorView cos = {};  // [num_positions, rotary_dim / 2], F32 or F64
  TensorView sin = {};  // the same
};

// cos = attention_factor * cos(position * inv_freq), and sin likewise: angles and functions in F64,
// rounded to the table's type at the end, so that a row is right at any position. The product is
// exact to twice the digits of F64. Of ExecOptions, num_threads counts, which changes no bit.
// Errors: kInvalidArgument.
FLASHLANE_API Status RopeTable(const RopeTableInputs& inputs, const RopeTableOutputs& outputs,
                               const ExecOptions& options = {}) noexcept;

// q and k share dtype (F32, F64, BF16 or F16), rank, batch and seqlen, or total; either may be
// absent. Any strides with an innermost stride of 1; 0 broadcasts. Head sizes may differ.
struct RopeInputs {
  ConstTensorView q = {};    // [B, Hq, S, D] or token-major [total, Hq, D], D >= rotary_dim
  ConstTensorView k = {};    // [B, Hkv, S, D] or [total, Hkv, D]
  ConstTensorView cos = {};  // [num_positions, rotary_dim / 2], F32 (F64 for F64)
  ConstTensorView sin = {};  // the same
  // Row of the tables for each token, I32 or I64, each within [0, num_positions): [total], or
  // [B, S], or [S] for every sequence. Absent: token i of a sequence takes row q_start + i.
  ConstTensorView positions = {};
};

// Shaped as q and k, of their dtype; absent where they are. Each may be exactly its own input (the
// same memory, shape and strides) and shares memory with nothing else.
struct RopeOutputs {
  TensorView q = {};
  TensorView k = {};
};

struct RopeParams {
  // Which dimensions are a pair: i and i + rotary_dim / 2 (GPT-NeoX, Llama in Hugging Face's
  // layout), or, interleaved, 2i and 2i + 1 (GPT-J, Llama in Meta's). A checkpoint is made for one.
  bool interleaved = false;
  // Turns back: by the negated angle. Undoes the rotation where attention_factor is 1; its
  // transpose, and so the gradient, always.
  bool inverse = false;
  std::int64_t q_start = 0;  // >= 0; without positions only
};

// (x, y) of every pair become (x cos - y sin, x sin + y cos), in F32 (F64 for F64), rounded once to
// the dtype; dimensions from rotary_dim on are copied. A NaN result is the one quiet NaN.
// Same bits on every repeat and for any thread count. Everything is checked before anything is
// written: on any error no byte of an output has changed. Of ExecOptions, kernel and accumulator
// are ignored; needs no scratch; flops are 3 per rotated element.
// Errors: kInvalidArgument, kUnsupported (target), kBudgetExceeded.
FLASHLANE_API Status ApplyRope(const RopeInputs& inputs, const RopeParams& params,
                               const RopeOutputs& outputs,
                               const ExecOptions& options = {}) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_ROPE_H_
