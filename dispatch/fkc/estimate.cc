// The cost of a call, by the formulas of its document.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dispatch/attention_run.h"
#include "dispatch/backward_run.h"
#include "dispatch/contract.h"
#include "dispatch/contract_rules.h"
#include "dispatch/cost.h"
#include "dispatch/exec_options.h"
#include "dispatch/fkc/call.h"
#include "dispatch/fkc/formula.h"
#include "dispatch/fkc/shape_rules.h"
#include "dispatch/fkc/time_model.h"
#include "dispatch/judged.h"
#include "dispatch/sequence_values.h"
#include "dispatch/target.h"
#include "dispatch/view.h"
#include "flashlane/fkc.h"

namespace flashlane::fkc {
namespace {

Count ToCount(Uint128 value) {
  return {static_cast<uint64_t>(value >> 64), static_cast<uint64_t>(value)};
}

alignas(8) constexpr std::byte kAnywhere[8] = {};

// Tokens of all sequences, and the most that one may have.
struct Contexts {
  std::optional<Uint128> live;  // where context_lens has data
  int64_t capacity = 0;
};

Status ReadContexts(const PagedInputs& in, Contexts* contexts) {
  if (__builtin_mul_overflow(in.block_table.shape[1], in.k_cache.shape[1], &contexts->capacity) ||
      contexts->capacity > kMaxPosition) {
    contexts->capacity = kMaxPosition;
  }
  if (in.context_lens.data == nullptr) return {};
  const NamedView lens{"context_lens", in.context_lens};
  const int64_t batch = in.q.shape[0];
  const ValueRange range{0, contexts->capacity, ", the tokens block_table has room for"};
  if (Status s = CheckSequenceValues(lens, batch, range); !s.ok()) return s;
  const kernels::SequenceValues values = SequenceValuesOf(in.context_lens, 0);
  contexts->live = 0;
  for (int64_t b = 0; b < batch; ++b) {
    contexts->live = SaturatingSum128(*contexts->live, static_cast<Uint128>(values.At(b)));
  }
  return {};
}

// A call of which only shapes are known, made into one that can be resolved: null data points to
// a few bytes that are never read.
class ShapeCall {
 public:
  ShapeCall(const Contract& contract, const KernelCall& call) : contract_(contract), call_(call) {}

  Status Bind() {
    KernelCall inputs_only = call_;
    inputs_only.num_outputs = 0;
    if (call_.strict) {
      if (Status s = CheckAgainstDocument(contract_, inputs_only); !s.ok()) return s;
    }
    if (Status s = BindOperands(contract_, call_, &bound_); !s.ok()) return s;
    if (!call_.strict) {
      if (Status s = CheckLoosely(); !s.ok()) return s;
    }
    if (contract_.operation != Operation::kPaged) return {};
    return ReadContexts(bound_.paged, &contexts_);
  }

  // Resolved, with outputs of the shapes that the operands give.
  kernels::ForwardArgs Forward() const {
    if (contract_.operation == Operation::kPaged) return Paged();
    const AttentionInputs& in =
        contract_.operation == Operation::kBackward ? bound_.backward.forward : bound_.forward;
    AttentionInputs inputs = in;
    for (ConstTensorView* view : {&inputs.q, &inputs.k, &inputs.v}) view->data = kAnywhere;
    return ResolveForward(inputs, bound_.params, {});
  }

  kernels::BackwardArgs Backward() const {
    kernels::BackwardArgs args;
    args.forward = Forward();
    kernels::RowSums* const sums[] = {&args.dq, &args.dk, &args.dv};
    for (int g = 0; g < 3; ++g) {
      const size_t at = contract_.gradient < 0 ? static_cast<size_t>(g) : 0;
      const bool left_out = call_.num_outputs > at && !call_.outputs[at].present();
      if ((contract_.gradient < 0 || contract_.gradient == g) && !left_out) {
        // Null would mean not asked for; never written to.
        sums[g]->data = const_cast<std::byte*>(kAnywhere);
      }
    }
    return args;
  }

  bool SymbolValue(std::string_view symbol, Uint128* value) const;
  const BoundCall& bound() const { return bound_; }

