// The calls of flashlane/backward.h: check, resolve, run.

#include "flashlane/backward.h"

#include "dispatch/backward_run.h"
#include "dispatch/contract.h"
#include "dispatch/exec_options.h"

namespace flashlane {

Status AttentionBackward(const BackwardInputs& inputs, const AttentionParams& params,
                         const BackwardOutputs& outputs, const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckBackward(inputs, params, outputs); !status.ok()) return status;
    return RunBackward(ResolveBackward(inputs, params, outputs), inputs.forward.q.dtype, options);
  });
}

Status AttentionVarlenBackward(const VarlenBackwardInputs& inputs, const AttentionParams& params,
                               const BackwardOutputs& outputs,
                               const ExecOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (Status status = CheckVarlenBackward(inputs, params, outputs); !status.ok()) return status;
    return RunBackward(ResolveVarlenBackward(inputs, params, outputs), inputs.forward.q.dtype,
                       options);
  });
}

}  // namespace flashlane
