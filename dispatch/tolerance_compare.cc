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

// One of the two outputs as the reference has it; lse counts as [B, Hq, Sq, 1].
struct Expected {
  const char* name;
  int rank;
  std::int64_t shape[4];
  const std::vector<double>& values;
  const std::vector<double>& row_tolerance;
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
    text += (d > 0 ? "," : "") + std::to_string(at.index[d]);
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

Comparison Compare(const Expected& expected, const ConstTensorView& got,
                   const std::vector<double>* lse) {
  if (got.rank != expected.rank || !IsAttentionDType(got.dtype) ||
      !std::equal(got.shape, got.shape + got.rank, expected.shape)) {
    return WrongShape(expected);
  }
  ConstTensorView padded = got;
  if (padded.rank == 3) {
    padded.shape[3] = 1;
    padded.strides[3] = 1;
    padded.rank = 4;
  }
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
    const bool empty = lse != nullptr && (*lse)[r] == -kInfinity;
    for (std::int64_t d = 0; d < width; ++d) {
      const double truth = expected.values[static_cast<std::size_t>(row * width + d)];
      Element element = Judge(reader.At(b, h, i, d), truth, expected.row_tolerance[r], got.dtype);
      // A row that sees no key is zero, not nearly zero.
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

Comparison CompareOut(const ForwardReference& reference, const ConstTensorView& out) {
  const std::int64_t* s = reference.shape;
  return Compare({"out", 4, {s[0], s[1], s[2], s[3]}, reference.out, reference.out_row_tolerance},
                 out, &reference.lse);
}

Comparison CompareLse(const ForwardReference& reference, const ConstTensorView& lse) {
  const std::int64_t* s = reference.shape;
  return Compare({"lse", 3, {s[0], s[1], s[2], 1}, reference.lse, reference.lse_row_tolerance}, lse,
                 nullptr);
}

double RopeTolerance(DType dtype, double magnitude, double value) {
  const DType computed = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const double before = 2.0 * UnitRoundoff(computed) * magnitude;
  return before + RoundingError(dtype, std::abs(value) + before);
}

}  // namespace flashlane
