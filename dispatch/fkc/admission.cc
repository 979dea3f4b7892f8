// A call against its document: what strict calls are held to.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "dispatch/contract_rules.h"
#include "dispatch/fkc/call.h"
#include "dispatch/fkc/shape_rules.h"
#include "dispatch/view.h"

namespace flashlane::fkc {
namespace {

using Kind = Param::Kind;

bool IsOfKind(const Param& param, FieldKind kind) {
  switch (kind) {
    case FieldKind::kF32:
    case FieldKind::kOptionF32:
      return param.kind == Kind::kF32;
    case FieldKind::kBool:
      return param.kind == Kind::kBool;
    case FieldKind::kUsize:
    case FieldKind::kOptionUsize:
    case FieldKind::kOptionDynScalar:
      return param.kind == Kind::kUsize;
  }
  return false;
}

Status CheckField(const Field& field, const KernelCall& call) {
  const Param* param = FindParam(call, field.name);
  if (param == nullptr) {
    return IsOption(field.kind) ? Status() : Invalid(field.name, "is missing");
  }
  if (IsOfKind(*param, field.kind)) return {};
  return Invalid(field.name, std::string("is not of kind ") + FieldKindName(field.kind));
}

bool IsDense(const ConstTensorView& view) {
  int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    if (view.shape[d] > 1 && view.strides[d] != stride) return false;
    stride *= view.shape[d];
  }
  return true;
}

Status CheckLayout(const Layout& layout, const NamedView& operand) {
  const ConstTensorView& view = operand.view;
  if (NumElements(view) == 0) return {};
  const auto refuse = [&](int dim, const char* rule) {
    return Invalid(operand.name, "stride " + std::to_string(view.strides[dim]) + " of dimension " +
                                     std::to_string(dim) + rule);
  };
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] <= 1) continue;
    const int64_t stride = view.strides[d];
    if (stride < 0 && !layout.reverse_strides) return refuse(d, ": reverse_strides is rejected");
    if (d == view.rank - 1 && stride != 1 && !layout.any_inner_stride) {
      return refuse(d, " is not 1: inner_stride is 1");
    }
    if (stride == 0 && !layout.broadcast_stride0) {
      return refuse(d, ": broadcast_stride0 is rejected");
    }
  }
  if (layout.contiguous_required && !IsDense(view)) {
    return Invalid(operand.name, "is not contiguous");
  }
  return {};
}

Status CheckOperandDType(const Operand& operand, DType dtype, DType q_dtype) {
  const auto& dtypes = operand.dtypes;
  const bool listed = std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
  const std::string& rule = operand.dtype_constraint;
  const bool fits =
      rule.empty() || dtype == q_dtype || (rule == "same_as=q or F32" && dtype == DType::kF32);
  if (listed && fits) return {};
  return Invalid(operand.name, std::string("dtype ") + DTypeName(dtype) +
                                   (listed ? " breaks dtype_constraint " + rule
                                           : std::string(" is not one of its dtypes")));
}

Status CheckInputs(const Contract& contract, const KernelCall& call) {
  const size_t count = std::min(call.num_inputs, contract.operands.size());
  for (size_t i = 0; i < count; ++i) {
    const Operand& operand = contract.operands[i];
    const NamedView view{operand.name, call.inputs[i]};
    if (!view.view.present() && operand.optional) continue;
    if (Status s = CheckSizesOnly(view, operand.rank); !s.ok()) return s;
    if (Status s = CheckOperandDType(operand, view.view.dtype, call.inputs[0].dtype); !s.ok()) {
      return s;
    }
    if (Status s = CheckLayout(operand.layout, view); !s.ok()) return s;
  }
  for (size_t i = 0; i < count; ++i) {
    const Operand& operand = contract.operands[i];
    if (!call.inputs[i].present()) continue;
    for (const char* constraint : operand.shape_constraints) {
      if (SatisfiesShape(contract, call, call.inputs[i], constraint)) continue;
      return Invalid(operand.name,
                     "shape " + ShapeString(call.inputs[i]) + " breaks " + std::string(constraint));
    }
  }
  return {};
}

Status CheckResults(const Contract& contract, const KernelCall& call) {
  if (call.num_outputs == 0) return {};
  if (call.num_outputs != contract.results.size()) {
    return Invalid("outputs", WithValue("number", static_cast<int64_t>(call.num_outputs)) +
                                  " is not " + std::to_string(contract.results.size()));
  }
  for (size_t i = 0; i < call.num_outputs; ++i) {
    const Result& result = contract.results[i];
    const ConstTensorView& like = *FindInput(contract, call, result.like);
    const NamedView output{result.name, call.outputs[i]};
    if (Status s = CheckSizesOnly(output, like.rank); !s.ok()) return s;
    if (Status s = CheckDType(output, like.dtype, ", q's dtype"); !s.ok()) return s;
    if (!std::equal(like.shape, like.shape + like.rank, output.view.shape)) {
      return Invalid(result.name, "shape " + ShapeString(output.view) + " is not " +
                                      ShapeString(like) + ", that of " + result.like);
    }
    if (NumElements(output.view) > 0 && !IsDense(output.view)) {
      return Invalid(result.name, "is not contiguous");
    }
  }
  return {};
}

}  // namespace

Status CheckSizesOnly(const NamedView& operand, int rank) {
  ConstTensorView view = operand.view;
  alignas(8) static constexpr std::byte kAnywhere[8] = {};
  view.data = kAnywhere;
  if (view.rank == rank) {  // as if it were dense
    view = ConstTensorView(kAnywhere, view.dtype, view.rank, view.shape);
  }
  return CheckView({operand.name, view}, rank, Inner::kAny);
}

Status CheckValues(const Contract& contract, const KernelCall& call) {
  BoundCall bound;
  if (Status s = BindOperands(contract, call, &bound); !s.ok()) return s;
  const ConstTensorView& keys = call.inputs[1];
  const std::optional<int64_t>& k_len = bound.params.k_len;
  if (k_len.has_value() && (*k_len < 0 || *k_len > keys.shape[2])) {
    return Invalid("k_len", WithValue("value", *k_len) + " is not within [0, " +
                                std::to_string(keys.shape[2]) + "], k.dim[2]");
  }
  return CheckParams(bound.params, call.inputs[0].dtype);
}

Status UnknownEntryPoint(const char* symbol) {
  return Status::InvalidArgument(std::string("entry_point: '") + (symbol == nullptr ? "" : symbol) +
                                 "' is not in the link registry");
}

Status CheckAgainstDocument(const Contract& contract, const KernelCall& call) {
  KernelCall strict = call;
  strict.strict = true;
  BoundCall bound;  // for the rules of names and numbers of operands
  if (Status s = BindOperands(contract, strict, &bound); !s.ok()) return s;
  if (Status s = CheckInputs(contract, strict); !s.ok()) return s;
  for (const Field& field : contract.fields) {
    if (Status s = CheckField(field, strict); !s.ok()) return s;
  }
  if (Status s = CheckValues(contract, strict); !s.ok()) return s;
  return CheckResults(contract, strict);
}

}  // namespace flashlane::fkc
