// The rules and the resolution of MergeStates.

#include <string>

#include "dispatch/contract.h"
#include "dispatch/contract_rules.h"
#include "dispatch/view.h"

namespace flashlane {
namespace {

// The first dimensions of `operand` are those of `model`.
Status CheckSameShape(const NamedView& operand, const NamedView& model) {
  for (int d = 0; d < operand.view.rank; ++d) {
    if (operand.view.shape[d] != model.view.shape[d]) {
      return Invalid(operand.name, "shape " + ShapeString(operand.view) + " does not match " +
                                       model.name + "'s " + ShapeString(model.view));
    }
  }
  return {};
}

}  // namespace

Status CheckMerge(const PartialAttention& a, const PartialAttention& b,
                  const AttentionOutputs& outputs) {
  const NamedView model{"out_a", a.out};
  if (Status s = CheckAttentionDType(model); !s.ok()) return s;
  const DType lse_dtype = a.out.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  for (const NamedView& operand : {model, NamedView{"out_b", b.out}}) {
    if (Status s = CheckView(operand, 4, Inner::kUnit); !s.ok()) return s;
    if (Status s = CheckDType(operand, a.out.dtype); !s.ok()) return s;
    if (Status s = CheckSameShape(operand, model); !s.ok()) return s;
  }
  if (Status s = CheckHeadSize({"out_a", a.out}); !s.ok()) return s;
  for (const NamedView& operand : {NamedView{"lse_a", a.lse}, {"lse_b", b.lse}}) {
    if (Status s = CheckView(operand, 3, Inner::kAny); !s.ok()) return s;
    if (Status s = CheckDType(operand, lse_dtype); !s.ok()) return s;
    if (Status s = CheckSameShape(operand, model); !s.ok()) return s;
  }
  const NamedView out{"out", outputs.out};
  if (Status s = CheckOutputView(out, 4, Inner::kUnit); !s.ok()) return s;
  if (Status s = CheckDType(out, a.out.dtype); !s.ok()) return s;
  if (Status s = CheckSameShape(out, model); !s.ok()) return s;
  const NamedView lse{"lse", outputs.lse};
  if (lse.view.present()) {
    if (Status s = CheckOutputView(lse, 3, Inner::kAny); !s.ok()) return s;
    if (Status s = CheckDType(lse, lse_dtype); !s.ok()) return s;
    if (Status s = CheckSameShape(lse, model); !s.ok()) return s;
  }
  // Rows are independent and read before they are written, so a side may be its own output.
  const bool into_a =
      SameView(out.view, a.out) && (!lse.view.present() || SameView(lse.view, a.lse));
  const bool into_b =
      SameView(out.view, b.out) && (!lse.view.present() || SameView(lse.view, b.lse));
  const NamedView none{"", {}};
  return CheckDisjoint(
      {into_a ? none : NamedView{"out_a", a.out}, into_a ? none : NamedView{"lse_a", a.lse},
       into_b ? none : NamedView{"out_b", b.out}, into_b ? none : NamedView{"lse_b", b.lse}},
      {out, lse});
}

kernels::MergeArgs ResolveMerge(const PartialAttention& a, const PartialAttention& b,
                                const AttentionOutputs& outputs) {
  kernels::MergeArgs args;
  args.a = {a.out.data, a.lse.data, RowStridesOf(a.out), RowStridesOf(a.lse)};
  args.b = {b.out.data, b.lse.data, RowStridesOf(b.out), RowStridesOf(b.lse)};
  args.out = outputs.out.data;
  args.lse = outputs.lse.present() ? outputs.lse.data : nullptr;
  args.out_strides = RowStridesOf(outputs.out);
  args.lse_strides = RowStridesOf(outputs.lse);
  args.num_heads = a.out.shape[1];
  args.seqlen_q = a.out.shape[2];
  args.head_dim_v = a.out.shape[3];
  return args;
}

}  // namespace flashlane
