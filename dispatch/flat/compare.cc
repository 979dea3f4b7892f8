#include "dispatch/flat/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace flashlane::flat {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kFloor = 1e-12;  // where everything is tiny

// Euclidean norm without overflow. Infinite or NaN where an element is.
double Norm(const double* x, int64_t size) {
  double largest = 0.0;
  for (int64_t i = 0; i < size; ++i) {
    if (!std::isfinite(x[i])) return x[i];
    largest = std::max(largest, std::abs(x[i]));
  }
  if (largest == 0.0) return 0.0;
  double sum = 0.0;
  for (int64_t i = 0; i < size; ++i) sum += (x[i] / largest) * (x[i] / largest);
  return largest * std::sqrt(sum);
}

// The largest norm of a key of each kv head. A key that is not finite is hidden, or makes its rows
// NaN or infinite, which are compared exactly.
std::vector<double> LargestKeys(const FlatInputs& inputs, const FlatDims& dims) {
  std::vector<double> largest(static_cast<size_t>(dims.h_kv), 0.0);
  for (int64_t j = 0; j < dims.n_tok_k; ++j) {
    for (int64_t h = 0; h < dims.h_kv; ++h) {
      const double norm = Norm(inputs.k.data + (j * dims.h_kv + h) * dims.head_dim, dims.head_dim);
      double& most = largest[static_cast<size_t>(h)];
      if (std::isfinite(norm)) most = std::max(most, norm);
    }
  }
  return largest;
}

}  // namespace

double Difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0.0;
  const double difference = std::abs(a - b);
  return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

double MaxDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, Difference(a[i], b[i]));
  return largest;
}

std::vector<double> RowGrowth(const FlatInputs& inputs, const FlatDims& dims, double scale,
                              const std::vector<double>& lse) {
  if (lse.empty()) return {};
  const std::vector<double> keys = LargestKeys(inputs, dims);
  const int64_t group = dims.h_q / dims.h_kv;
  const double terms = static_cast<double>(std::max<int64_t>(dims.n_tok_k, 2));
  std::vector<double> growth(lse.size());
  for (int64_t h = 0; h < dims.h_q; ++h) {
    for (int64_t i = 0; i < dims.n_tok_q; ++i) {
      const auto row = static_cast<size_t>(h * dims.n_tok_q + i);
      const double* q = inputs.q.data + (i * dims.h_q + h) * dims.head_dim;
      const double scores = static_cast<double>(dims.head_dim + 2) * std::abs(scale) *
                            Norm(q, dims.head_dim) * keys[static_cast<size_t>(h / group)];
      growth[row] = terms;
      if (std::isfinite(scores)) growth[row] = std::max(growth[row], scores);
      if (std::isfinite(lse[row])) growth[row] = std::max(growth[row], std::abs(lse[row]));
    }
  }
  return growth;
}

Tolerances::Tolerances(const FlatDims& dims, const std::vector<double>& growth,
                       const std::vector<double>& magnitude)
    : out(magnitude.size()), lse(growth.size()) {
  for (size_t row = 0; row < lse.size(); ++row) lse[row] = kFloor + 8.0 * kEps * growth[row];
  for (size_t e = 0; e < out.size(); ++e) {
    const auto head_row = static_cast<int64_t>(e) / dims.head_dim;  // of [n_tok_q][h_q]
    const auto row = static_cast<size_t>(head_row % dims.h_q * dims.n_tok_q + head_row / dims.h_q);
    out[e] = kFloor + 8.0 * kEps * growth[row] * magnitude[e];
  }
}

void JudgeAgreement(const OwnOutputs& flash, const OwnOutputs& reference, const Tolerances& allowed,
                    FlashAgreement* result) {
  result->max_out_diff = MaxDifference(flash.out, reference.out);
  result->max_lse_diff = MaxDifference(flash.lse, reference.lse);
  result->elements = static_cast<int64_t>(flash.out.size());
  result->agrees = true;
  const auto judge = [&](double a, double b, double tolerance) {
    const double difference = Difference(a, b);  // two NaNs have a tolerance of NaN
    result->agrees = result->agrees && (difference == 0.0 || difference <= tolerance);
  };
  double smallest = std::numeric_limits<double>::infinity();
  for (size_t e = 0; e < flash.out.size(); ++e) {
    judge(flash.out[e], reference.out[e], allowed.out[e]);
    if (allowed.out[e] < smallest) smallest = allowed.out[e];
  }
  for (size_t row = 0; row < flash.lse.size(); ++row) {
    judge(flash.lse[row], reference.lse[row], allowed.lse[row]);
  }
  result->tolerance = std::isfinite(smallest) ? smallest : kFloor;
}

std::vector<double> Magnitudes(const FlatInputs& inputs, const FlatDims& dims) {
  std::vector<double> magnitudes(Elements(dims).kv);
  for (size_t i = 0; i < magnitudes.size(); ++i) magnitudes[i] = std::abs(inputs.v.data[i]);
  return magnitudes;
}

}  // namespace flashlane::flat
