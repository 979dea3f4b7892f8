// Asks the rules of a call which dtypes and layouts each operand may have, by trying.
#ifndef FLASHLANE_DISPATCH_FKC_PROBE_H_
#define FLASHLANE_DISPATCH_FKC_PROBE_H_

#include "dispatch/fkc/model.h"

namespace flashlane::fkc {

// Fills in what Operand says is probed, of a contract that has its operation, operands, fields and
// results. Nothing is computed: the rules read lengths and the table only.
void ProbeOperands(Contract* contract);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_PROBE_H_
