#include "dispatch/fkc/model.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "dispatch/fkc/facts.h"
#include "dispatch/fkc/probe.h"

namespace flashlane::fkc {
namespace {

bool HasContract(Operation operation) {
  return operation == Operation::kForward || operation == Operation::kPaged ||
         operation == Operation::kBackward;
}

Contract MakeContract(const KernelRow& row, int gradient) {
  static constexpr const char* kSuffixes[] = {"_q", "_k", "_v"};
  Contract contract;
  contract.kernel = std::string(row.name) + (gradient < 0 ? "" : kSuffixes[gradient]);
  contract.entry_point = "flashlane::fkc::" + contract.kernel;
  contract.row = row.name;
  contract.operation = row.operation;
  contract.implementation = row.kernel;
  contract.gradient = gradient;
  const FusedOp fused_op = FusedOpOf(row.operation, gradient);
  contract.fused_op = fused_op.name;
  contract.fused_op_id = fused_op.id;
  contract.variant = VariantOf(row.operation);
  contract.operands = OperandsOf(row.operation);
  contract.fields = FieldsOf(row.operation);
  contract.results = ResultsOf(row.operation);
  if (gradient >= 0) contract.results = {contract.results[static_cast<size_t>(gradient)]};
  ProbeOperands(&contract);
  contract.formulas = FormulasOf(contract);
  contract.fast_paths = FastPathsOf(contract);
  std::copy_n(MeasuredMaxAbsolute(contract), 4, contract.measured_max_absolute);
  contract.blurb = BlurbOf(contract);
  contract.prose = ProseOf(contract);
  contract.precision_notes = PrecisionNotesOf(contract);
  if (gradient < 0) contract.differences = DifferencesOf(contract);
  return contract;
}

std::vector<Contract> MakeContracts() {
  std::vector<Contract> contracts;
  for (const KernelRow& row : Registry()) {
    if (!HasContract(row.operation)) continue;
    const auto is_same = [&row](const Contract& contract) {
      return std::string_view(contract.row) == row.name;
    };
    if (std::any_of(contracts.begin(), contracts.end(), is_same)) continue;
    contracts.push_back(MakeContract(row, -1));
    if (row.operation != Operation::kBackward) continue;
    for (int gradient = 0; gradient < 3; ++gradient) {
      contracts.push_back(MakeContract(row, gradient));
    }
  }
  return contracts;
}

}  // namespace

const std::vector<Contract>& Contracts() {
  static const std::vector<Contract> contracts = MakeContracts();
  return contracts;
}

const Contract* FindContract(std::string_view entry_point) {
  for (const Contract& contract : Contracts()) {
    if (contract.entry_point == entry_point) return &contract;
  }
  return nullptr;
}

const char* FieldKindName(FieldKind kind) {
  switch (kind) {
    case FieldKind::kF32:
      return "f32";
    case FieldKind::kBool:
      return "bool";
    case FieldKind::kUsize:
      return "usize";
    case FieldKind::kOptionUsize:
      return "Option<usize>";
    case FieldKind::kOptionF32:
      return "Option<f32>";
    case FieldKind::kOptionDynScalar:
      return "Option<DynScalar>";
  }
  return "?";
}

bool IsOption(FieldKind kind) { return kind >= FieldKind::kOptionUsize; }

}  // namespace flashlane::fkc