 private:
  // What must hold of any shape for the formulas to mean something: the document's rules, but v
  // may have a head size of its own.
  Status CheckLoosely() const {
    for (size_t i = 0; i < call_.num_inputs; ++i) {
      const Operand& operand = contract_.operands[i];
      const ConstTensorView& view = call_.inputs[i];
      if (!view.present() && operand.optional) continue;
      if (Status s = CheckSizesOnly({operand.name, view}, operand.rank); !s.ok()) return s;
    }
    for (size_t i = 0; i < call_.num_inputs; ++i) {
      for (const char* constraint : contract_.operands[i].shape_constraints) {
        ConstTensorView view = call_.inputs[i];
        if (!view.present()) continue;
        if (std::string_view(constraint).substr(0, 8) == "same_as=") {
          const ConstTensorView* like = FindInput(contract_, call_, constraint + 8);
          if (like != nullptr) view.shape[3] = like->shape[3];
        }
        if (SatisfiesShape(contract_, call_, view, constraint)) continue;
        return Invalid(contract_.operands[i].name,
                       "shape " + ShapeString(call_.inputs[i]) + " breaks " + constraint);
      }
    }
    const ConstTensorView& v = call_.inputs[2];
    if (Status s = CheckHeadSize({contract_.operands[0].name, call_.inputs[0]}); !s.ok()) return s;
    if (Status s = CheckHeadSize({contract_.operands[2].name, v}); !s.ok()) return s;
    if (contract_.operation == Operation::kBackward && call_.inputs[3].shape[3] != v.shape[3]) {
      return Invalid(contract_.operands[3].name,
                     "shape " + ShapeString(call_.inputs[3]) + " has not the head size of v");
    }
    return CheckValues(contract_, call_);
  }

  kernels::ForwardArgs Paged() const {
    PagedInputs inputs = bound_.paged;
    for (ConstTensorView* view : {&inputs.q, &inputs.k_cache, &inputs.v_cache}) {
      view->data = kAnywhere;
    }
    const bool live = inputs.context_lens.data != nullptr;
    kernels::ForwardArgs args;
    if (live) {
      args = ResolvePaged(inputs, bound_.params, {});
    } else {
      // Of one sequence that is as long as its table: then all are.
      const int64_t longest = contexts_.capacity;
      inputs.context_lens = ConstTensorView(&longest, DType::kI64, {1});
      inputs.q.shape[0] = 1;
      args = ResolvePaged(inputs, bound_.params, {});
      args.batch = bound_.paged.q.shape[0];
      args.k_len = SequenceValuesOf({}, longest);
    }
    return args;
  }

