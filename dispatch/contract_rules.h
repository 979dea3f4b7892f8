// Rules that several kinds of calls share, and the resolution of what they share.
#ifndef FLASHLANE_DISPATCH_CONTRACT_RULES_H_
#define FLASHLANE_DISPATCH_CONTRACT_RULES_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "dispatch/view.h"
#include "flashlane/attention.h"
#include "flashlane/status.h"
#include "kernels/args.h"

namespace flashlane {

// The sizes of a call, as its operands state them.
struct Sizes {
  int64_t batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v;
};
Sizes SizesOf(const AttentionInputs& inputs);

// "what value".
std::string WithValue(const char* what, int64_t value);

// `what` names the dimension: "k: head_dim 7 is not 8 (shape [2, 2, 5, 7])".
Status CheckDim(const NamedView& operand, int dim, const char* what, int64_t want);

// The last size of a view: at least 1, and so few that the bytes of some rows are an int64.
Status CheckHeadSize(const NamedView& operand);

Status CheckAttentionDType(const NamedView& operand);

// num_heads is a multiple of the num_kv_heads that `keys` has.
Status CheckGroup(const char* keys, const Sizes& sizes);

// out [B, Hq, Sq, Dv] and, where present, lse [B, Hq, Sq].
Status CheckOutputs(const Sizes& sizes, DType q_dtype, const AttentionOutputs& outputs);

// The rules of inputs and parameters, which a call and its gradients share.
Status CheckOperands(const AttentionInputs& inputs, const AttentionParams& params);
Status CheckVarlenOperands(const VarlenInputs& inputs, const AttentionParams& params);

// No output shares memory with an input or with another output.
Status CheckDisjointFrom(const AttentionInputs& inputs, std::initializer_list<NamedView> outputs);
Status CheckDisjointFrom(const VarlenInputs& inputs, std::initializer_list<NamedView> outputs);

Status CheckQDTypeOrF32(const NamedView& operand, DType q_dtype);

// A packed batch as one long sequence, without its lengths; and its outputs.
AttentionInputs PackedAsOne(const VarlenInputs& inputs);
AttentionOutputs PackedAsOne(const AttentionOutputs& outputs);

// [Hq], q's dtype or F32, where present.
Status CheckHeadOperand(const NamedView& operand, const Sizes& sizes, DType q_dtype);

// What does not depend on a length: scale, softcap, windows.
Status CheckParams(const AttentionParams& params, DType q_dtype);

kernels::HeadOperand HeadOperandOf(const ConstTensorView& view, DType q_dtype);
kernels::ScoreOperand ScoreOperandOf(const ConstTensorView& view, DType q_dtype);

// Outputs, sizes, scale, softcap and the left window.
kernels::ForwardArgs ResolveShared(const Sizes& sizes, const AttentionParams& params,
                                   const AttentionOutputs& outputs);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_CONTRACT_RULES_H_
