#include "dispatch/fkc/call.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "dispatch/contract.h"
#include "dispatch/contract_rules.h"
#include "dispatch/view.h"

namespace flashlane::fkc {
namespace {

using Kind = Param::Kind;

bool IsReal(const Param& param) { return param.kind == Kind::kF32 || param.kind == Kind::kF64; }
bool IsInteger(const Param& param) {
  return param.kind == Kind::kUsize || param.kind == Kind::kI64;
}

// usize goes further than int64; lengths and windows that far are as good as unlimited.
int64_t IntegerOf(const Param& param) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (param.kind == Kind::kI64) return static_cast<int64_t>(param.integer);
  return static_cast<int64_t>(std::min(param.integer, kMax));
}

double RealOf(const Param& param) {
  return IsReal(param) ? param.real : static_cast<double>(IntegerOf(param));
}

bool HasField(const Contract& contract, std::string_view name) {
  for (const Field& field : contract.fields) {
    if (name == field.name) return true;
  }
  return false;
}

// Beyond the document, for calls that are not strict.
bool IsExtension(const Contract& contract, std::string_view name) {
  if (contract.operation == Operation::kPaged) return name == "window_size_left";
  return name == "q_start" || name == "bottom_right" ||
         (contract.operation == Operation::kBackward && name == "k_len");
}

Status CheckNames(const Contract& contract, const KernelCall& call) {
  if (call.num_params > 0 && call.params == nullptr) return Invalid("params", "array is null");
  for (size_t i = 0; i < call.num_params; ++i) {
    if (call.params[i].name == nullptr) return Invalid("params", "name is null");
    const std::string_view name = call.params[i].name;
    const auto same = [name](const Param& param) { return name == param.name; };
    if (std::any_of(call.params, call.params + i, same)) {
      return Invalid(call.params[i].name, "given twice");
    }
    if (HasField(contract, name) || (!call.strict && IsExtension(contract, name))) continue;
    return Invalid(call.params[i].name, "is no parameter of " + contract.kernel);
  }
  return {};
}

Status WrongKind(const Param& param, const char* want) {
  return Invalid(param.name, std::string("is not ") + want);
}

Status TakeReal(const Param& param, std::optional<double>* value) {
  if (!IsReal(param) && !IsInteger(param)) return WrongKind(param, "a number");
  *value = RealOf(param);
  return {};
}

Status TakeInteger(const Param& param, std::optional<int64_t>* value) {
  if (!IsInteger(param)) return WrongKind(param, "a whole number");
  *value = IntegerOf(param);
  return {};
}

Status TakeBool(const Param& param, bool* value) {
  if (param.kind != Kind::kBool) return WrongKind(param, "a bool");
  *value = param.integer != 0;
  return {};
}

Status TakeParam(const Param& param, const ConstTensorView& keys, AttentionParams* params) {
  const std::string_view name = param.name;
  if (param.kind == Kind::kNone) return {};
  if (name == "softmax_scale") return TakeReal(param, &params->softmax_scale);
  if (name == "softcap") return TakeReal(param, &params->softcap);
  if (name == "window_size_left") return TakeInteger(param, &params->window_size_left);
  if (name == "window_size_right") return TakeInteger(param, &params->window_size_right);
  if (name == "k_len") return TakeInteger(param, &params->k_len);
  if (name == "causal") return TakeBool(param, &params->causal);
  if (name == "bottom_right") {
    bool asked = false;
    if (Status s = TakeBool(param, &asked); !s.ok()) return s;
    if (asked) params->q_start.kind = QStart::Kind::kBottomRight;
    return {};
  }
  std::optional<int64_t> value;
  if (Status s = TakeInteger(param, &value); !s.ok()) return s;
  if (name == "q_start") {
    params->q_start.value = *value;
  } else if (keys.rank == 4 && *value != keys.shape[1]) {  // block_size
    return Invalid("block_size", WithValue("value", *value) + " is not " +
                                     std::to_string(keys.shape[1]) + ", k_cache.dim[1]");
  }
  return {};
}

size_t NumRequired(const Contract& contract) {
  const auto& operands = contract.operands;
  return static_cast<size_t>(std::count_if(operands.begin(), operands.end(),
                                           [](const Operand& o) { return !o.optional; }));
}

Status CheckInputCount(const Contract& contract, const KernelCall& call) {
  if (call.inputs == nullptr) return Invalid("inputs", "array is null");
  const size_t most = contract.operands.size(), least = NumRequired(contract);
  if (call.num_inputs >= least && call.num_inputs <= most) return {};
  return Invalid("inputs", WithValue("number", static_cast<int64_t>(call.num_inputs)) +
                               " is not within [" + std::to_string(least) + ", " +
                               std::to_string(most) + "]");
}

Status CheckOutputCount(const Contract& contract, const KernelCall& call) {
  if (call.outputs == nullptr) return Invalid("outputs", "array is null");
  const bool may_have_lse = !call.strict && contract.operation != Operation::kBackward;
  const size_t least = contract.results.size(), most = least + (may_have_lse ? 1 : 0);
  if (call.num_outputs >= least && call.num_outputs <= most) return {};
  return Invalid("outputs", WithValue("number", static_cast<int64_t>(call.num_outputs)) +
                                " is not " + std::to_string(least));
}

void BindInputs(const Contract& contract, const KernelCall& call, BoundCall* bound) {
  const auto input = [&call](size_t i) {
    return i < call.num_inputs ? call.inputs[i] : ConstTensorView();
  };
  if (contract.operation == Operation::kPaged) {
    PagedInputs& paged = bound->paged;
    paged.q = input(0);
    paged.k_cache = input(1);
    paged.v_cache = input(2);
    paged.block_table = input(3);
    paged.context_lens = input(4);
    paged.alibi_slopes = input(5);
    return;
  }
  const bool backward = contract.operation == Operation::kBackward;
  AttentionInputs& forward = backward ? bound->backward.forward : bound->forward;
  forward.q = input(0);
  forward.k = input(1);
  forward.v = input(2);
  forward.alibi_slopes = input(backward ? 4 : 3);
  if (backward) bound->backward.dout = input(3);
}

void BindOutputs(const Contract& contract, const KernelCall& call, BoundCall* bound) {
  const auto output = [&call](size_t i) {
    return i < call.num_outputs ? call.outputs[i] : TensorView();
  };
  if (contract.operation != Operation::kBackward) {
    bound->outputs.out = output(0);
    bound->outputs.lse = output(1);
    return;
  }
  TensorView* const gradients[] = {&bound->gradients.dq, &bound->gradients.dk,
                                   &bound->gradients.dv};
  for (int g = 0; g < 3; ++g) {
    if (contract.gradient < 0) *gradients[g] = output(static_cast<size_t>(g));
    if (contract.gradient == g) *gradients[g] = output(0);
  }
}

}  // namespace

