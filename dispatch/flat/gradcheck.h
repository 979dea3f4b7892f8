// Gradients against finite differences.
#ifndef FLASHLANE_DISPATCH_FLAT_GRADCHECK_H_
#define FLASHLANE_DISPATCH_FLAT_GRADCHECK_H_

#include "dispatch/flat/call.h"
#include "flashlane/flat/backward.h"

namespace flashlane::flat {

// A checked problem.
struct GradcheckProblem {
  const FlatInputs& inputs;
  const FlatDims& dims;
  const FlatParams& params;
  double step;
  const FlatOptions& options;
};

// The given gradients of sum(out). Fills in all but status.
AttnStatus CheckGradients(const GradcheckProblem& problem, const FlatGradients& gradients,
                          GradcheckResult* result);

}  // namespace flashlane::flat

#endif  // FLASHLANE_DISPATCH_FLAT_GRADCHECK_H_
