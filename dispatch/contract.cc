#include "dispatch/contract.h"

#include <cstdint>
#include <string>

#include "dispatch/contract_rules.h"
#include "dispatch/sequence_values.h"
#include "dispatch/view.h"

namespace flashlane {
namespace {

Status CheckQkv(const AttentionInputs& in) {
  if (Status s = CheckAttentionDType({"q", in.q}); !s.ok()) return s;
  for (const NamedView& operand : {NamedView{"q", in.q}, {"k", in.k}, {"v", in.v}}) {
    if (Status s = CheckView(operand, 4, Inner::kUnit); !s.ok()) return s;
    if (Status s = CheckDType(operand, in.q.dtype, ", q's dtype"); !s.ok()) return s;
    if (Status s = CheckDim(operand, 0, "batch", in.q.shape[0]); !s.ok()) return s;
    if (operand.view.shape[1] < 1) return Invalid(operand.name, "number of heads 0 is below 1");
    if (Status s = CheckHeadSize(operand); !s.ok()) return s;
  }
  const Sizes sizes = SizesOf(in);
  if (Status s = CheckDim({"k", in.k}, 3, "head_dim", sizes.head_dim); !s.ok()) return s;
  if (Status s = CheckDim({"v", in.v}, 1, "num_kv_heads", sizes.num_kv_heads); !s.ok()) return s;
  if (Status s = CheckDim({"v", in.v}, 2, "seqlen_k", sizes.seqlen_k); !s.ok()) return s;
  return CheckGroup("k", sizes);
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
      return Invalid(operand.name, WithValue(want[d].what, have) + " is neither 1 nor " +
                                       std::to_string(want[d].size) + " (shape " +
                                       ShapeString(operand.view) + ")");
    }
  }
  return {};
}

Status CheckScoreInputs(const AttentionInputs& in) {
  const Sizes sizes = SizesOf(in);
  const NamedView slopes{"alibi_slopes", in.alibi_slopes};
  if (Status s = CheckHeadOperand(slopes, sizes, in.q.dtype); !s.ok()) return s;
  if (Status s = CheckHeadOperand({"sinks", in.sinks}, sizes, in.q.dtype); !s.ok()) return s;
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
  const Sizes sizes = SizesOf(in);
  if (params.k_len.has_value() && (*params.k_len < 0 || *params.k_len > sizes.seqlen_k)) {
    return Invalid("k_len", WithValue("value", *params.k_len) + " is not within [0, " +
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
    return Invalid("q_start", WithValue("kind", static_cast<int64_t>(params.q_start.kind)) +
                                  " is neither kValue nor kBottomRight");
  }
  if (named && start != 0) {
    return Invalid("q_start", WithValue("value", start) + " given together with kBottomRight");
  }
  if (!in.q_start.present()) return {};
  if (start != 0 || params.q_start.kind != QStart::Kind::kValue) {
    return Invalid("q_start", "given both as a parameter and per sequence");
  }
  return CheckSequenceValues({"q_start", in.q_start}, sizes.batch, {-kMaxPosition, kMaxPosition});
}

}  // namespace

Sizes SizesOf(const AttentionInputs& in) {
  return {in.q.shape[0], in.q.shape[1], in.k.shape[1], in.q.shape[2],
          in.k.shape[2], in.q.shape[3], in.v.shape[3]};
}

Status CheckOperands(const AttentionInputs& inputs, const AttentionParams& params) {
  if (Status s = CheckQkv(inputs); !s.ok()) return s;
  if (Status s = CheckScoreInputs(inputs); !s.ok()) return s;
  if (Status s = CheckLengths(inputs, params); !s.ok()) return s;
  return CheckParams(params, inputs.q.dtype);
}

Status CheckDisjointFrom(const AttentionInputs& inputs, std::initializer_list<NamedView> outputs) {
  return CheckDisjoint({{"q", inputs.q},
                        {"k", inputs.k},
                        {"v", inputs.v},
                        {"bias", inputs.bias},
                        {"mask", inputs.mask},
                        {"alibi_slopes", inputs.alibi_slopes},
                        {"sinks", inputs.sinks},
                        {"k_len", inputs.k_len},
                        {"q_start", inputs.q_start}},
                       outputs);
}

Status CheckForward(const AttentionInputs& inputs, const AttentionParams& params,
                    const AttentionOutputs& outputs) {
  if (Status s = CheckOperands(inputs, params); !s.ok()) return s;
  if (Status s = CheckOutputs(SizesOf(inputs), inputs.q.dtype, outputs); !s.ok()) return s;
  return CheckDisjointFrom(inputs, {{"out", outputs.out}, {"lse", outputs.lse}});
}

kernels::ForwardArgs ResolveForward(const AttentionInputs& in, const AttentionParams& params,
                                    const AttentionOutputs& outputs) {
  kernels::ForwardArgs args = ResolveShared(SizesOf(in), params, outputs);
  args.q = in.q.data;
  args.k = in.k.data;
  args.v = in.v.data;
  args.q_strides = RowStridesOf(in.q);
  args.k_strides = RowStridesOf(in.k);
  args.v_strides = RowStridesOf(in.v);
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
