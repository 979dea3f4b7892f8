#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>

#include "dispatch/tensor_reader.h"
#include "dispatch/tolerance.h"

namespace flashlane {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An output as the reference has it; lse counts as [B, Hq, Sq, 1], dsinks as [1, 1, Hq, 1].
struct Expected {
  const char* name;
  int rank;
  std::int64_t shape[4];
  const std::vector<double>& values;
  const std::vector<double>& row_tolerance;

  int first_dim() const { return rank == 1 ? 2 : 0; }  // of those four
};

struct Element {
  double got = 0;
  double expected = 0;
  double error = 0;
  double tolerance = 0;
  double fraction = 0;
};

// As a result of that dtype holds it.
double Round(double value, DType dtype) {
  double bits = 0;
  ConvertElements(&value, DType::kF64, &bits, dtype, 1);
  ConvertElements(&bits, dtype, &value, DType::kF64, 1);
  return value;
}

Element Judge(double got, double truth, double row_tolerance, DType dtype) {
  Element element{got, truth, 0.0, row_tolerance, 0.0};
  if (row_tolerance == kInfinity) return element;  // see the header: not judged
  if (std::isfinite(got) && std::isfinite(truth)) {
    element.tolerance = row_tolerance + RoundingError(dtype, truth);
    element.error = std::abs(got - truth);
    // A tolerance of zero, and one that is NaN, allows nothing.
    if (element.error > 0) {
      element.fraction = element.tolerance > 0 ? element.error / element.tolerance : kInfinity;
    }
  } else if (!(std::isnan(got) && std::isnan(truth)) && got != Round(truth, dtype)) {
    element.error = element.fraction = kInfinity;
  }
  return element;
}

std::string Describe(const Expected& expected, const Comparison& at, const Element& element) {
  std::string text = std::string(expected.name) + "[";
  for (int d = 0; d < expected.rank; ++d) {
    text += (d > 0 ? "," : "") + std::to_string(at.index[expected.first_dim() + d]);
  }
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "] is %.9g, expected %.9g: error %.3g, tolerance %.3g",
                element.got, element.expected, element.error, element.tolerance);
  return text + numbers;
}

Comparison WrongShape(const Expected& expected) {
  Comparison result;
  result.agrees = false;
  result.fraction = result.max_error = result.worst_error = kInfinity;
  result.message = std::string(expected.name) + ": shape or dtype is not that of the reference";
  return result;
}

// With four dimensions, the innermost one the width of a row.
ConstTensorView Padded(const Expected& expected, const ConstTensorView& view) {
  ConstTensorView padded = view;
  if (view.rank == 4) return padded;
  padded.rank = 4;
  const int first = expected.first_dim();
  for (int d = 0; d < 4; ++d) {
    const bool given = d >= first && d < first + view.rank;
    padded.shape[d] = given ? view.shape[d - first] : 1;
    padded.strides[d] = given ? view.strides[d - first] : 1;
  }
  return padded;
}

// is_empty says of which rows every element must be exactly 0.
template <typename IsEmpty>
Comparison Compare(const Expected& expected, const ConstTensorView& got, const IsEmpty& is_empty) {
  if (got.rank != expected.rank || !IsAttentionDType(got.dtype) ||
      !std::equal(got.shape, got.shape + got.rank, expected.shape)) {
    return WrongShape(expected);
  }
  const ConstTensorView padded = Padded(expected, got);
  const TensorReader reader(padded);
  const std::int64_t width = reader.size(3);
  const std::int64_t rows = static_cast<std::int64_t>(expected.row_tolerance.size());
  Comparison result;
  Element worst;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t i = row % reader.size(2);
    const std::int64_t h = row / reader.size(2) % reader.size(1);
    const std::int64_t b = row / reader.size(2) / reader.size(1);
    const auto r = static_cast<std::size_t>(row);
    const bool empty = is_empty(r);
    for (std::int64_t d = 0; d < width; ++d) {
      const double truth = expected.values[static_cast<std::size_t>(row * width + d)];
      Element element = Judge(reader.At(b, h, i, d), truth, expected.row_tolerance[r], got.dtype);
      // Zero, not nearly zero.
      if (empty && element.got != 0.0) element.error = element.fraction = kInfinity;
      result.max_error = std::max(result.max_error, element.error);
      if ((row == 0 && d == 0) || element.fraction > worst.fraction) {
        worst = element;
        const std::int64_t index[4] = {b, h, i, d};
        std::copy(index, index + 4, result.index);
      }
    }
  }
  result.fraction = worst.fraction;
  result.worst_error = worst.error;
  result.tolerance = worst.tolerance;
  result.agrees = worst.fraction <= 1.0;
  if (!result.agrees) result.message = Describe(expected, result, worst);
  return result;
}

}  // namespace

// A row that sees no key is zero.
Comparison CompareOut(const ForwardReference& reference, const ConstTensorView& out) {
  const std::int64_t* s = reference.shape;
  return Compare({"out", 4, {s[0], s[1], s[2], s[3]}, reference.out, reference.out_row_tolerance},
                 out, [&](std::size_t row) { return reference.lse[row] == -kInfinity; });
}

Comparison CompareLse(const ForwardReference& reference, const ConstTensorView& lse) {
  const std::int64_t* s = reference.shape;
  return Compare({"lse", 3, {s[0], s[1], s[2], 1}, reference.lse, reference.lse_row_tolerance}, lse,
                 [](std::size_t) { return false; });
}

// A row of no tolerance is one that nothing contributes to.
Comparison CompareGradient(const GradientReference& reference, const ConstTensorView& gradient) {
  const std::int64_t* s = reference.shape;
  return Compare({reference.name,
                  reference.rank,
                  {s[0], s[1], s[2], s[3]},
                  reference.values,
                  reference.row_tolerance},
                 gradient, [&](std::size_t row) { return reference.row_tolerance[row] == 0; });
}

double RopeTolerance(DType dtype, double magnitude, double value) {
  const DType computed = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const double before = 2.0 * UnitRoundoff(computed) * magnitude;
  return before + RoundingError(dtype, std::abs(value) + before);
}

}  // namespace flashlane
