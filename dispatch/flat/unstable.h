// Softmax without the maximum: for attnk.tiled to show, and for nobody else to include.
#ifndef FLASHLANE_DISPATCH_FLAT_UNSTABLE_H_
#define FLASHLANE_DISPATCH_FLAT_UNSTABLE_H_

#include "dispatch/flat/call.h"

namespace flashlane::flat {

// One forward pass, all checked.
void RunUnstable(const FlatInputs& inputs, const FlatDims& dims, const FlatParams& params,
                 const FlatOutputs& outputs);

}  // namespace flashlane::flat

#endif  // FLASHLANE_DISPATCH_FLAT_UNSTABLE_H_
