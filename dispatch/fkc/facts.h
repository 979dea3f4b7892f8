// What contracts state that no other code says: see facts.cc.
#ifndef FLASHLANE_DISPATCH_FKC_FACTS_H_
#define FLASHLANE_DISPATCH_FKC_FACTS_H_

#include <vector>

#include "dispatch/fkc/model.h"

namespace flashlane::fkc {

// Of an operation: operands without what is probed, parameters, results (of a backward dq, dk, dv).
std::vector<Operand> OperandsOf(Operation operation);
std::vector<Field> FieldsOf(Operation operation);
std::vector<Result> ResultsOf(Operation operation);

// FusedOpId and its name; `gradient` as in Contract.
struct FusedOp {
  const char* name;
  int id;
};
FusedOp FusedOpOf(Operation operation, int gradient);
const char* VariantOf(Operation operation);

// Of a contract whose fields above are filled in.
Formulas FormulasOf(const Contract& contract);
std::vector<FastPath> FastPathsOf(const Contract& contract);
const double* MeasuredMaxAbsolute(const Contract& contract);

// Texts: the document's words about a kernel, and its differences from the reference.
std::string BlurbOf(const Contract& contract);
std::string ProseOf(const Contract& contract);
std::string PrecisionNotesOf(const Contract& contract);
std::vector<Difference> DifferencesOf(const Contract& contract);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_FACTS_H_
