#include "dispatch/cli/judge_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>

namespace flashlane::cli {
namespace {

constexpr std::size_t kTerms = 6;
using Row = std::array<double, kTerms>;

// A relative error from which on a shape counts less. The model itself is off by as much as that at
// shapes of its edges (many short sequences), which must not be outvoted; what was disturbed is off
// by more.
constexpr double kOutlier = 0.3;
// Weights settle within a few rounds.
constexpr int kRounds = 10;
// A pivot below this part of its column's own square means that columns say the same.
constexpr double kSingular = 1e-9;

Row TermsOf(const TimedShape& timed) {
  const fkc::TimeTerms& t = timed.terms;
  return {1.0, t.tiles, t.flops, t.bytes, t.stream_flops, t.stream_bytes};
}

fkc::Coefficients ToCoefficients(const Row& x) { return {x[0], x[1], x[2], x[3], x[4], x[5]}; }

// Minimises the sum of (row . x - 1)^2 over x >= 0, as normal equations of scaled columns.
class NonNegativeFit {
 public:
  NonNegativeFit(const std::vector<Row>& rows, const std::vector<double>& weights) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      double sum = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) sum += weights[r] * rows[r][j] * rows[r][j];
      scale_[j] = sum > 0 ? 1 / std::sqrt(sum) : 0;
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t i = 0; i < kTerms; ++i) {
        const double a = rows[r][i] * scale_[i] * weights[r];
        right_[i] += a;
        for (std::size_t j = 0; j < kTerms; ++j) left_[i][j] += a * rows[r][j] * scale_[j];
      }
    }
  }

  Row Best() const {
    Row best = {};
    double least = 0;  // of x = 0, less the constant
    for (unsigned subset = 1; subset < 1u << kTerms; ++subset) {
      const std::optional<Row> x = Solve(subset);
      if (!x.has_value() || *std::min_element(x->begin(), x->end()) < 0) continue;
      double value = 0;  // at the minimum of a subset: -right . x
      for (std::size_t i = 0; i < kTerms; ++i) value -= right_[i] * (*x)[i];
      if (value < least) {
        least = value;
        best = *x;
      }
    }
    for (std::size_t i = 0; i < kTerms; ++i) best[i] *= scale_[i];
    return best;
  }

 private:
  // Elimination over the terms of `subset`; nothing where they are not independent.
  std::optional<Row> Solve(unsigned subset) const {
    std::array<Row, kTerms> a = left_;
    Row b = right_;
    std::vector<std::size_t> terms;
    for (std::size_t i = 0; i < kTerms; ++i) {
      if ((subset >> i & 1) != 0) terms.push_back(i);
    }
    for (std::size_t p = 0; p < terms.size(); ++p) {  // symmetric and positive: no pivoting
      const std::size_t pivot = terms[p];
      if (!(a[pivot][pivot] > kSingular)) return std::nullopt;
      for (std::size_t q = p + 1; q < terms.size(); ++q) {
        const std::size_t row = terms[q];
        const double factor = a[row][pivot] / a[pivot][pivot];
        for (const std::size_t column : terms) a[row][column] -= factor * a[pivot][column];
        b[row] -= factor * b[pivot];
      }
    }
    Row x = {};
    for (std::size_t p = terms.size(); p-- > 0;) {
      double rest = b[terms[p]];
      for (std::size_t q = p + 1; q < terms.size(); ++q)
        rest -= a[terms[p]][terms[q]] * x[terms[q]];
      x[terms[p]] = rest / a[terms[p]][terms[p]];
    }
    return x;
  }

  std::array<Row, kTerms> left_ = {};
  Row right_ = {};
  Row scale_ = {};
};

}  // namespace

double RelativeError(const fkc::Coefficients& coefficients, const TimedShape& timed) {
  return fkc::Nanoseconds(coefficients, timed.terms) / timed.nanoseconds - 1;
}

ErrorSummary Summarise(std::vector<double> errors) {
  if (errors.empty()) return {};
  for (double& error : errors) error = std::fabs(error);
  std::sort(errors.begin(), errors.end());
  const std::size_t middle = errors.size() / 2;
  const double median =
      errors.size() % 2 == 1 ? errors[middle] : (errors[middle - 1] + errors[middle]) / 2;
  return {median, errors.back()};
}

fkc::Coefficients FitCoefficients(const std::vector<TimedShape>& shapes) {
  std::vector<Row> rows;
  for (const TimedShape& timed : shapes) {
    Row row = TermsOf(timed);
    for (double& term : row) term /= timed.nanoseconds;
    rows.push_back(row);
  }
  std::vector<double> weights(rows.size(), 1.0);
  fkc::Coefficients fitted;
  for (int round = 0; round < kRounds; ++round) {
    fitted = ToCoefficients(NonNegativeFit(rows, weights).Best());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double error = std::fabs(RelativeError(fitted, shapes[r]));
      weights[r] = error <= kOutlier ? 1.0 : kOutlier / error;
    }
  }
  return fitted;
}

}  // namespace flashlane::cli
