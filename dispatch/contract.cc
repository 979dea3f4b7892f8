#include "dispatch/contract.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "dispatch/sequence_values.h"
#include "dispatch/view.h"

namespace flashlane {
namespace {

std::string Of(const char* what, int64_t value) {
  return std::string(what) + " " + std::to_string(value);
}

// The sizes of a call, as q, k and v state them.
struct Sizes {
  int64_t batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v;

  static Sizes From(const AttentionInputs& in) {
    return {in.q.shape[0], in.q.shape[1], in.k.shape[1], in.q.shape[2],
            in.k.shape[2], in.q.shape[3], in.v.shape[3]};
  }
};

Status CheckDim(const NamedView& operand, int dim, const char* what, int64_t want) {
  const int64_t have = operand.view.shape[dim];
  if (have == want) return {};
  return Invalid(operand.name, Of(what, have) + " is not " + std::to_string(want) + " (shape " +
                                   ShapeString(operand.view) + ")");
}

Status CheckQkv(const AttentionInputs& in) {
  if (!IsAttentionDType(in.q.dtype)) {
    return Invalid(
        "q", std::string("dtype ") + DTypeName(in.q.dtype) + " is not one of F32, F64, BF16, F16");
  }
  for (const NamedView& operand : {NamedView{"q", in.q}, {"k", in.k}, {"v", in.v}}) {
    if (Status s = CheckView(operand, 4, Inner::kUnit); !s.ok()) return s;
    if (Status s = CheckDType(operand, in.q.dtype, ", q's dtype"); !s.ok()) return s;
    if (Status s = CheckDim(operand, 0, "batch", in.q.shape[0]); !s.ok()) return s;
    if (operand.view.shape[1] < 1) return Invalid(operand.name, "number of heads 0 is below 1");
    if (operand.view.shape[3] < 1) return Invalid(operand.name, "head size 0 is below 1");
  }
  const Sizes sizes = Sizes::From(in);
  if (Status s = CheckDim({"k", in.k}, 3, "head_dim", sizes.head_dim); !s.ok()) return s;
  if (Status s = CheckDim({"v", in.v}, 1, "num_kv_heads", sizes.num_kv_heads); !s.ok()) return s;
  if (Status s = CheckDim({"v", in.v}, 2, "seqlen_k", sizes.seqlen_k); !s.ok()) return s;
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    return Invalid("k", Of("num_heads", sizes.num_heads) + " is not a multiple of " +
                            Of("num_kv_heads", sizes.num_kv_heads));
  }
  return {};
}

Status CheckOutputs(const AttentionInputs& in, const AttentionOutputs& outputs) {
  const Sizes sizes = Sizes::From(in);
  const NamedView out{"out", outputs.out};
  if (Status s = CheckOutputView(out, 4, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckDType(out, in.q.dtype, ", q's dtype"); !s.ok()) return s;
  if (Status s = CheckDim(out, 0, "batch", sizes.batch); !s.ok()) return s;
  if (Status s = CheckDim(out, 1, "num_heads", sizes.num_heads); !s.ok()) return s;
  if (Status s = CheckDim(out, 2, "seqlen_q", sizes.seqlen_q); !s.ok()) return s;
  if (Status s = CheckDim(out, 3, "head_dim_v", sizes.head_dim_v); !s.ok()) return s;
  if (!outputs.lse.present()) return {};
  const NamedView lse{"lse", outputs.lse};
  if (Status s = CheckOutputView(lse, 3, Inner::kAny); !s.ok()) return s;
  const DType want = in.q.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  if (Status s = CheckDType(lse, want, ""); !s.ok()) return s;
  if (Status s = CheckDim(lse, 0, "batch", sizes.batch); !s.ok()) return s;
  if (Status s = CheckDim(lse, 1, "num_heads", sizes.num_heads); !s.ok()) return s;
  return CheckDim(lse, 2, "seqlen_q", sizes.seqlen_q);
}

Status CheckQDTypeOrF32(const NamedView& operand, DType q_dtype) {
  if (operand.view.dtype == DType::kF32) return {};
  return CheckDType(operand, q_dtype, ", q's dtype, nor F32");
}

// [B|1, Hq|1, Sq|1, Sk|1].
Status CheckScoreOperand(const NamedView& operand, const Sizes& sizes) {
  if (Status s = CheckView(operand, 4, Inner::kUnitOrBroadcast); !s.ok()) return s;
  const struct {
    const char* what;
    int64_t size;
  } want[] = {{"batch", sizes.batch},
              {"num_heads", sizes.num_heads},
              {"seqlen_q", sizes.seqlen_q},
              {"seqlen_k", sizes.seqlen_k}};
  for (int d = 0; d < 4; ++d) {
    const int64_t have = operand.view.shape[d];
    if (have != want[d].size && have != 1) {
      return Invalid(operand.name, Of(want[d].what, have) + " is neither 1 nor " +
                                       std::to_string(want[d].size) + " (shape " +
                                       ShapeString(operand.view) + ")");
    }
  }
  return {};
}

Status CheckHeadOperand(const NamedView& operand, const Sizes& sizes, DType q_dtype) {
  if (Status s = CheckView(operand, 1, Inner::kAny); !s.ok()) return s;
  if (Status s = CheckDim(operand, 0, "num_heads", sizes.num_heads); !s.ok()) return s;
  return CheckQDTypeOrF32(operand, q_dtype);
}

Status CheckScoreInputs(const AttentionInputs& in) {
  const Sizes sizes = Sizes::From(in);
  if (in.alibi_slopes.present()) {
    const NamedView slopes{"alibi_slopes", in.alibi_slopes};
    if (Status s = CheckHeadOperand(slopes, sizes, in.q.dtype); !s.ok()) return s;
  }
  if (in.sinks.present()) {
    if (Status s = CheckHeadOperand({"sinks", in.sinks}, sizes, in.q.dtype); !s.ok()) return s;
  }
  if (in.bias.present()) {
    if (Status s = CheckScoreOperand({"bias", in.bias}, sizes); !s.ok()) return s;
    if (Status s = CheckQDTypeOrF32({"bias", in.bias}, in.q.dtype); !s.ok()) return s;
  }
  if (in.mask.present()) {
    if (Status s = CheckScoreOperand({"mask", in.mask}, sizes); !s.ok()) return s;
    if (Status s = CheckDType({"mask", in.mask}, DType::kBool, ""); !s.ok()) return s;
  }
  return {};
}

Status CheckLengths(const AttentionInputs& in, const AttentionParams& params) {
  const Sizes sizes = Sizes::From(in);
  if (params.k_len.has_value() && (*params.k_len < 0 || *params.k_len > sizes.seqlen_k)) {
    return Invalid("k_len", Of("value", *params.k_len) + " is not within [0, " +
                                std::to_string(sizes.seqlen_k) + "], the keys of k");
  }
  if (in.k_len.present()) {
    if (params.k_len.has_value()) {
      return Invalid("k_len", "given both as a parameter and per sequence");
    }
    if (Status s = CheckSequenceValues({"k_len", in.k_len}, sizes.batch, {0, sizes.seqlen_k});
        !s.ok()) {
      return s;
    }
  }
  const int64_t start = params.q_start.value;
  const bool named = params.q_start.kind == QStart::Kind::kBottomRight;
  if (!named && params.q_start.kind != QStart::Kind::kValue) {
    return Invalid("q_start", Of("kind", static_cast<int64_t>(params.q_start.kind)) +
                                  " is neither kValue nor kBottomRight");
  }
  if (named && start != 0) {
    return Invalid("q_start", Of("value", start) + " given together with kBottomRight");
  }
  if (start > kMaxPosition || start < -kMaxPosition) {
    return Invalid("q_start", Of("value", start) + " is beyond 2^61 in magnitude");
  }
  if (!in.q_start.present()) return {};
  if (start != 0 || params.q_start.kind != QStart::Kind::kValue) {
    return Invalid("q_start", "given both as a parameter and per sequence");
  }
  return CheckSequenceValues({"q_start", in.q_start}, sizes.batch, {-kMaxPosition, kMaxPosition});
}

// Finite also in the type the kernel computes in: F32 unless q is F64.
bool FiniteFor(double value, DType q_dtype) {
  return q_dtype == DType::kF64 ? std::isfinite(value) : std::isfinite(static_cast<float>(value));
}

Status CheckParams(const AttentionParams& params, DType q_dtype) {
  if (params.softmax_scale.has_value() && !FiniteFor(*params.softmax_scale, q_dtype)) {
    return Invalid("softmax_scale",
                   "value " + std::to_string(*params.softmax_scale) + " is not finite");
  }
  if (params.softcap.has_value()) {
    const double cap = *params.softcap;
    const bool positive = q_dtype == DType::kF64 ? cap > 0.0 : static_cast<float>(cap) > 0.0f;
    if (!positive || !FiniteFor(cap, q_dtype)) {
      return Invalid("softcap", "value " + std::to_string(cap) + " is not finite and > 0");
    }
  }
  const struct {
    const char* name;
    std::optional<int64_t> size;
  } windows[] = {{"window_size_left", params.window_size_left},
                 {"window_size_right", params.window_size_right}};
  for (const auto& window : windows) {
    if (window.size.has_value() && *window.size < 0) {
      return Invalid(window.name,
                     Of("value", *window.size) + " is negative; leave it out for none");
    }
  }
  return {};
}

kernels::ScoreOperand ScoreOperandOf(const ConstTensorView& view, DType q_dtype) {
  if (!view.present()) return {};
  return {view.data,         view.dtype == DType::kF32 && q_dtype != DType::kF32,
          StrideOf(view, 0), StrideOf(view, 1),
          StrideOf(view, 2), StrideOf(view, 3)};
}

kernels::HeadOperand HeadOperandOf(const ConstTensorView& view, DType q_dtype) {
  if (!view.present()) return {};
  return {view.data, view.dtype == DType::kF32 && q_dtype != DType::kF32, StrideOf(view, 0)};
}

}  // namespace

Status CheckForward(const AttentionInputs& inputs, const AttentionParams& params,
                    const AttentionOutputs& outputs) {
  if (Status s = CheckQkv(inputs); !s.ok()) return s;
  if (Status s = CheckOutputs(inputs, outputs); !s.ok()) return s;
  if (Status s = CheckScoreInputs(inputs); !s.ok()) return s;
  if (Status s = CheckLengths(inputs, params); !s.ok()) return s;
  if (Status s = CheckParams(params, inputs.q.dtype); !s.ok()) return s;
  return CheckDisjoint({{"q", inputs.q},
                        {"k", inputs.k},
                        {"v", inputs.v},
                        {"bias", inputs.bias},
                        {"mask", inputs.mask},
                        {"alibi_slopes", inputs.alibi_slopes},
                        {"sinks", inputs.sinks},
                        {"k_len", inputs.k_len},
                        {"q_start", inputs.q_start}},
                       {"out", outputs.out}, {"lse", outputs.lse});
}

kernels::ForwardArgs ResolveForward(const AttentionInputs& in, const AttentionParams& params,
                                    const AttentionOutputs& outputs) {
  const Sizes sizes = Sizes::From(in);
  kernels::ForwardArgs args;
  args.q = in.q.data;
  args.k = in.k.data;
  args.v = in.v.data;
  args.out = outputs.out.data;
  args.lse = outputs.lse.present() ? outputs.lse.data : nullptr;
  args.q_strides = RowStridesOf(in.q);
  args.k_strides = RowStridesOf(in.k);
  args.v_strides = RowStridesOf(in.v);
  args.out_strides = RowStridesOf(outputs.out);
  args.lse_strides = RowStridesOf(outputs.lse);
  args.batch = sizes.batch;
  args.num_heads = sizes.num_heads;
  args.num_kv_heads = sizes.num_kv_heads;
  args.seqlen_q = sizes.seqlen_q;
  args.seqlen_k = sizes.seqlen_k;
  args.head_dim = sizes.head_dim;
  args.head_dim_v = sizes.head_dim_v;
  args.softmax_scale =
      params.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(sizes.head_dim)));
  args.softcap = params.softcap.value_or(0.0);
  args.window_left = params.window_size_left.value_or(kernels::kUnlimited);
  args.window_right = params.causal ? 0 : params.window_size_right.value_or(kernels::kUnlimited);
  args.has_k_len = in.k_len.present() || params.k_len.has_value();
  args.k_len = SequenceValuesOf(in.k_len, params.k_len.value_or(0));
  args.q_start = SequenceValuesOf(in.q_start, params.q_start.value);
  args.bottom_right = params.q_start.kind == QStart::Kind::kBottomRight;
  args.alibi_slopes = HeadOperandOf(in.alibi_slopes, in.q.dtype);
  args.sinks = HeadOperandOf(in.sinks, in.q.dtype);
  args.bias = ScoreOperandOf(in.bias, in.q.dtype);
  args.mask = ScoreOperandOf(in.mask, in.q.dtype);
  return args;
}

}  // namespace flashlane
