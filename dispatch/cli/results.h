// What a call computes, by name: out and lse, or the gradients dq, dk, dv and, of operands that it
// has, dbias and dsinks. Its memory, the file's answers for it, and the truth.
#ifndef FLASHLANE_DISPATCH_CLI_RESULTS_H_
#define FLASHLANE_DISPATCH_CLI_RESULTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/cli/case.h"
#include "dispatch/cli/operands.h"
#include "dispatch/cli/safetensors.h"
#include "dispatch/tolerance.h"
#include "flashlane/attention.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::cli {

struct Output {
  const char* name = "";
  TensorView view;  // of the bytes
  AlignedBytes bytes;
};
using Results = std::vector<Output>;

// Shapes and memory for the results of a call.
Status MakeResults(const Operands& operands, Results* results);

// Attention, AttentionPaged or AttentionBackward; and the flops of that call.
Status RunCase(const Operands& operands, const AttentionParams& params, const Results& results,
               const ExecOptions& exec);
std::uint64_t FlopsOf(const Operands& operands, const AttentionParams& params,
                      const Results& results);

// The file's answers, one per result: absent views where it has none. They must have the results'
// shapes and an attention dtype.
using Answers = std::vector<TensorView>;
Status AnswersOf(const Case& from, const Results& results, Answers* answers);

// The truth of a call.
struct Reference {
  ForwardReference forward;
  BackwardReference backward;

  // Nothing agrees with a result that the call does not have.
  Comparison Compare(const std::string& name, const ConstTensorView& result) const;
};
// `answers` are F64, or absent: then the oracle's.
Status MakeReference(const Operands& operands, const AttentionParams& params,
                     const Answers& answers, int num_threads, Reference* reference);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_RESULTS_H_