const Param* FindParam(const KernelCall& call, const char* name) {
  for (size_t i = 0; i < call.num_params; ++i) {
    const Param& param = call.params[i];
    if (std::string_view(param.name) == name) return param.kind == Kind::kNone ? nullptr : &param;
  }
  return nullptr;
}

Status BindOperands(const Contract& contract, const KernelCall& call, BoundCall* bound) {
  if (Status s = CheckInputCount(contract, call); !s.ok()) return s;
  if (call.num_outputs > 0 && call.outputs == nullptr) return Invalid("outputs", "array is null");
  if (Status s = CheckNames(contract, call); !s.ok()) return s;
  for (size_t i = 0; i < call.num_params; ++i) {
    if (Status s = TakeParam(call.params[i], call.inputs[1], &bound->params); !s.ok()) return s;
  }
  const QStart& q_start = bound->params.q_start;
  if (q_start.kind == QStart::Kind::kBottomRight && q_start.value != 0) {
    return Invalid("q_start", "given together with bottom_right");
  }
  BindInputs(contract, call, bound);
  bound->options = call.options;
  bound->options.kernel = contract.implementation;
  return {};
}

Status Bind(const Contract& contract, const KernelCall& call, BoundCall* bound) {
  if (Status s = BindOperands(contract, call, bound); !s.ok()) return s;
  if (Status s = CheckOutputCount(contract, call); !s.ok()) return s;
  BindOutputs(contract, call, bound);
  return {};
}

Status CheckBound(const Contract& contract, const BoundCall& bound) {
  if (contract.operation == Operation::kPaged) {
    return CheckPaged(bound.paged, bound.params, bound.outputs);
  }
  if (contract.operation == Operation::kBackward) {
    return CheckBackward(bound.backward, bound.params, bound.gradients);
  }
  return CheckForward(bound.forward, bound.params, bound.outputs);
}

Status RunBound(const Contract& contract, const BoundCall& bound) {
  if (contract.operation == Operation::kPaged) {
    return AttentionPaged(bound.paged, bound.params, bound.outputs, bound.options);
  }
  if (contract.operation == Operation::kBackward) {
    return AttentionBackward(bound.backward, bound.params, bound.gradients, bound.options);
  }
  return Attention(bound.forward, bound.params, bound.outputs, bound.options);
}

}  // namespace flashlane::fkc
