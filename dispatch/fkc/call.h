// A call by arrays as the C++ call that it stands for.
#ifndef FLASHLANE_DISPATCH_FKC_CALL_H_
#define FLASHLANE_DISPATCH_FKC_CALL_H_

#include "dispatch/fkc/model.h"
#include "dispatch/view.h"
#include "flashlane/backward.h"
#include "flashlane/fkc.h"
#include "flashlane/paged.h"

namespace flashlane::fkc {

// Of the three kinds of inputs and the two of outputs, those of the contract's operation are set.
struct BoundCall {
  AttentionInputs forward;
  PagedInputs paged;
  BackwardInputs backward;
  AttentionParams params;
  AttentionOutputs outputs;
  BackwardOutputs gradients;
  ExecOptions options;
};

// By position and by name. Refuses what no C++ call could be made of: too many or too few operands,
// parameters that are unknown, twice there, or of a kind that has no such value; a block_size that
// is not the pool's.
Status Bind(const Contract& contract, const KernelCall& call, BoundCall* bound);
Status BindOperands(const Contract& contract, const KernelCall& call,
                    BoundCall* bound);  // no outputs

// The rules of the C++ call.
Status CheckBound(const Contract& contract, const BoundCall& bound);

Status RunBound(const Contract& contract, const BoundCall& bound);

// Whether the document admits the call's inputs and parameters, and its outputs unless there are
// none. Looks at no data.
Status CheckAgainstDocument(const Contract& contract, const KernelCall& call);

// The parts of it: sizes of an operand that may have no data, values of parameters (k_len is held
// against the keys' operand).
Status CheckSizesOnly(const NamedView& operand, int rank);
Status CheckValues(const Contract& contract, const KernelCall& call);

// For a symbol, null too, that is in no document.
Status UnknownEntryPoint(const char* symbol);

// The parameter of that name; null where there is none or it is None.
const Param* FindParam(const KernelCall& call, const char* name);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_CALL_H_
