#include "dispatch/view.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace flashlane {
namespace {

// Byte offsets stay below this, so that sums of a few of them cannot overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 61;

struct Dim {
  int64_t size;
  int64_t stride;
};

// Dimensions with more than one element, by rising stride.
struct Dims {
  std::array<Dim, kMaxRank> dim{};
  int count = 0;
};

Dims SortedDims(const ConstTensorView& view) {
  Dims dims;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] <= 1) continue;
    int at = dims.count++;
    for (; at > 0 && dims.dim[at - 1].stride > view.strides[d]; --at)
      dims.dim[at] = dims.dim[at - 1];
    dims.dim[at] = {view.shape[d], view.strides[d]};
  }
  return dims;
}

// Elements from the first to the last address, inclusive, of the `count` dimensions of least
// stride.
int64_t Extent(const Dims& dims, int count) {
  int64_t extent = 1;
  for (int d = 0; d < count; ++d) extent += (dims.dim[d].size - 1) * dims.dim[d].stride;
  return extent;
}

// All addresses of the view are data + [0, run) modulo period bytes, for any cut of its dimensions.
struct Lattice {
  int64_t run;     // bytes
  int64_t period;  // bytes; 0 = a single run
};

Lattice CutAt(const ConstTensorView& view, const Dims& dims, int inner) {
  const int64_t bytes = static_cast<int64_t>(DTypeSize(view.dtype));
  Lattice lattice{Extent(dims, inner) * bytes, 0};
  for (int d = inner; d < dims.count; ++d) {
    lattice.period = std::gcd(lattice.period, dims.dim[d].stride * bytes);
  }
  return lattice;
}

bool DisjointLattices(const Lattice& a, const Lattice& b, int64_t distance) {
  const int64_t period = std::gcd(a.period, b.period);
  if (period == 0) return false;
  const int64_t start = ((distance % period) + period) % period;  // of b relative to a
  return start >= a.run && start + b.run <= period;
}

Status CheckSizes(const NamedView& operand) {
  const ConstTensorView& view = operand.view;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] < 0) {
      return Invalid(operand.name, "shape " + ShapeString(view) + " has a negative size");
    }
  }
  // Sizes of an empty tensor, too: kernels plan by the bytes of a row.
  int64_t elements = 1;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] == 0) continue;
    if (__builtin_mul_overflow(elements, view.shape[d], &elements) || elements > kMaxBytes / 8) {
      return Invalid(operand.name,
                     "shape " + ShapeString(view) + " has more elements than memory can hold");
    }
  }
  return {};
}

// The rule that the stride of dimension d breaks; null if none. Adds the dimension's reach to
// `extent`.
const char* BrokenStrideRule(const ConstTensorView& view, int d, Inner inner, int64_t* extent) {
  const int64_t stride = view.strides[d];
  const bool innermost = d == view.rank - 1;
  if (stride < 0) return " is negative";
  if (innermost && inner == Inner::kUnit && stride != 1) {
    return " is not 1: the innermost dimension must be dense";
  }
  if (innermost && inner == Inner::kUnitOrBroadcast && stride > 1) {
    return " is neither 1 nor 0 (broadcast)";
  }
  int64_t span = 0;
  if (__builtin_mul_overflow(view.shape[d] - 1, stride, &span) ||
      __builtin_add_overflow(*extent, span, extent) || *extent > kMaxBytes / 8) {
    return " reaches beyond any address";
  }
  return nullptr;
}

Status CheckStrides(const NamedView& operand, Inner inner) {
  const ConstTensorView& view = operand.view;
  int64_t extent = 0;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] <= 1) continue;
    if (const char* rule = BrokenStrideRule(view, d, inner, &extent)) {
      return Invalid(operand.name, "stride " + std::to_string(view.strides[d]) + " of dimension " +
                                       std::to_string(d) + rule);
    }
  }
  return {};
}

}  // namespace

Status Invalid(const char* name, const std::string& rule) {
  return Status::InvalidArgument(std::string(name) + ": " + rule);
}

Status CheckDType(const NamedView& operand, DType want, const char* whose) {
  if (operand.view.dtype == want) return {};
  return Invalid(operand.name, std::string("dtype ") + DTypeName(operand.view.dtype) + " is not " +
                                   DTypeName(want) + whose);
}

std::string ShapeString(const ConstTensorView& view) {
  std::string text = "[";
  for (int d = 0; d < view.rank; ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(view.shape[d]);
  }
  return text + "]";
}

