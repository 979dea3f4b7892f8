#include "dispatch/flat/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "dispatch/flat/compare.h"

namespace flashlane::flat {
namespace {

// Finite differences of sum(out), of a checked problem.
class Gradcheck {
 public:
  explicit Gradcheck(const GradcheckProblem& problem)
      : problem_(problem), ahead_(problem.dims), behind_(problem.dims) {}

  AttnStatus Run(const FlatGradients& gradients, GradcheckResult* result) {
    result->agrees = true;
    result->elements = static_cast<int64_t>(ahead_.out.size());
    AttnStatus s = FindRounding();
    if (s == ATTN_OK) s = CompareOperand(&FlatInputs::q, gradients.dq, result);
    if (s == ATTN_OK) s = CompareOperand(&FlatInputs::k, gradients.dk, result);
    if (s == ATTN_OK) s = CompareOperand(&FlatInputs::v, gradients.dv, result);
    return s;
  }

 private:
  AttnStatus Forward(const FlatInputs& inputs, OwnOutputs* outputs) {
    return RunForward(inputs, problem_.dims, problem_.params, *outputs,
                      CoreOptions(problem_.options, Kernel::kNaive));
  }

  // What rounding may do to a sum of out.
  AttnStatus FindRounding() {
    AttnStatus s = Forward(problem_.inputs, &ahead_);
    const std::vector<double> growth =
        RowGrowth(problem_.inputs, problem_.dims, problem_.params.scale, ahead_.lse);
    const std::vector<double> magnitudes = Magnitudes(problem_.inputs, problem_.dims);
    FlatInputs positive = problem_.inputs;
    positive.v = magnitudes;
    if (s == ATTN_OK) s = Forward(positive, &behind_);
    double largest = 0.0, sum = 0.0;
    for (const double row : growth) largest = std::max(largest, row);
    for (const double element : behind_.out) sum += element;
    rounding_ = 8.0 * std::numeric_limits<double>::epsilon() * largest * sum;
    return s;
  }

  // d sum(out) / d values[i] by a step of `step` to both sides; values is where `moved` reads.
  AttnStatus Quotient(const FlatInputs& moved, double* value, double step, double* quotient) {
    const double at = *value, above = at + step, below = at - step;
    if (!(above > at && below < at) && std::isfinite(at)) return ATTN_BAD_STEP;
    *value = above;
    AttnStatus s = Forward(moved, &ahead_);
    *value = below;
    if (s == ATTN_OK) s = Forward(moved, &behind_);
    *value = at;
    double sum = 0.0;
    for (size_t e = 0; e < ahead_.out.size(); ++e) sum += ahead_.out[e] - behind_.out[e];
    *quotient = sum / (above - below);  // as far apart as rounding left them
    return s;
  }

  AttnStatus CompareOperand(ConstDoubles FlatInputs::*operand, const Doubles& gradient,
                            GradcheckResult* result) {
    const double* values = (problem_.inputs.*operand).data;
    std::vector<double> copy(values, values + gradient.size);
    FlatInputs moved = problem_.inputs;
    moved.*operand = copy;
    for (size_t i = 0; i < copy.size(); ++i) {
      double numerical = 0.0, coarse = 0.0;
      AttnStatus s = Quotient(moved, &copy[i], problem_.step, &numerical);
      if (s == ATTN_OK) s = Quotient(moved, &copy[i], 2.0 * problem_.step, &coarse);
      if (s != ATTN_OK) return s;
      const double tolerance =
          std::max({2.0 * problem_.step * problem_.step * (1.0 + std::abs(numerical)),
                    std::abs(numerical - coarse), rounding_ / problem_.step});
      const double error = std::abs(gradient.data[i] - numerical);
      Add(std::isfinite(error) ? error : std::numeric_limits<double>::infinity(), tolerance,
          result);
    }
    return ATTN_OK;
  }

  // What is not finite proves nothing, not even where both are: it never agrees.
  static void Add(double error, double tolerance, GradcheckResult* result) {
    if (error > result->max_error || result->tolerance == 0.0) {
      result->max_error = error;
      result->tolerance = tolerance;
    }
    result->agrees = result->agrees && std::isfinite(tolerance) && error <= tolerance;
  }

  const GradcheckProblem& problem_;
  OwnOutputs ahead_, behind_;
  double rounding_ = 0.0;
};

}  // namespace

AttnStatus CheckGradients(const GradcheckProblem& problem, const FlatGradients& gradients,
                          GradcheckResult* result) {
  return Gradcheck(problem).Run(gradients, result);
}

}  // namespace flashlane::flat
