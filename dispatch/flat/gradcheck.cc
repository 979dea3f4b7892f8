#include "dispatch/flat/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
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

  // What rounding may do to the sum of a row of out, and of all rows of a kv head: an element of q
  // moves one of the former, of k and v one of the latter; of v, weights stay what they are.
  AttnStatus FindRounding() {
    const FlatDims& dims = problem_.dims;
    AttnStatus s = Forward(problem_.inputs, &ahead_);
    const std::vector<double> growth =
        RowGrowth(problem_.inputs, dims, problem_.params.scale, ahead_.lse);
    const std::vector<double> magnitudes = Magnitudes(problem_.inputs, dims);
    FlatInputs positive = problem_.inputs;
    positive.v = magnitudes;
    if (s == ATTN_OK) s = Forward(positive, &behind_);
    const auto terms = static_cast<double>(std::max<int64_t>(dims.n_tok_k, 2));
    rows_q_.assign(growth.size(), 0.0);  // [n_tok_q][h_q]
    rows_k_.assign(growth.empty() ? 0 : static_cast<size_t>(dims.h_kv), 0.0);
    rows_v_ = rows_k_;
    for (size_t row = 0; row < rows_q_.size(); ++row) {
      const auto head = static_cast<int64_t>(row) % dims.h_q;
      const int64_t query = static_cast<int64_t>(row) / dims.h_q;
      const auto kv_head = static_cast<size_t>(head / (dims.h_q / dims.h_kv));
      const double* magnitude = behind_.out.data() + static_cast<int64_t>(row) * dims.head_dim;
      const double sum = 8.0 * std::numeric_limits<double>::epsilon() *
                         std::accumulate(magnitude, magnitude + dims.head_dim, 0.0);
      rows_q_[row] = sum * growth[static_cast<size_t>(head * dims.n_tok_q + query)];
      rows_k_[kv_head] += rows_q_[row];
      rows_v_[kv_head] += sum * terms;
    }
    return s;
  }

  double RoundingOf(ConstDoubles FlatInputs::*operand, size_t element) const {
    const size_t head_row = element / static_cast<size_t>(problem_.dims.head_dim);
    if (operand == &FlatInputs::q) return rows_q_[head_row];
    const std::vector<double>& rows = operand == &FlatInputs::k ? rows_k_ : rows_v_;
    return rows.empty() ? 0.0 : rows[head_row % rows.size()];
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
                    std::abs(numerical - coarse), RoundingOf(operand, i) / problem_.step});
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
  std::vector<double> rows_q_, rows_k_, rows_v_;
};

}  // namespace

AttnStatus CheckGradients(const GradcheckProblem& problem, const FlatGradients& gradients,
                          GradcheckResult* result) {
  return Gradcheck(problem).Run(gradients, result);
}

}  // namespace flashlane::flat
