// The operands of a case, contiguous or paged, and what is done with either.
#ifndef FLASHLANE_DISPATCH_CLI_OPERANDS_H_
#define FLASHLANE_DISPATCH_CLI_OPERANDS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "dispatch/cli/case.h"
#include "dispatch/cli/safetensors.h"
#include "dispatch/registry.h"
#include "dispatch/tolerance.h"
#include "flashlane/attention.h"
#include "flashlane/paged.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::cli {

// Views point into the case or into `converted`.
struct Operands {
  Operation operation = Operation::kForward;  // says which of the two is filled
  AttentionInputs forward;
  PagedInputs paged;
  std::vector<AlignedBytes> converted;
  bool exact = true;  // no conversion has changed a value

  bool is_paged() const { return operation == Operation::kPaged; }
  const ConstTensorView& q() const;
  std::int64_t head_dim_v() const;
  bool has_mask() const;

  // Attention or AttentionPaged, and what belongs to it.
  Status Run(const AttentionParams& params, const AttentionOutputs& outputs,
             const ExecOptions& exec) const;
  std::uint64_t Flops(const AttentionParams& params, const AttentionOutputs& outputs) const;
  Status MakeReference(const AttentionParams& params, const ForwardAnswers& answers,
                       int num_threads, ForwardReference* reference) const;
};

// As stored, or converted to `dtype`. An operand that is F32 beside a q of another dtype stays F32,
// as the library allows. Required: q, k, v, or q, k_cache, v_cache, of four dimensions, block_table
// and context_lens. Messages name file and tensor.
Status MakeOperands(const Case& from, Operation operation, std::optional<DType> dtype,
                    Operands* operands);

// Shapes and memory for out and lse.
struct Results {
  AlignedBytes out_bytes;
  AlignedBytes lse_bytes;
  AttentionOutputs outputs;
};
Status MakeResults(const Operands& operands, Results* results);

// The file's answers: absent views where it has none. They must have the shapes of `outputs` and an
// attention dtype.
Status AnswersOf(const Case& from, const AttentionOutputs& outputs, AttentionOutputs* answers);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_OPERANDS_H_
