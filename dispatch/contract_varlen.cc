// The rules and the resolution of packed batches: the tensors are those of one long sequence
// [1, heads, total, width], and cu_seqlens says which rows belong together.

#include <string>

#include "dispatch/contract.h"
#include "dispatch/contract_rules.h"
#include "dispatch/sequence_values.h"
#include "dispatch/view.h"

namespace flashlane {
namespace {

int64_t NumSequences(const VarlenInputs& inputs) { return inputs.cu_seqlens_q.shape[0] - 1; }

Status CheckVarlenLengths(const VarlenInputs& inputs, const AttentionParams& params) {
  const int64_t count = NumSequences(inputs);
  if (inputs.k_len.present()) {
    if (params.k_len.has_value()) {
      return Invalid("k_len", "given both as a parameter and per sequence");
    }
    const ValueRange range{0, inputs.k.shape[0]};
    if (Status s = CheckSequenceValues({"k_len", inputs.k_len}, count, range); !s.ok()) return s;
  }
  if (inputs.k_len.present() || params.k_len.has_value()) {
    const auto k_len = SequenceValuesOf(inputs.k_len, params.k_len.value_or(0));
    const auto cu_seqlens_k = SequenceValuesOf(inputs.cu_seqlens_k, 0);
    for (int64_t b = 0; b < count; ++b) {
      const int64_t keys = cu_seqlens_k.At(b + 1) - cu_seqlens_k.At(b);
      if (k_len.At(b) > keys) {
        return Invalid("k_len", "value " + std::to_string(k_len.At(b)) + " of sequence " +
                                    std::to_string(b) + " is above its " + std::to_string(keys) +
                                    " keys");
      }
    }
  }
  if (!inputs.q_start.present()) return {};
  if (params.q_start.value != 0 || params.q_start.kind != QStart::Kind::kValue) {
    return Invalid("q_start", "given both as a parameter and per sequence");
  }
  return CheckSequenceValues({"q_start", inputs.q_start}, count, {-kMaxPosition, kMaxPosition});
}

}  // namespace

AttentionInputs PackedAsOne(const VarlenInputs& inputs) {
  AttentionInputs one;
  one.q = WithBatch(inputs.q);
  one.k = WithBatch(inputs.k);
  one.v = WithBatch(inputs.v);
  one.alibi_slopes = inputs.alibi_slopes;
  one.sinks = inputs.sinks;
  return one;
}

Status CheckVarlenOperands(const VarlenInputs& inputs, const AttentionParams& params) {
  for (const NamedView& operand : {NamedView{"q", inputs.q}, {"k", inputs.k}, {"v", inputs.v}}) {
    if (Status s = CheckView(operand, 3, Inner::kUnit); !s.ok()) return s;
  }
  if (Status s = CheckOperands(PackedAsOne(inputs), params); !s.ok()) return s;
  const NamedView cu_seqlens_q{"cu_seqlens_q", inputs.cu_seqlens_q};
  if (Status s = CheckView(cu_seqlens_q, 1, Inner::kAny); !s.ok()) return s;
  const int64_t count = NumSequences(inputs);
  if (count < 0) return Invalid("cu_seqlens_q", "length 0 is below 1");
  if (Status s = CheckCuSeqlens(cu_seqlens_q, count, inputs.q.shape[0]); !s.ok()) return s;
  const NamedView cu_seqlens_k{"cu_seqlens_k", inputs.cu_seqlens_k};
  if (Status s = CheckCuSeqlens(cu_seqlens_k, count, inputs.k.shape[0]); !s.ok()) return s;
  return CheckVarlenLengths(inputs, params);
}

Status CheckDisjointFrom(const VarlenInputs& inputs, std::initializer_list<NamedView> outputs) {
  if (Status s = CheckDisjointFrom(PackedAsOne(inputs), outputs); !s.ok()) return s;
  return CheckDisjoint({{"cu_seqlens_q", inputs.cu_seqlens_q},
                        {"cu_seqlens_k", inputs.cu_seqlens_k},
                        {"k_len", inputs.k_len},
                        {"q_start", inputs.q_start}},
                       outputs);
}

Status CheckVarlen(const VarlenInputs& inputs, const AttentionParams& params,
                   const AttentionOutputs& outputs) {
  if (Status s = CheckVarlenOperands(inputs, params); !s.ok()) return s;
  if (Status s = CheckView({"out", outputs.out}, 3, Inner::kUnit); !s.ok()) return s;
  if (outputs.lse.present()) {
    if (Status s = CheckView({"lse", outputs.lse}, 2, Inner::kAny); !s.ok()) return s;
  }
  const Sizes sizes = SizesOf(PackedAsOne(inputs));
  if (Status s = CheckOutputs(sizes, inputs.q.dtype, PackedAsOne(outputs)); !s.ok()) return s;
  return CheckDisjointFrom(inputs, {{"out", outputs.out}, {"lse", outputs.lse}});
}

kernels::ForwardArgs ResolveVarlen(const VarlenInputs& inputs, const AttentionParams& params,
                                   const AttentionOutputs& outputs) {
  kernels::ForwardArgs args = ResolveForward(PackedAsOne(inputs), params, PackedAsOne(outputs));
  args.batch = NumSequences(inputs);
  args.cu_seqlens_q = SequenceValuesOf(inputs.cu_seqlens_q, 0);
  args.cu_seqlens_k = SequenceValuesOf(inputs.cu_seqlens_k, 0);
  args.seqlen_q = LongestOf(args.cu_seqlens_q, args.batch);
  args.seqlen_k = LongestOf(args.cu_seqlens_k, args.batch);
  args.has_k_len = inputs.k_len.present() || params.k_len.has_value();
  args.k_len = SequenceValuesOf(inputs.k_len, params.k_len.value_or(0));
  args.q_start = SequenceValuesOf(inputs.q_start, params.q_start.value);
  return args;
}

}  // namespace flashlane
