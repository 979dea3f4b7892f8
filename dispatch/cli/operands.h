// The operands of a case: contiguous, paged, or of the backward.
#ifndef FLASHLANE_DISPATCH_CLI_OPERANDS_H_
#define FLASHLANE_DISPATCH_CLI_OPERANDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/cli/case.h"
#include "dispatch/cli/safetensors.h"
#include "dispatch/registry.h"
#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/paged.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::cli {

// Views point into the case or into `converted`.
struct Operands {
  Operation operation = Operation::kForward;  // says which of the three is filled
  AttentionInputs forward;
  PagedInputs paged;
  BackwardInputs backward;
  std::vector<AlignedBytes> converted;
  bool exact = true;  // no conversion has changed a value

  const ConstTensorView& q() const;
  std::int64_t head_dim_v() const;
  bool has_mask() const;
};

// As stored, or converted to `dtype`. An operand that is F32 beside a q of another dtype stays F32,
// as the library allows. Required: q, k, v (and do, of a backward case), or q, k_cache, v_cache, of
// four dimensions, block_table and context_lens. out and lse of a backward case are the kept
// results of its forward, and left out where a conversion has changed an operand or widens them.
// Messages name file and tensor.
Status MakeOperands(const Case& from, Operation operation, std::optional<DType> dtype,
                    Operands* operands);

// The view of a stored tensor; absent (rank 0) if the file does not have it.
Status ViewOf(const Case& in, const std::string& name, TensorView* view);
// InvalidArgument: "'file': tensor 'name': rest".
Status TensorError(const Case& in, const std::string& name, const std::string& rest);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_OPERANDS_H_
