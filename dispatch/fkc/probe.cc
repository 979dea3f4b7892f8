#include "dispatch/fkc/probe.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/fkc/call.h"

namespace flashlane::fkc {
namespace {

constexpr DType kAll[] = {DType::kF32,  DType::kF64, DType::kBF16, DType::kF16,
                          DType::kBool, DType::kI32, DType::kI64,  DType::kU32};

// A small legal call. Operands share one array of zeros (inputs may; a context of zero tokens needs
// no table entry), outputs lie apart in another.
class LegalCall {
 public:
  LegalCall(const Contract& contract, DType dtype) : contract_(contract) {
    for (const Operand& operand : contract.operands) inputs.push_back(Input(operand, dtype));
    for (const Result& result : contract.results) {
      // Of q's size or k's; an output has its operand's dtype.
      const bool of_q = std::string_view(result.like) == "q";
      outputs.emplace_back(outputs_ + outputs.size() * kBytesEach, dtype, 4,
                           inputs[of_q ? 0 : 1].shape);
    }
  }

  bool IsAccepted() const {
    KernelCall call;
    call.inputs = inputs.data();
    call.num_inputs = inputs.size();
    call.outputs = outputs.data();
    call.num_outputs = outputs.size();
    call.strict = false;
    BoundCall bound;
    return Bind(contract_, call, &bound).ok() && CheckBound(contract_, bound).ok();
  }

  std::vector<ConstTensorView> inputs;
  std::vector<TensorView> outputs;

 private:
  static constexpr size_t kBytesEach = 4096;
  alignas(64) static inline std::byte zeros_[2 * kBytesEach] = {};
  alignas(64) static inline std::byte outputs_[3 * kBytesEach];

  // B 2, Hq 4, Hkv 2, Sq 3, Sk 5, D 8; 3 blocks of 5 tokens, 2 per sequence.
  static ConstTensorView Input(const Operand& operand, DType dtype) {
    static constexpr struct {
      const char* name;
      bool is_integer;
      int64_t shape[4];
    } kShapes[] = {{"q", false, {2, 4, 3, 8}},       {"dout", false, {2, 4, 3, 8}},
                   {"k", false, {2, 2, 5, 8}},       {"v", false, {2, 2, 5, 8}},
                   {"k_cache", false, {3, 5, 2, 8}}, {"v_cache", false, {3, 5, 2, 8}},
                   {"block_table", true, {2, 2}},    {"context_lens", true, {2}},
                   {"alibi_slopes", false, {4}}};
    for (const auto& entry : kShapes) {
      if (std::string_view(entry.name) != operand.name) continue;
      // From the middle, for negative strides.
      return ConstTensorView(zeros_ + kBytesEach, entry.is_integer ? DType::kU32 : dtype,
                             operand.rank, entry.shape);
    }
    return {};
  }

  const Contract& contract_;
};

template <typename Change>
bool Accepts(const Contract& contract, size_t operand, DType dtype, const Change& change) {
  LegalCall call(contract, dtype);
  change(&call.inputs[operand]);
  return call.IsAccepted();
}

// Of all dtypes of the other operands: with which may this one be `own`?
void ProbeDTypes(Contract* contract, size_t i) {
  Operand& operand = contract->operands[i];
  bool always = true, only_own = true, only_own_or_f32 = true;
  for (const DType own : kAll) {
    bool ever = false;
    for (const DType other : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      const bool accepted =
          Accepts(*contract, i, other, [own](ConstTensorView* view) { view->dtype = own; });
      ever = ever || accepted;
      only_own = only_own && accepted == (own == other);
      only_own_or_f32 = only_own_or_f32 && accepted == (own == other || own == DType::kF32);
    }
    if (ever) operand.dtypes.push_back(own);
  }
  for (const DType own : operand.dtypes) {
    for (const DType other : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      always = always &&
               Accepts(*contract, i, other, [own](ConstTensorView* view) { view->dtype = own; });
    }
  }
  if (i == 0) return;  // q's own dtype is what the others are held to
  if (only_own) operand.dtype_constraint = "same_as=q";
  if (only_own_or_f32) operand.dtype_constraint = "same_as=q or F32";
  if (!always && operand.dtype_constraint.empty()) operand.dtype_constraint = "unknown";
}

void ProbeLayout(Contract* contract, size_t i) {
  Operand& operand = contract->operands[i];
  const int inner = operand.rank - 1;
  const auto accepts = [&](const auto& change) {
    return Accepts(*contract, i, DType::kF32, change);
  };
  const auto with_stride = [&](int dim, int64_t stride) {
    return accepts([&](ConstTensorView* view) { view->strides[dim] = stride; });
  };
  Layout& layout = operand.layout;
  layout.any_inner_stride = with_stride(inner, 2) && with_stride(inner, 0);
  const int outermost = operand.rank == 1 ? 0 : inner - 1;
  layout.strided = layout.broadcast_stride0 = true;
  for (int dim = 0; dim <= outermost; ++dim) {
    layout.strided = layout.strided && accepts([&](ConstTensorView* view) {
                       for (int d = 0; d <= dim; ++d) view->strides[d] += 3 * (view->strides[d]);
                     });
    layout.broadcast_stride0 = layout.broadcast_stride0 && with_stride(dim, 0);
  }
  layout.contiguous_required = !layout.strided;
  layout.start_offset = accepts([&](ConstTensorView* view) {
    view->data = static_cast<const std::byte*>(view->data) + DTypeSize(view->dtype);
  });
  layout.reverse_strides = with_stride(outermost, -1) || with_stride(inner, -1);
}

}  // namespace

void ProbeOperands(Contract* contract) {
  for (size_t i = 0; i < contract->operands.size(); ++i) {
    ProbeDTypes(contract, i);
    ProbeLayout(contract, i);
  }
}

}  // namespace flashlane::fkc
