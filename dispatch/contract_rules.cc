#include "dispatch/contract_rules.h"

#include <cmath>
#include <optional>
#include <string>

#include "dispatch/sequence_values.h"

namespace flashlane {
namespace {

// Finite also in the type the kernel computes in: F32 unless q is F64.
bool FiniteFor(double value, DType q_dtype) {
  return q_dtype == DType::kF64 ? std::isfinite(value) : std::isfinite(static_cast<float>(value));
}

}  // namespace

std::string WithValue(const char* what, int64_t value) {
  return std::string(what) + " " + std::to_string(value);
}

Status CheckDim(const NamedView& operand, int dim, const char* what, int64_t want) {
  const int64_t have = operand.view.shape[dim];
  if (have == want) return {};
  return Invalid(operand.name, WithValue(what, have) + " is not " + std::to_string(want) +
                                   " (shape " + ShapeString(operand.view) + ")");
}

Status CheckAttentionDType(const NamedView& operand) {
  if (IsAttentionDType(operand.view.dtype)) return {};
  return Invalid(operand.name, std::string("dtype ") + DTypeName(operand.view.dtype) +
                                   " is not one of F32, F64, BF16, F16");
}

Status CheckGroup(const char* keys, const Sizes& sizes) {
  if (sizes.num_heads % sizes.num_kv_heads == 0) return {};
  return Invalid(keys, WithValue("num_heads", sizes.num_heads) + " is not a multiple of " +
                           WithValue("num_kv_heads", sizes.num_kv_heads));
}

Status CheckOutputs(const Sizes& sizes, DType q_dtype, const AttentionOutputs& outputs) {
  const NamedView out{"out", outputs.out};
  if (Status s = CheckOutputView(out, 4, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckDType(out, q_dtype, ", q's dtype"); !s.ok()) return s;
  if (Status s = CheckDim(out, 0, "batch", sizes.batch); !s.ok()) return s;
  if (Status s = CheckDim(out, 1, "num_heads", sizes.num_heads); !s.ok()) return s;
  if (Status s = CheckDim(out, 2, "seqlen_q", sizes.seqlen_q); !s.ok()) return s;
  if (Status s = CheckDim(out, 3, "head_dim_v", sizes.head_dim_v); !s.ok()) return s;
  if (!outputs.lse.present()) return {};
  const NamedView lse{"lse", outputs.lse};
  if (Status s = CheckOutputView(lse, 3, Inner::kAny); !s.ok()) return s;
  const DType want = q_dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  if (Status s = CheckDType(lse, want, ""); !s.ok()) return s;
  if (Status s = CheckDim(lse, 0, "batch", sizes.batch); !s.ok()) return s;
  if (Status s = CheckDim(lse, 1, "num_heads", sizes.num_heads); !s.ok()) return s;
  return CheckDim(lse, 2, "seqlen_q", sizes.seqlen_q);
}

AttentionOutputs PackedAsOne(const AttentionOutputs& outputs) {
  AttentionOutputs one;
  one.out = WithBatch(outputs.out);
  one.lse = WithBatch(outputs.lse);
  return one;
}

Status CheckQDTypeOrF32(const NamedView& operand, DType q_dtype) {
  if (operand.view.dtype == DType::kF32) return {};
  return CheckDType(operand, q_dtype, ", q's dtype, nor F32");
}

Status CheckHeadOperand(const NamedView& operand, const Sizes& sizes, DType q_dtype) {
  if (!operand.view.present()) return {};
  if (Status s = CheckView(operand, 1, Inner::kAny); !s.ok()) return s;
  if (Status s = CheckDim(operand, 0, "num_heads", sizes.num_heads); !s.ok()) return s;
  return CheckQDTypeOrF32(operand, q_dtype);
}

Status CheckHeadSize(const NamedView& operand) {
  constexpr int64_t kMostColumns = int64_t{1} << 40;
  const int64_t size = operand.view.shape[operand.view.rank - 1];
  if (size < 1) return Invalid(operand.name, "head size 0 is below 1");
  if (size > kMostColumns)
    return Invalid(operand.name, WithValue("head size", size) + " is beyond 2^40");
  return {};
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
  const int64_t start = params.q_start.value;
  if (start > kMaxPosition || start < -kMaxPosition) {
    return Invalid("q_start", WithValue("value", start) + " is beyond 2^61 in magnitude");
  }
  const struct {
    const char* name;
    std::optional<int64_t> size;
  } windows[] = {{"window_size_left", params.window_size_left},
                 {"window_size_right", params.window_size_right}};
  for (const auto& window : windows) {
    if (window.size.has_value() && *window.size < 0) {
      return Invalid(window.name,
                     WithValue("value", *window.size) + " is negative; leave it out for none");
    }
  }
  return {};
}

kernels::HeadOperand HeadOperandOf(const ConstTensorView& view, DType q_dtype) {
  if (!view.present()) return {};
  return {view.data, view.dtype == DType::kF32 && q_dtype != DType::kF32, StrideOf(view, 0)};
}

kernels::ScoreOperand ScoreOperandOf(const ConstTensorView& view, DType q_dtype) {
  if (!view.present()) return {};
  return {view.data,         view.dtype == DType::kF32 && q_dtype != DType::kF32,
          StrideOf(view, 0), StrideOf(view, 1),
          StrideOf(view, 2), StrideOf(view, 3)};
}

kernels::ForwardArgs ResolveShared(const Sizes& sizes, const AttentionParams& params,
                                   const AttentionOutputs& outputs) {
  kernels::ForwardArgs args;
  args.out = outputs.out.data;
  args.lse = outputs.lse.present() ? outputs.lse.data : nullptr;
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
  return args;
}

}  // namespace flashlane
