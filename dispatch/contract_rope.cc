#include "dispatch/contract_rope.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "dispatch/contract_rules.h"
#include "dispatch/sequence_values.h"

namespace flashlane {
namespace {

// q or k, and where it goes.
struct Side {
  NamedView x;
  NamedView out;

  bool present() const { return x.view.present(); }
  bool in_place() const { return SameView(x.view, out.view); }
};

int TokenDim(const ConstTensorView& view) { return view.rank == 4 ? 2 : 0; }

Status CheckPresence(const Side& side) {
  if (side.x.view.present() == side.out.view.present()) return {};
  return Invalid(side.out.name, std::string(side.out.view.present() ? "given" : "absent") +
                                    ", but " + side.x.name +
                                    (side.x.view.present() ? " is given" : " is absent"));
}

// CheckDType, which names `model` where it refuses; the text costs nothing where it does not.
Status CheckDTypeOf(const NamedView& operand, const NamedView& model) {
  if (operand.view.dtype == model.view.dtype) return {};
  return CheckDType(operand, model.view.dtype,
                    (std::string(", ") + model.name + "'s dtype").c_str());
}

// x by itself and beside `model`, whose dtype, rank and tokens it shares; then out beside x.
Status CheckSide(const Side& side, const NamedView& model) {
  const auto& [x, out] = side;
  const int rank = x.view.rank;
  if (rank != kStridesMismatch && rank != 3 && rank != 4) {
    return Invalid(x.name, WithValue("rank", rank) + " is not 3 or 4");
  }
  if (rank != kStridesMismatch && rank != model.view.rank) {
    return Invalid(x.name, WithValue("rank", rank) + " is not " + std::to_string(model.view.rank) +
                               ", that of " + model.name);
  }
  if (Status s = CheckAttentionDType(x); !s.ok()) return s;
  if (Status s = CheckView(x, rank, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckDTypeOf(x, model); !s.ok()) return s;
  if (rank == 4) {
    if (Status s = CheckDim(x, 0, "batch", model.view.shape[0]); !s.ok()) return s;
    if (Status s = CheckDim(x, 2, "seqlen", model.view.shape[2]); !s.ok()) return s;
  } else if (Status s = CheckDim(x, 0, "total", model.view.shape[0]); !s.ok()) {
    return s;
  }
  if (Status s = CheckOutputView(out, rank, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckDTypeOf(out, x); !s.ok()) return s;
  if (std::equal(out.view.shape, out.view.shape + rank, x.view.shape)) return {};
  return Invalid(out.name, "shape " + ShapeString(out.view) + " does not match " + x.name + "'s " +
                               ShapeString(x.view));
}

// [total]; of a batch also [batch, seqlen].
Status CheckTokenRows(const RopeInputs& inputs, const RopeParams& params,
                      const ConstTensorView& model) {
  const int64_t num_rows = inputs.cos.shape[0];
  const int64_t tokens = model.shape[TokenDim(model)];
  const NamedView positions{"positions", inputs.positions};
  if (!positions.view.present()) {
    if (params.q_start < 0) {
      return Invalid("q_start", WithValue("value", params.q_start) + " is negative");
    }
    if (NumElements(model) > 0 && params.q_start > num_rows - tokens) {
      return Invalid("q_start", WithValue("value", params.q_start) + " and " +
                                    std::to_string(tokens) + " tokens reach past the " +
                                    std::to_string(num_rows) + " rows of cos");
    }
    return {};
  }
  const ValueRange range{0, num_rows - 1, ", the rows of cos"};
  if (model.rank == 3 || positions.view.rank != 2) {
    return CheckSequenceValues(positions, tokens, range);
  }
  if (Status s = CheckView(positions, 2, Inner::kAny); !s.ok()) return s;
  if (Status s = CheckDim(positions, 0, "batch", model.shape[0]); !s.ok()) return s;
  if (Status s = CheckDim(positions, 1, "seqlen", tokens); !s.ok()) return s;
  if (NumElements(positions.view) == 0) return {};
  for (int64_t b = 0; b < model.shape[0]; ++b) {
    const auto offset = b * positions.view.strides[0];
    ConstTensorView row(static_cast<const char*>(positions.view.data) +
                            offset * static_cast<int64_t>(DTypeSize(positions.view.dtype)),
                        positions.view.dtype, {tokens}, {positions.view.strides[1]});
    if (CheckSequenceValues({"", row}, tokens, range).ok()) continue;
    const std::string name = "positions[" + std::to_string(b) + "]";
    return CheckSequenceValues({name.c_str(), row}, tokens, range);
  }
  return {};
}

kernels::RopeOperand OperandOf(const ConstTensorView& x, const TensorView& out) {
  kernels::RopeOperand operand;
  if (!x.present()) return operand;
  operand.x = x.data;
  operand.out = out.data;
  operand.x_strides = RowStridesOf(x.rank == 4 ? x : WithBatch(x));
  operand.out_strides = RowStridesOf(out.rank == 4 ? out : WithBatch(out));
  operand.num_heads = x.shape[1];
  operand.head_dim = x.shape[x.rank - 1];
  return operand;
}

kernels::TokenPositions PositionsOf(const RopeInputs& inputs, const RopeParams& params) {
  kernels::TokenPositions positions;
  const ConstTensorView& view = inputs.positions;
  positions.start = params.q_start;
  if (!view.present()) return positions;
  positions.values = SequenceValuesOf(view, 0);
  positions.values.stride = 1;
  positions.token = StrideOf(view, view.rank - 1);
  if (view.rank == 2) positions.batch = StrideOf(view, 0);
  return positions;
}

}  // namespace

Status CheckRopeTables(const NamedView& cos, const NamedView& sin, const NamedView& x) {
  const DType want = x.view.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  for (const NamedView& table : {cos, sin}) {
    if (Status s = CheckView(table, 2, Inner::kUnit); !s.ok()) return s;
    if (table.view.dtype != want) {
      return CheckDType(
          table, want, (std::string(", for ") + x.name + " of " + DTypeName(x.view.dtype)).c_str());
    }
  }
  for (int d = 0; d < 2; ++d) {
    if (sin.view.shape[d] != cos.view.shape[d]) {
      return Invalid(sin.name, "shape " + ShapeString(sin.view) + " does not match " + cos.name +
                                   "'s " + ShapeString(cos.view));
    }
  }
  const int64_t pairs = cos.view.shape[1], head_dim = x.view.shape[x.view.rank - 1];
  if (pairs < 1) return Invalid(cos.name, "rotary_dim 0 is below 2");
  if (pairs > head_dim / 2) {
    return Invalid(cos.name, std::to_string(pairs) + " pairs of dimensions are more than " +
                                 x.name + "'s " + WithValue("head_dim", head_dim) + " has");
  }
  return {};
}

kernels::RopeTables RopeTablesOf(const ConstTensorView& cos, const ConstTensorView& sin) {
  kernels::RopeTables tables;
  tables.cos = cos.data;
  tables.sin = sin.data;
  tables.cos_stride = StrideOf(cos, 0);
  tables.sin_stride = StrideOf(sin, 0);
  tables.pairs = cos.shape[1];
  return tables;
}

Status CheckRope(const RopeInputs& inputs, const RopeParams& params, const RopeOutputs& outputs) {
  const Side q{{"q", inputs.q}, {"out.q", outputs.q}};
  const Side k{{"k", inputs.k}, {"out.k", outputs.k}};
  const NamedView cos{"cos", inputs.cos}, sin{"sin", inputs.sin};
  if (!q.present() && !k.present()) return Invalid("q", "absent, and so is k");
  const NamedView& model = q.present() ? q.x : k.x;
  for (const Side* side : {&q, &k}) {
    if (Status s = CheckPresence(*side); !s.ok()) return s;
    if (!side->present()) continue;
    if (Status s = CheckSide(*side, model); !s.ok()) return s;
    if (Status s = CheckRopeTables(cos, sin, side->x); !s.ok()) return s;
  }
  if (Status s = CheckTokenRows(inputs, params, model.view); !s.ok()) return s;
  const NamedView none{"", {}};
  // Heads are read before they are written, so an input may be its own output.
  const NamedView positions{"positions", inputs.positions};
  if (Status s = CheckDisjoint({q.in_place() ? none : q.x, k.x, cos, sin, positions}, {q.out});
      !s.ok()) {
    return s;
  }
  return CheckDisjoint({q.x, k.in_place() ? none : k.x, cos, sin, positions, q.out}, {k.out});
}

kernels::RopeArgs ResolveRope(const RopeInputs& inputs, const RopeParams& params,
                              const RopeOutputs& outputs) {
  const ConstTensorView& model = inputs.q.present() ? inputs.q : inputs.k;
  kernels::RopeArgs args;
  args.q = OperandOf(inputs.q, outputs.q);
  args.k = OperandOf(inputs.k, outputs.k);
  args.tables = RopeTablesOf(inputs.cos, inputs.sin);
  args.tables.interleaved = params.interleaved;
  args.tables.inverse = params.inverse;
  args.positions = PositionsOf(inputs, params);
  args.batch = model.rank == 4 ? model.shape[0] : 1;
  args.seqlen = model.shape[TokenDim(model)];
  const kernels::RowStrides& strides = (inputs.q.present() ? args.q : args.k).x_strides;
  if (strides.head > strides.row) args.block_tokens = kernels::kRopeBlockTokens;
  return args;
}

}  // namespace flashlane
