#include "dispatch/cli/operands.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "dispatch/cli/text.h"
#include "dispatch/dtype.h"
#include "dispatch/view.h"

namespace flashlane::cli {
namespace {

std::string ShapeOf(const StoredTensor& tensor) {
  return ShapeText(tensor.shape.data(), static_cast<int>(tensor.shape.size()));
}

// Whether two values that both stand for `n` f64 are the same; one NaN is as good as another.
bool SameValues(const void* a, DType a_dtype, const void* b, DType b_dtype, std::int64_t n) {
  constexpr std::int64_t kChunk = 512;
  double a_values[kChunk];
  double b_values[kChunk];
  const auto* a_bytes = static_cast<const std::byte*>(a);
  const auto* b_bytes = static_cast<const std::byte*>(b);
  for (std::int64_t i = 0; i < n; i += kChunk) {
    const std::int64_t count = std::min(kChunk, n - i);
    ConvertElements(a_bytes + static_cast<std::size_t>(i) * DTypeSize(a_dtype), a_dtype, a_values,
                    DType::kF64, count);
    ConvertElements(b_bytes + static_cast<std::size_t>(i) * DTypeSize(b_dtype), b_dtype, b_values,
                    DType::kF64, count);
    const bool same = std::equal(a_values, a_values + count, b_values,
                                 [](double x, double y) { return x == y || (x != x && y != y); });
    if (!same) return false;
  }
  return true;
}

void Convert(DType dtype, ConstTensorView* view, Operands* operands) {
  if (view->dtype == dtype) return;
  const std::int64_t elements = NumElements(*view);
  AlignedBytes bytes(static_cast<std::size_t>(elements) * DTypeSize(dtype));
  ConvertElements(view->data, view->dtype, bytes.data(), dtype, elements);
  operands->exact =
      operands->exact && SameValues(view->data, view->dtype, bytes.data(), dtype, elements);
  view->data = bytes.data();
  view->dtype = dtype;
  operands->converted.push_back(std::move(bytes));
}

template <typename Inputs>
struct NamedOperand {
  const char* name;
  ConstTensorView Inputs::*view;
  bool required;
  bool converts;  // has an attention dtype
};

constexpr NamedOperand<BackwardInputs> kBackwardOperands[] = {
    {"do", &BackwardInputs::dout, true, true},
};

constexpr NamedOperand<AttentionInputs> kForwardOperands[] = {
    {"q", &AttentionInputs::q, true, true},
    {"k", &AttentionInputs::k, true, true},
    {"v", &AttentionInputs::v, true, true},
    {"alibi_slopes", &AttentionInputs::alibi_slopes, false, true},
    {"bias", &AttentionInputs::bias, false, true},
    {"sinks", &AttentionInputs::sinks, false, true},
    {"mask", &AttentionInputs::mask, false, false},
    {"k_len", &AttentionInputs::k_len, false, false},
    {"q_start", &AttentionInputs::q_start, false, false},
};

constexpr NamedOperand<PagedInputs> kPagedOperands[] = {
    {"q", &PagedInputs::q, true, true},
    {"k_cache", &PagedInputs::k_cache, true, true},
    {"v_cache", &PagedInputs::v_cache, true, true},
    {"block_table", &PagedInputs::block_table, true, false},
    {"context_lens", &PagedInputs::context_lens, true, false},
    {"alibi_slopes", &PagedInputs::alibi_slopes, false, true},
    {"sinks", &PagedInputs::sinks, false, true},
    {"mask", &PagedInputs::mask, false, false},
};

// Tensors that would change the answer of other calls: not to be ignored in silence.
constexpr const char* kNotPaged[] = {"bias", "k_len", "q_start", "cu_seqlens_q"};

template <typename Inputs>
Status CheckOperand(const Case& in, const NamedOperand<Inputs>& operand,
                    const ConstTensorView& view) {
  if (!view.present()) {
    if (!operand.required) return {};
    return Status::InvalidArgument(Quoted(in.path) + ": tensor " + Quoted(operand.name) +
                                   " is missing");
  }
  if (operand.required && operand.converts && view.rank != 4) {
    return TensorError(in, operand.name, "shape " + ShapeString(view) + " must have 4 dimensions");
  }
  if (operand.converts && !IsAttentionDType(view.dtype)) {
    return TensorError(
        in, operand.name,
        std::string("dtype ") + DTypeName(view.dtype) + " is not one of F32, F64, BF16, F16");
  }
  return {};
}

template <typename Inputs, std::size_t kCount>
Status Fill(const Case& from, std::optional<DType> dtype,
            const NamedOperand<Inputs> (&named)[kCount], Inputs* inputs, Operands* operands) {
  for (const NamedOperand<Inputs>& operand : named) {
    TensorView view;
    if (Status s = ViewOf(from, operand.name, &view); !s.ok()) return s;
    if (Status s = CheckOperand(from, operand, view); !s.ok()) return s;
    inputs->*operand.view = view;
  }
  if (!dtype.has_value()) return {};
  const DType stored = (inputs->*named[0].view).dtype;
  for (const NamedOperand<Inputs>& operand : named) {
    ConstTensorView* view = &(inputs->*operand.view);
    const bool mixed = !operand.required && view->dtype == DType::kF32 && stored != DType::kF32;
    if (view->present() && operand.converts && !mixed) Convert(*dtype, view, operands);
  }
  return {};
}

// out and lse of the forward call, if the file has them. They are not those of this call where a
// conversion has changed an operand, and where they are stored in a narrower type than it takes.
Status FillKept(const Case& from, Operands* operands) {
  BackwardInputs* inputs = &operands->backward;
  const DType dtype = inputs->forward.q.dtype;
  const struct {
    const char* name;
    ConstTensorView* view;
    DType dtype;
  } kept[] = {{"out", &inputs->out, dtype},
              {"lse", &inputs->lse, dtype == DType::kF64 ? DType::kF64 : DType::kF32}};
  bool of_this_call = operands->exact;
  for (const auto& [name, view, as] : kept) {
    TensorView stored;
    if (Status s = ViewOf(from, name, &stored); !s.ok()) return s;
    if (Status s =
            CheckOperand(from, NamedOperand<BackwardInputs>{name, nullptr, false, true}, stored);
        !s.ok()) {
      return s;
    }
    *view = stored;
    if (stored.present() && DTypeSize(stored.dtype) < DTypeSize(as)) of_this_call = false;
  }
  for (const auto& [name, view, as] : kept) {
    if (!of_this_call) *view = {};
    if (view->present()) Convert(as, view, operands);
  }
  if (of_this_call) operands->exact = true;  // of the operands
  return {};
}

Status CheckPagedCase(const Case& from, const PagedInputs& inputs) {
  for (const char* name : kNotPaged) {
    if (from.file.tensors.count(name) > 0) {
      return TensorError(from, name, "a paged case takes none");
    }
  }
  const std::int64_t block_size = inputs.k_cache.shape[1];
  if (from.block_size.value_or(block_size) != block_size) {
    return Status::InvalidArgument(
        Quoted(from.path) + ": block_size: " + std::to_string(*from.block_size) + " is not " +
        std::to_string(block_size) + ", dimension 1 of 'k_cache'");
  }
  return {};
}

}  // namespace

Status TensorError(const Case& in, const std::string& name, const std::string& rest) {
  return Status::InvalidArgument(Quoted(in.path) + ": tensor " + Quoted(name) + ": " + rest);
}

Status ViewOf(const Case& in, const std::string& name, TensorView* view) {
  *view = {};
  const auto found = in.file.tensors.find(name);
  if (found == in.file.tensors.end()) return {};
  const StoredTensor& tensor = found->second;
  const std::size_t rank = tensor.shape.size();
  if (rank < 1 || rank > static_cast<std::size_t>(kMaxRank)) {
    return TensorError(in, name, "shape " + ShapeOf(tensor) + " must have 1 to 4 dimensions");
  }
  // Python writes boolean masks as either.
  const bool byte_mask = name == "mask" && tensor.dtype == "U8";
  const std::optional<DType> dtype = byte_mask ? DType::kBool : ParseDType(tensor.dtype);
  if (!dtype.has_value()) {
    return TensorError(in, name, "dtype " + Quoted(tensor.dtype) + " is not supported here");
  }
  *view = TensorView(tensor.bytes.data(), *dtype, static_cast<int>(rank), tensor.shape.data());
  return {};
}

Status MakeOperands(const Case& from, Operation operation, std::optional<DType> dtype,
                    Operands* operands) {
  Operands result;
  result.operation = operation;
  if (operation == Operation::kPaged) {
    if (Status s = Fill(from, dtype, kPagedOperands, &result.paged, &result); !s.ok()) return s;
    if (Status s = CheckPagedCase(from, result.paged); !s.ok()) return s;
  } else {
    const bool backward = operation == Operation::kBackward;
    AttentionInputs* forward = backward ? &result.backward.forward : &result.forward;
    if (Status s = Fill(from, dtype, kForwardOperands, forward, &result); !s.ok()) return s;
    if (backward) {
      if (Status s = Fill(from, dtype, kBackwardOperands, &result.backward, &result); !s.ok()) {
        return s;
      }
      if (Status s = FillKept(from, &result); !s.ok()) return s;
    }
  }
  *operands = std::move(result);
  return {};
}

const ConstTensorView& Operands::q() const {
  return operation == Operation::kPaged      ? paged.q
         : operation == Operation::kBackward ? backward.forward.q
                                             : forward.q;
}

std::int64_t Operands::head_dim_v() const {
  return operation == Operation::kPaged      ? paged.v_cache.shape[3]
         : operation == Operation::kBackward ? backward.forward.v.shape[3]
                                             : forward.v.shape[3];
}

bool Operands::has_mask() const {
  return operation == Operation::kPaged      ? paged.mask.present()
         : operation == Operation::kBackward ? backward.forward.mask.present()
                                             : forward.mask.present();
}

}  // namespace flashlane::cli
