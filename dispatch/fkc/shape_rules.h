// FKC's vocabulary of shape constraints, evaluated on the operands of a call.
#ifndef FLASHLANE_DISPATCH_FKC_SHAPE_RULES_H_
#define FLASHLANE_DISPATCH_FKC_SHAPE_RULES_H_

#include <string_view>

#include "dispatch/fkc/model.h"
#include "flashlane/fkc.h"

namespace flashlane::fkc {

// The operand of that name; null where the call has none or leaves it out.
const ConstTensorView* FindInput(const Contract& contract, const KernelCall& call,
                                 std::string_view name);

// Whether operand `self` of the call satisfies "same_as=k", "dim[0]=q.dim[1]", "dim[1]>=1" or
// "divisible(q.dim[1], k.dim[1])". False too for a text in none of these forms. The operands have
// the ranks that the contract says.
bool SatisfiesShape(const Contract& contract, const KernelCall& call, const ConstTensorView& self,
                    std::string_view constraint);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_SHAPE_RULES_H_
