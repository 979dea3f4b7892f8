// What a call must satisfy, checked before anything is read or written; and the resolution of a
// checked call into plain arguments. Nothing below dispatch/ checks again.
#ifndef FLASHLANE_DISPATCH_CONTRACT_H_
#define FLASHLANE_DISPATCH_CONTRACT_H_

#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/paged.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"

namespace flashlane {

// Every rule of flashlane/attention.h that does not concern a kernel or a target.
Status CheckForward(const AttentionInputs& inputs, const AttentionParams& params,
                    const AttentionOutputs& outputs);

// Of a call that CheckForward accepts.
kernels::ForwardArgs ResolveForward(const AttentionInputs& inputs, const AttentionParams& params,
                                    const AttentionOutputs& outputs);

// The same for a packed batch.
Status CheckVarlen(const VarlenInputs& inputs, const AttentionParams& params,
                   const AttentionOutputs& outputs);
kernels::ForwardArgs ResolveVarlen(const VarlenInputs& inputs, const AttentionParams& params,
                                   const AttentionOutputs& outputs);

// Every rule of flashlane/paged.h, entries of the block table within the live lengths included.
Status CheckPaged(const PagedInputs& inputs, const AttentionParams& params,
                  const AttentionOutputs& outputs);
kernels::ForwardArgs ResolvePaged(const PagedInputs& inputs, const AttentionParams& params,
                                  const AttentionOutputs& outputs);

// Every rule of flashlane/backward.h; as above.
Status CheckBackward(const BackwardInputs& inputs, const AttentionParams& params,
                     const BackwardOutputs& outputs);
kernels::BackwardArgs ResolveBackward(const BackwardInputs& inputs, const AttentionParams& params,
                                      const BackwardOutputs& outputs);
Status CheckVarlenBackward(const VarlenBackwardInputs& inputs, const AttentionParams& params,
                           const BackwardOutputs& outputs);
kernels::BackwardArgs ResolveVarlenBackward(const VarlenBackwardInputs& inputs,
                                            const AttentionParams& params,
                                            const BackwardOutputs& outputs);

Status CheckMerge(const PartialAttention& a, const PartialAttention& b,
                  const AttentionOutputs& outputs);
kernels::MergeArgs ResolveMerge(const PartialAttention& a, const PartialAttention& b,
                                const AttentionOutputs& outputs);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_CONTRACT_H_
