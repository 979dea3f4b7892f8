// The rules of RopeInverseFrequencies and RopeTable, and the latter's resolution.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "dispatch/contract_rope.h"
#include "dispatch/contract_rules.h"
#include "dispatch/sequence_values.h"

namespace flashlane {
namespace {

// Integers up to here are exact in F64.
constexpr int64_t kMaxExact = int64_t{1} << 53;

Status CheckFiniteAbove(const char* name, double value, double low) {
  if (std::isfinite(value) && value > low) return {};
  return Invalid(name, "value " + std::to_string(value) + " is not finite and > " +
                           std::to_string(static_cast<int>(low)));
}

Status CheckOriginal(const RopeScaling& scaling) {
  const int64_t value = scaling.original_max_position;
  if (value >= 1 && value <= kMaxExact) return {};
  return Invalid("original_max_position", WithValue("value", value) + " is not within [1, 2^53]");
}

Status CheckYarn(double theta, const RopeScaling& scaling) {
  if (Status s = CheckFiniteAbove("theta", theta, 1.0); !s.ok()) return s;
  if (Status s = CheckOriginal(scaling); !s.ok()) return s;
  if (Status s = CheckFiniteAbove("beta_slow", scaling.beta_slow, 0.0); !s.ok()) return s;
  if (!std::isfinite(scaling.beta_fast) || scaling.beta_fast <= scaling.beta_slow) {
    return Invalid("beta_fast", "value " + std::to_string(scaling.beta_fast) +
                                    " is not finite and above beta_slow " +
                                    std::to_string(scaling.beta_slow));
  }
  const struct {
    const char* name;
    std::optional<double> value;
  } factors[] = {{"attention_factor", scaling.attention_factor},
                 {"mscale", scaling.mscale},
                 {"mscale_all_dim", scaling.mscale_all_dim}};
  for (const auto& factor : factors) {
    if (factor.value.has_value() && (!std::isfinite(*factor.value) || *factor.value < 0)) {
      return Invalid(factor.name,
                     "value " + std::to_string(*factor.value) + " is not finite and >= 0");
    }
  }
  return {};
}

Status CheckLlama3(const RopeScaling& scaling) {
  if (Status s = CheckOriginal(scaling); !s.ok()) return s;
  if (Status s = CheckFiniteAbove("low_freq_factor", scaling.low_freq_factor, 0.0); !s.ok()) {
    return s;
  }
  if (std::isfinite(scaling.high_freq_factor) &&
      scaling.high_freq_factor > scaling.low_freq_factor) {
    return {};
  }
  return Invalid("high_freq_factor", "value " + std::to_string(scaling.high_freq_factor) +
                                         " is not finite and above low_freq_factor " +
                                         std::to_string(scaling.low_freq_factor));
}

Status CheckScaling(double theta, const RopeScaling& scaling, int64_t pairs) {
  using Type = RopeScaling::Type;
  if (scaling.type > Type::kLlama3) {
    return Invalid("scaling.type", WithValue("value", static_cast<int>(scaling.type)) +
                                       " is not one of kNone ... kLlama3");
  }
  if (scaling.type == Type::kNone) return {};
  if (Status s = CheckFiniteAbove("factor", scaling.factor, 0.0); !s.ok()) return s;
  const bool ntk = scaling.type == Type::kNtk || scaling.type == Type::kDynamicNtk;
  if (ntk && pairs == 1) {
    return Invalid("inv_freq", "rotary_dim 2 has no NTK-aware scaling: its one wave stays");
  }
  switch (scaling.type) {
    case Type::kDynamicNtk:
      if (scaling.seqlen < 0 || scaling.seqlen > kMaxExact) {
        return Invalid("seqlen", WithValue("value", scaling.seqlen) + " is not within [0, 2^53]");
      }
      return CheckOriginal(scaling);
    case Type::kYarn:
      return CheckYarn(theta, scaling);
    case Type::kLlama3:
      return CheckLlama3(scaling);
    default:
      return {};
  }
}

Status CheckRows(const RopeTableInputs& inputs, int64_t num_rows) {
  if (inputs.positions.present()) {
    return CheckSequenceValues({"positions", inputs.positions}, num_rows,
                               {-kMaxExact, kMaxExact, ", what F64 holds exactly"});
  }
  const int64_t rows_on = std::max<int64_t>(num_rows - 1, 0);  // from the first to the last
  if (inputs.start >= -kMaxExact && inputs.start <= kMaxExact - rows_on) return {};
  return Invalid("start", WithValue("value", inputs.start) + " and " + std::to_string(num_rows) +
                              " rows reach past 2^53, what F64 holds exactly");
}

}  // namespace

Status CheckRopeFrequencies(double theta, const RopeScaling& scaling, const TensorView& inv_freq) {
  const NamedView out{"inv_freq", inv_freq};
  if (Status s = CheckOutputView(out, 1, Inner::kAny); !s.ok()) return s;
  if (Status s = CheckDType(out, DType::kF64); !s.ok()) return s;
  if (Status s = CheckFiniteAbove("theta", theta, 0.0); !s.ok()) return s;
  return CheckScaling(theta, scaling, inv_freq.shape[0]);
}

Status CheckRopeTable(const RopeTableInputs& inputs, const RopeTableOutputs& outputs) {
  const NamedView inv_freq{"inv_freq", inputs.inv_freq}, cos{"cos", outputs.cos},
      sin{"sin", outputs.sin};
  if (Status s = CheckView(inv_freq, 1, Inner::kAny); !s.ok()) return s;
  if (Status s = CheckDType(inv_freq, DType::kF64); !s.ok()) return s;
  const int64_t pairs = inputs.inv_freq.shape[0];
  for (int64_t i = 0; i < pairs; ++i) {
    const double value =
        static_cast<const double*>(inputs.inv_freq.data)[i * StrideOf(inputs.inv_freq, 0)];
    if (!std::isfinite(value)) {
      return Invalid("inv_freq", "value " + std::to_string(value) + " at " + std::to_string(i) +
                                     " is not finite");
    }
  }
  if (!std::isfinite(inputs.attention_factor)) {
    return Invalid("attention_factor",
                   "value " + std::to_string(inputs.attention_factor) + " is not finite");
  }
  if (outputs.cos.dtype != DType::kF32 && outputs.cos.dtype != DType::kF64) {
    return Invalid(
        "cos", std::string("dtype ") + DTypeName(outputs.cos.dtype) + " is not one of F32, F64");
  }
  for (const NamedView& table : {cos, sin}) {
    if (Status s = CheckOutputView(table, 2, Inner::kUnit); !s.ok()) return s;
    if (Status s = CheckDType(table, outputs.cos.dtype, ", cos's dtype"); !s.ok()) return s;
    if (Status s = CheckDim(table, 0, "num_positions", outputs.cos.shape[0]); !s.ok()) return s;
    if (Status s = CheckDim(table, 1, "rotary_dim / 2", pairs); !s.ok()) return s;
  }
  if (Status s = CheckRows(inputs, outputs.cos.shape[0]); !s.ok()) return s;
  return CheckDisjoint({inv_freq, {"positions", inputs.positions}}, {cos, sin});
}

kernels::RopeTableArgs ResolveRopeTable(const RopeTableInputs& inputs,
                                        const RopeTableOutputs& outputs) {
  kernels::RopeTableArgs args;
  args.inv_freq = static_cast<const double*>(inputs.inv_freq.data);
  args.inv_freq_stride = StrideOf(inputs.inv_freq, 0);
  args.pairs = inputs.inv_freq.shape[0];
  args.positions = SequenceValuesOf(inputs.positions, 0);
  args.start = inputs.start;
  args.attention_factor = inputs.attention_factor;
  args.cos = outputs.cos.data;
  args.sin = outputs.sin.data;
  args.cos_stride = StrideOf(outputs.cos, 0);
  args.sin_stride = StrideOf(outputs.sin, 0);
  return args;
}

}  // namespace flashlane
