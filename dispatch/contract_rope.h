// The rules and the resolution of flashlane/rope.h. Resolve only what was checked.
#ifndef FLASHLANE_DISPATCH_CONTRACT_ROPE_H_
#define FLASHLANE_DISPATCH_CONTRACT_ROPE_H_

#include <cstdint>

#include "dispatch/view.h"
#include "flashlane/rope.h"
#include "kernels/rope_args.h"
#include "kernels/rope_table.h"

namespace flashlane {

Status CheckRopeFrequencies(double theta, const RopeScaling& scaling, const TensorView& inv_freq);

Status CheckRopeTable(const RopeTableInputs& inputs, const RopeTableOutputs& outputs);
kernels::RopeTableArgs ResolveRopeTable(const RopeTableInputs& inputs,
                                        const RopeTableOutputs& outputs);

Status CheckRope(const RopeInputs& inputs, const RopeParams& params, const RopeOutputs& outputs);
kernels::RopeArgs ResolveRope(const RopeInputs& inputs, const RopeParams& params,
                              const RopeOutputs& outputs);

// Tables for heads of `x`: [num_positions, pairs] in the type that x's dtype computes in, the pairs
// within its last dimension.
Status CheckRopeTables(const NamedView& cos, const NamedView& sin, const NamedView& x);
kernels::RopeTables RopeTablesOf(const ConstTensorView& cos, const ConstTensorView& sin);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_CONTRACT_ROPE_H_