int64_t NumElements(const ConstTensorView& view) {
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] == 0) return 0;  // whatever the others are; their product may overflow
  }
  int64_t elements = 1;
  for (int d = 0; d < view.rank; ++d) elements *= view.shape[d];
  return elements;
}

Status CheckView(const NamedView& operand, int rank, Inner inner) {
  const ConstTensorView& view = operand.view;
  if (view.rank == kStridesMismatch) {
    return Invalid(operand.name, "the numbers of sizes and strides differ");
  }
  if (view.rank != rank) {
    return Invalid(operand.name,
                   "rank " + std::to_string(view.rank) + " is not " + std::to_string(rank));
  }
  if (DTypeSize(view.dtype) == 0) {
    return Invalid(operand.name, "dtype " + std::to_string(static_cast<int>(view.dtype)) +
                                     " is not an element type");
  }
  if (Status status = CheckSizes(operand); !status.ok()) return status;
  if (NumElements(view) == 0) return {};
  if (Status status = CheckStrides(operand, inner); !status.ok()) return status;
  if (view.data == nullptr) {
    return Invalid(operand.name,
                   "data is null but the shape " + ShapeString(view) + " has elements");
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % DTypeSize(view.dtype) != 0) {
    return Invalid(operand.name, "data is not aligned to its element of " +
                                     std::to_string(DTypeSize(view.dtype)) + " bytes");
  }
  return {};
}

Status CheckOutputView(const NamedView& operand, int rank, Inner inner) {
  if (Status status = CheckView(operand, rank, inner); !status.ok()) return status;
  if (NumElements(operand.view) == 0) return {};
  const Dims dims = SortedDims(operand.view);
  for (int d = 0; d < dims.count; ++d) {
    if (dims.dim[d].stride < Extent(dims, d)) {
      return Invalid(operand.name, "stride " + std::to_string(dims.dim[d].stride) +
                                       " makes elements of an output overlap");
    }
  }
  return {};
}

bool MayOverlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (NumElements(a) == 0 || NumElements(b) == 0) return false;
  const Dims dims_a = SortedDims(a);
  const Dims dims_b = SortedDims(b);
  const int64_t bytes_a = CutAt(a, dims_a, dims_a.count).run;
  const int64_t bytes_b = CutAt(b, dims_b, dims_b.count).run;
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  if (begin_a + static_cast<std::uintptr_t>(bytes_a) <= begin_b ||
      begin_b + static_cast<std::uintptr_t>(bytes_b) <= begin_a) {
    return false;
  }
  const int64_t distance = static_cast<int64_t>(begin_b - begin_a);
  for (int cut_a = 0; cut_a < dims_a.count; ++cut_a) {
    for (int cut_b = 0; cut_b < dims_b.count; ++cut_b) {
      if (DisjointLattices(CutAt(a, dims_a, cut_a), CutAt(b, dims_b, cut_b), distance))
        return false;
    }
  }
  return true;
}

bool SameView(const ConstTensorView& x, const ConstTensorView& y) {
  return x.data == y.data && x.dtype == y.dtype && x.rank == y.rank &&
         std::equal(x.shape, x.shape + x.rank, y.shape) &&
         std::equal(x.strides, x.strides + x.rank, y.strides);
}

Status CheckDisjoint(std::initializer_list<NamedView> inputs,
                     std::initializer_list<NamedView> outputs) {
  const auto check = [](const NamedView& output, const NamedView& other) {
    const bool both = output.view.present() && other.view.present();
    if (!both || !MayOverlap(output.view, other.view)) return Status();
    return Invalid(output.name, std::string("shares memory with ") + other.name);
  };
  for (const NamedView& input : inputs) {
    for (const NamedView& output : outputs) {
      if (Status s = check(output, input); !s.ok()) return s;
    }
  }
  for (const NamedView& output : outputs) {
    for (const NamedView& before : outputs) {
      if (&before == &output) break;
      if (Status s = check(output, before); !s.ok()) return s;
    }
  }
  return {};
}

int64_t StrideOf(const ConstTensorView& view, int dim) {
  return view.shape[dim] > 1 && NumElements(view) > 0 ? view.strides[dim] : 0;
}

kernels::RowStrides RowStridesOf(const ConstTensorView& view) {
  return {StrideOf(view, 0), StrideOf(view, 1), StrideOf(view, 2)};
}

}  // namespace flashlane
