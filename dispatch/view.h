// Rules that hold for any tensor view, and questions about views. Messages name the argument.
#ifndef FLASHLANE_DISPATCH_VIEW_H_
#define FLASHLANE_DISPATCH_VIEW_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "flashlane/status.h"
#include "flashlane/tensor.h"
#include "kernels/args.h"

namespace flashlane {

// "[2, 8, 128, 64]".
std::string ShapeString(const ConstTensorView& view);

// Elements of the view; the shape has been checked.
int64_t NumElements(const ConstTensorView& view);

// A name for messages and a view.
struct NamedView {
  const char* name;
  ConstTensorView view;
};

// InvalidArgument: "name: rule".
Status Invalid(const char* name, const std::string& rule);

// `whose` completes the message: "k: dtype F64 is not F32, q's dtype".
Status CheckDType(const NamedView& operand, DType want, const char* whose = "");

enum class Inner { kUnit, kUnitOrBroadcast, kAny };

// Sizes >= 0; strides >= 0 (of dimensions with more than one element) and the innermost as `inner`
// says; byte offsets fit in 62 bits; data not null and aligned to its element where there are
// elements.
Status CheckView(const NamedView& operand, int rank, Inner inner);

// In addition: no two elements at one address.
Status CheckOutputView(const NamedView& operand, int rank, Inner inner);

// Whether two views may share a byte. Exact for disjoint ranges and for slices of one packed tensor
// (q, k and v of [B, S, 3, H, D]); otherwise errs on the side of yes.
bool MayOverlap(const ConstTensorView& a, const ConstTensorView& b);

// Whether the two views are one and the same.
bool SameView(const ConstTensorView& x, const ConstTensorView& y);

// No output shares memory with an input, or with another output; absent views share with nobody.
Status CheckDisjoint(std::initializer_list<NamedView> inputs,
                     std::initializer_list<NamedView> outputs);

// [total, heads, width] as [1, heads, total, width]; [heads, total] as [1, heads, total].
template <typename View>
View WithBatch(const View& view) {
  View out = view;
  if (!view.present()) return out;
  out.rank = view.rank + 1;
  out.shape[0] = 1;
  out.strides[0] = 0;
  const int heads = view.rank == 3 ? 1 : 0;
  const int total = 1 - heads;
  out.shape[1] = view.shape[heads];
  out.strides[1] = view.strides[heads];
  out.shape[2] = view.shape[total];
  out.strides[2] = view.strides[total];
  if (view.rank == 3) {
    out.shape[3] = view.shape[2];
    out.strides[3] = view.strides[2];
  }
  return out;
}

// 0 for dimensions with one element and for empty views: those strides are never used, and a caller
// may leave anything there.
int64_t StrideOf(const ConstTensorView& view, int dim);
kernels::RowStrides RowStridesOf(const ConstTensorView& view);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_VIEW_H_
