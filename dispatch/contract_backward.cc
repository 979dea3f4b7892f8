// The rules and the resolution of backward calls. Those of the operands are the forward's.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "dispatch/contract.h"
#include "dispatch/contract_rules.h"
#include "dispatch/view.h"

namespace flashlane {
namespace {

// Sizes of a [B, heads, rows, width] operand of q's dtype, and their names.
struct RowShape {
  int64_t num_heads, num_rows, width;
  const char *heads_name, *rows_name, *width_name;
};

Status CheckRows(const NamedView& operand, const Sizes& sizes, const RowShape& shape,
                 DType q_dtype) {
  if (Status s = CheckDType(operand, q_dtype, ", q's dtype"); !s.ok()) return s;
  if (Status s = CheckDim(operand, 0, "batch", sizes.batch); !s.ok()) return s;
  if (Status s = CheckDim(operand, 1, shape.heads_name, shape.num_heads); !s.ok()) return s;
  if (Status s = CheckDim(operand, 2, shape.rows_name, shape.num_rows); !s.ok()) return s;
  return CheckDim(operand, 3, shape.width_name, shape.width);
}

RowShape QueryRows(const Sizes& sizes, int64_t width, const char* width_name) {
  return {sizes.num_heads, sizes.seqlen_q, width, "num_heads", "seqlen_q", width_name};
}

RowShape KeyRows(const Sizes& sizes, int64_t width, const char* width_name) {
  return {sizes.num_kv_heads, sizes.seqlen_k, width, "num_kv_heads", "seqlen_k", width_name};
}

// dout, and out and lse where they were kept.
Status CheckForwardResults(const BackwardInputs& in) {
  const Sizes sizes = SizesOf(in.forward);
  const DType dtype = in.forward.q.dtype;
  const RowShape shape = QueryRows(sizes, sizes.head_dim_v, "head_dim_v");
  if (in.out.present() != in.lse.present()) {
    return in.out.present() ? Invalid("out", "given without lse; keep both or neither")
                            : Invalid("lse", "given without out; keep both or neither");
  }
  const NamedView dout{"dout", in.dout};
  if (Status s = CheckView(dout, 4, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckRows(dout, sizes, shape, dtype); !s.ok()) return s;
  if (!in.out.present()) return {};
  const NamedView out{"out", in.out};
  if (Status s = CheckView(out, 4, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckRows(out, sizes, shape, dtype); !s.ok()) return s;
  const NamedView lse{"lse", in.lse};
  if (Status s = CheckView(lse, 3, Inner::kAny); !s.ok()) return s;
  if (Status s = CheckDType(lse, dtype == DType::kF64 ? DType::kF64 : DType::kF32); !s.ok()) {
    return s;
  }
  if (Status s = CheckDim(lse, 0, "batch", sizes.batch); !s.ok()) return s;
  if (Status s = CheckDim(lse, 1, "num_heads", sizes.num_heads); !s.ok()) return s;
  return CheckDim(lse, 2, "seqlen_q", sizes.seqlen_q);
}

Status CheckRowGradients(const AttentionInputs& in, const BackwardOutputs& outputs) {
  const Sizes sizes = SizesOf(in);
  const struct {
    NamedView view;
    RowShape shape;
  } gradients[] = {
      {{"dq", outputs.dq}, QueryRows(sizes, sizes.head_dim, "head_dim")},
      {{"dk", outputs.dk}, KeyRows(sizes, sizes.head_dim, "head_dim")},
      {{"dv", outputs.dv}, KeyRows(sizes, sizes.head_dim_v, "head_dim_v")},
  };
  for (const auto& [gradient, shape] : gradients) {
    if (!gradient.view.present()) continue;
    if (Status s = CheckOutputView(gradient, 4, Inner::kUnit); !s.ok()) return s;
    if (Status s = CheckRows(gradient, sizes, shape, in.q.dtype); !s.ok()) return s;
  }
  return {};
}

// A gradient of an optional operand has that operand's shape and dtype.
Status CheckLike(const NamedView& gradient, const NamedView& operand, Inner inner) {
  if (!gradient.view.present()) return {};
  if (!operand.view.present()) {
    return Invalid(gradient.name, std::string("asked for, but there is no ") + operand.name);
  }
  if (Status s = CheckOutputView(gradient, operand.view.rank, inner); !s.ok()) return s;
  if (Status s = CheckDType(gradient, operand.view.dtype, ", its operand's dtype"); !s.ok()) {
    return s;
  }
  if (std::equal(operand.view.shape, operand.view.shape + operand.view.rank, gradient.view.shape)) {
    return {};
  }
  return Invalid(gradient.name, "shape " + ShapeString(gradient.view) + " is not " +
                                    ShapeString(operand.view) + ", that of " + operand.name);
}

Status CheckAnyGradient(const BackwardOutputs& outputs) {
  for (const TensorView* gradient :
       {&outputs.dq, &outputs.dk, &outputs.dv, &outputs.dbias, &outputs.dsinks}) {
    if (gradient->present()) return {};
  }
  return Invalid("dq", "no gradient is asked for, neither dq nor dk, dv, dbias, dsinks");
}

// All rules of the gradients and of the forward's results but whom they may not overlap; the
// operands have been checked.
Status CheckGradients(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  if (Status s = CheckForwardResults(inputs); !s.ok()) return s;
  if (Status s = CheckAnyGradient(outputs); !s.ok()) return s;
  if (Status s = CheckRowGradients(inputs.forward, outputs); !s.ok()) return s;
  const NamedView dbias{"dbias", outputs.dbias};
  if (Status s = CheckLike(dbias, {"bias", inputs.forward.bias}, Inner::kUnit); !s.ok()) return s;
  return CheckLike({"dsinks", outputs.dsinks}, {"sinks", inputs.forward.sinks}, Inner::kAny);
}

template <typename Inputs>
Status CheckDisjointGradients(const Inputs& inputs, const BackwardOutputs& outputs) {
  const auto named = {NamedView{"dq", outputs.dq},
                      {"dk", outputs.dk},
                      {"dv", outputs.dv},
                      {"dbias", outputs.dbias},
                      {"dsinks", outputs.dsinks}};
  if (Status s = CheckDisjointFrom(inputs.forward, named); !s.ok()) return s;
  return CheckDisjoint({{"dout", inputs.dout}, {"out", inputs.out}, {"lse", inputs.lse}}, named);
}

// Kept results as the outputs that they once were: nothing writes to them here.
TensorView Writable(const ConstTensorView& view) {
  TensorView writable;
  writable.data = const_cast<void*>(view.data);
  writable.dtype = view.dtype;
  writable.rank = view.rank;
  std::copy(std::begin(view.shape), std::end(view.shape), writable.shape);
  std::copy(std::begin(view.strides), std::end(view.strides), writable.strides);
  return writable;
}

template <typename Inputs>
AttentionOutputs KeptOf(const Inputs& inputs) {
  AttentionOutputs kept;
  if (inputs.out.present()) kept = {Writable(inputs.out), Writable(inputs.lse)};
  return kept;
}

kernels::RowSums RowSumsOf(const TensorView& view) {
  return view.present() ? kernels::RowSums{view.data, RowStridesOf(view)} : kernels::RowSums{};
}

// What is not the forward's; of a packed batch as one long sequence.
kernels::BackwardArgs ResolveGradients(const kernels::ForwardArgs& forward,
                                       const ConstTensorView& dout,
                                       const BackwardOutputs& outputs) {
  kernels::BackwardArgs args;
  args.forward = forward;
  args.dout = dout.data;
  args.dout_strides = RowStridesOf(dout);
  args.dq = RowSumsOf(outputs.dq);
  args.dk = RowSumsOf(outputs.dk);
  args.dv = RowSumsOf(outputs.dv);
  if (outputs.dbias.present()) {
    args.dbias = outputs.dbias.data;
    args.dbias_batch = StrideOf(outputs.dbias, 0);
    args.dbias_head = StrideOf(outputs.dbias, 1);
    args.dbias_row = StrideOf(outputs.dbias, 2);
    args.dbias_col = StrideOf(outputs.dbias, 3);
  }
  if (outputs.dsinks.present()) {
    args.dsinks = outputs.dsinks.data;
    args.dsinks_stride = StrideOf(outputs.dsinks, 0);
  }
  return args;
}

BackwardInputs PackedAsOne(const VarlenBackwardInputs& inputs) {
  return {flashlane::PackedAsOne(inputs.forward), WithBatch(inputs.dout), WithBatch(inputs.out),
          WithBatch(inputs.lse)};
}

BackwardOutputs PackedAsOne(const BackwardOutputs& outputs) {
  BackwardOutputs one = outputs;
  one.dq = WithBatch(outputs.dq);
  one.dk = WithBatch(outputs.dk);
  one.dv = WithBatch(outputs.dv);
  return one;
}

}  // namespace

Status CheckBackward(const BackwardInputs& inputs, const AttentionParams& params,
                     const BackwardOutputs& outputs) {
  if (Status s = CheckOperands(inputs.forward, params); !s.ok()) return s;
  if (Status s = CheckGradients(inputs, outputs); !s.ok()) return s;
  return CheckDisjointGradients(inputs, outputs);
}

kernels::BackwardArgs ResolveBackward(const BackwardInputs& inputs, const AttentionParams& params,
                                      const BackwardOutputs& outputs) {
  return ResolveGradients(ResolveForward(inputs.forward, params, KeptOf(inputs)), inputs.dout,
                          outputs);
}

Status CheckVarlenBackward(const VarlenBackwardInputs& inputs, const AttentionParams& params,
                           const BackwardOutputs& outputs) {
  if (Status s = CheckVarlenOperands(inputs.forward, params); !s.ok()) return s;
  if (Status s = CheckView({"dout", inputs.dout}, 3, Inner::kUnit); !s.ok()) return s;
  const struct {
    NamedView view;
    int rank;
  } optional[] = {{{"out", inputs.out}, 3},
                  {{"lse", inputs.lse}, 2},
                  {{"dq", outputs.dq}, 3},
                  {{"dk", outputs.dk}, 3},
                  {{"dv", outputs.dv}, 3}};
  for (const auto& [operand, rank] : optional) {
    if (!operand.view.present()) continue;
    if (Status s = CheckView(operand, rank, Inner::kAny); !s.ok()) return s;
  }
  if (Status s = CheckGradients(PackedAsOne(inputs), PackedAsOne(outputs)); !s.ok()) return s;
  return CheckDisjointGradients(inputs, outputs);
}

kernels::BackwardArgs ResolveVarlenBackward(const VarlenBackwardInputs& inputs,
                                            const AttentionParams& params,
                                            const BackwardOutputs& outputs) {
  return ResolveGradients(ResolveVarlen(inputs.forward, params, KeptOf(inputs)),
                          WithBatch(inputs.dout), PackedAsOne(outputs));
}

}  // namespace flashlane
