// Gradients of a call that has been checked and resolved.
#ifndef FLASHLANE_DISPATCH_BACKWARD_RUN_H_
#define FLASHLANE_DISPATCH_BACKWARD_RUN_H_

#include <cstdint>

#include "flashlane/attention.h"
#include "flashlane/status.h"
#include "kernels/backward_args.h"

namespace flashlane {

// Everything after the contract: target, kernel, budget, memory, work. Of `args` the caller fills
// in forward without its outputs, or with both out and lse where they were kept (then they are
// inputs); dout; those of dq, dk, dv, dbias and dsinks that are asked for. The sums and delta are
// made here. May throw std::bad_alloc before anything is written.
Status RunBackward(kernels::BackwardArgs args, DType dtype, const ExecOptions& options);

// Working memory of such a call in all, as its budget counts it.
Status BackwardScratchBytes(const kernels::BackwardArgs& args, DType dtype,
                            const ExecOptions& options, uint64_t* bytes);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_BACKWARD_RUN_H_
