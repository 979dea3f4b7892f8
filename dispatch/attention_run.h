// The forward path behind the contract, for calls that need a forward's results.
#ifndef FLASHLANE_DISPATCH_ATTENTION_RUN_H_
#define FLASHLANE_DISPATCH_ATTENTION_RUN_H_

#include <cstdint>
#include <string>

#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "flashlane/attention.h"
#include "kernels/args.h"

namespace flashlane {

// Everything after the contract: target, kernel, budget, plan, cut, run.
Status RunForward(kernels::ForwardArgs args, DType dtype, const ExecOptions& options,
                  Operation operation = Operation::kForward);

// Who computes, with how many threads.
struct Choice {
  Target target;
  const KernelRow* row = nullptr;
  int threads = 1;
};
Status Choose(DType dtype, const ExecOptions& options, Operation operation, Choice* choice);

// Working memory of such a call in all.
uint64_t ForwardScratchBytes(const kernels::ForwardArgs& args, const kernels::ForwardEntry& entry,
                             int threads);
Status ForwardScratchBytes(const kernels::ForwardArgs& args, DType dtype,
                           const ExecOptions& options, Operation operation, uint64_t* bytes);

Status OutOfScratch(uint64_t bytes);
Status OutOfLists();  // of sequences
Status OverFlops(uint64_t flops, const ExecOptions& options);
Status OverScratch(uint64_t bytes, int64_t workers, const ExecOptions& options);

// Which kernel runs on which target and how it multiplies, `how` it was cut, and better targets
// that were left out, to the debug log.
void LogChoice(const KernelRow& row, const Target& target, const char* unit,
               const std::string& how);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_ATTENTION_RUN_H_