  const Contract& contract_;
  const KernelCall& call_;
  BoundCall bound_;
  Contexts contexts_;
};

// "name.dim[i]".
bool DimValue(const Contract& contract, const KernelCall& call, std::string_view symbol,
              Uint128* value) {
  const size_t dot = symbol.find(".dim[");
  if (dot == std::string_view::npos || symbol.size() != dot + 7) return false;
  const ConstTensorView* view = FindInput(contract, call, symbol.substr(0, dot));
  const int dim = symbol[dot + 5] - '0';
  if (view == nullptr || dim < 0 || dim >= view->rank) return false;
  *value = static_cast<Uint128>(view->shape[dim]);
  return true;
}

bool ShapeCall::SymbolValue(std::string_view symbol, Uint128* value) const {
  if (DimValue(contract_, call_, symbol, value)) return true;
  const bool paged = contract_.operation == Operation::kPaged;
  const ConstTensorView& q = call_.inputs[0];
  const ConstTensorView& keys = call_.inputs[1];
  const auto set = [value](int64_t size) {
    *value = static_cast<Uint128>(size);
    return true;
  };
  if (symbol == "b") return set(q.shape[0]);
  if (symbol == "hq") return set(q.shape[1]);
  if (symbol == "sq") return set(q.shape[2]);
  if (symbol == "d") return set(q.shape[3]);
  if (symbol == "dtype_bytes") return set(static_cast<int64_t>(DTypeSize(q.dtype)));
  if (symbol == "hkv") return set(keys.shape[paged ? 2 : 1]);
  if (symbol == "sk" && !paged) return set(keys.shape[2]);
  if (symbol == "k_len" && !paged) return set(bound_.params.k_len.value_or(keys.shape[2]));
  if (symbol == "block_size" && paged) return set(keys.shape[1]);
  if (symbol == "sum(context_lens)" && contexts_.live.has_value()) {
    *value = *contexts_.live;
    return true;
  }
  return false;
}

// The live formula where the call says how many keys live, else the one at capacity.
Status Evaluate(const ShapeCall& shapes, const std::string& live, const std::string& capacity,
                Count* count) {
  const SymbolValue symbols = [&shapes](std::string_view symbol, Uint128* value) {
    return shapes.SymbolValue(symbol, value);
  };
  Uint128 value = 0;
  if (!EvaluateFormula(live, symbols, &value) && !EvaluateFormula(capacity, symbols, &value)) {
    return Invalid("cost", "'" + capacity + "' cannot be evaluated");
  }
  *count = ToCount(value);
  return {};
}

Uint128 VisibleFlops(const Contract& contract, const ShapeCall& shapes) {
  if (contract.operation != Operation::kBackward) return WideForwardFlops(shapes.Forward());
  const kernels::BackwardArgs args = shapes.Backward();
  const Uint128 gradients = WideBackwardFlops(args);
  if (contract.implementation == Kernel::kNaive) return gradients;
  return SaturatingSum128(gradients, WideForwardFlops(args.forward));
}

// A backward that needs a forward's results runs one first, whose time is that of this row's, too.
TimeTerms TermsOf(const Contract& contract, const ShapeCall& shapes, const KernelRow& row,
                  int64_t target) {
  if (contract.operation != Operation::kBackward) {
    return ForwardTerms(shapes.Forward(), row, target);
  }
  const kernels::BackwardArgs args = shapes.Backward();
  TimeTerms terms = BackwardTerms(args, row, target);
  if (contract.implementation == Kernel::kNaive) return terms;
  const KernelRow* forward = FindKernel(Kernel::kFlash, row.dtype);
  TimeTerms first = ForwardTerms(args.forward, *forward, target);
  first.flops += first.stream_flops;
  first.bytes += first.stream_bytes;
  first.stream_flops = first.stream_bytes = 0;
  terms.Add(first, 1);
  return terms;
}

Status RowOf(const Contract& contract, DType dtype, const KernelRow** row) {
  *row = FindKernel(contract.implementation, dtype, contract.operation);
  if (*row != nullptr) return {};
  return Status::Unsupported(std::string("dtype: ") + DTypeName(dtype) + " is none of " +
                             contract.kernel);
}

// The target is resolved last: that may ask the system for AMX, which a mere query should not do.
Status JudgedNanoseconds(const Contract& contract, const KernelCall& call, const ShapeCall& shapes,
                         double* nanoseconds) {
  const KernelRow* row = nullptr;
  if (Status s = RowOf(contract, call.inputs[0].dtype, &row); !s.ok()) return s;
  if (!AnyJudged(*row)) return NotJudged(*row, nullptr);
  Target target;
  if (Status s = ResolveTarget(call.options.target, &target); !s.ok()) return s;
  const std::optional<Coefficients> found = FindJudged(*row, target.bit);
  if (!found.has_value()) return NotJudged(*row, target.name);
  *nanoseconds = Nanoseconds(*found, TermsOf(contract, shapes, *row, target.bit));
  return {};
}

// f(contract, shapes) of a call that makes sense; `result` is what f fills in.
template <class Result, class Function>
Status Estimate(const char* symbol, const KernelCall& call, const char* name, const Result* result,
                const Function& f) {
  return WithoutThrowing([&] {
    const Contract* contract = symbol == nullptr ? nullptr : FindContract(symbol);
    if (contract == nullptr) return UnknownEntryPoint(symbol);
    if (result == nullptr) return Invalid(name, "is null");
    ShapeCall shapes(*contract, call);
    if (Status s = shapes.Bind(); !s.ok()) return s;
    return f(*contract, shapes);
  });
}

}  // namespace

Status EstimateCost(const char* symbol, const KernelCall& call, Cost* cost) noexcept {
  return Estimate(
      symbol, call, "cost", cost, [&](const Contract& contract, const ShapeCall& shapes) {
        const Formulas& formulas = contract.formulas;
        const struct {
          const std::string &live, &capacity;
          Count* count;
        } counts[] = {{formulas.flops_live, formulas.flops, &cost->flops},
                      {formulas.bytes_moved_live, formulas.bytes_moved, &cost->bytes_moved},
                      {formulas.host_bytes, formulas.host_bytes, &cost->host_bytes}};
        for (const auto& [live, capacity, count] : counts) {
          if (Status s = Evaluate(shapes, live, capacity, count); !s.ok()) return s;
        }
        cost->visible_flops = ToCount(VisibleFlops(contract, shapes));
        cost->nanoseconds = 0;  // and so it stays where the machine has not been judged
        (void)JudgedNanoseconds(contract, call, shapes, &cost->nanoseconds);
        return Status();
      });
}

Status EstimateNanoseconds(const char* symbol, const KernelCall& call,
                           double* nanoseconds) noexcept {
  return Estimate(symbol, call, "nanoseconds", nanoseconds,
                  [&](const Contract& contract, const ShapeCall& shapes) {
                    return JudgedNanoseconds(contract, call, shapes, nanoseconds);
                  });
}

Status EstimateTerms(const char* symbol, const KernelCall& call, TimeTerms* terms) {
  return Estimate(symbol, call, "terms", terms,
                  [&](const Contract& contract, const ShapeCall& shapes) {
                    const KernelRow* row = nullptr;
                    if (Status s = RowOf(contract, call.inputs[0].dtype, &row); !s.ok()) return s;
                    Target target;
                    if (Status s = ResolveTarget(call.options.target, &target); !s.ok()) return s;
                    *terms = TermsOf(contract, shapes, *row, target.bit);
                    return Status();
                  });
}

Status EstimateScratch(const char* symbol, const KernelCall& call, uint64_t* bytes) noexcept {
  return Estimate(symbol, call, "bytes", bytes,
                  [&](const Contract& contract, const ShapeCall& shapes) {
                    const DType dtype = call.inputs[0].dtype;
                    const ExecOptions& options = shapes.bound().options;
                    return contract.operation == Operation::kBackward
                               ? BackwardScratchBytes(shapes.Backward(), dtype, options, bytes)
                               : ForwardScratchBytes(shapes.Forward(), dtype, options,
                                                     contract.operation, bytes);
                  });
}

}  // namespace flashlane::fkc
