// How far a result may be from the truth: the one place that says so, for tests and `verify`.
//
// For one query row, with softmax weights p, scores s and u the unit roundoff of the accumulating
// type, first-order error analysis of S = scale Q K^T, P = exp(S - lse), O = P V gives
//   |error of lse|   <= sum_j p_j delta_j + u g(n)
//   |error of out_d| <= sum_j p_j delta_j (|v_jd| + |out_d|) + u g(n) (sum_j p_j |v_jd| + |out_d|)
//   delta_j          <= u (g(D) |scale| |q| |k_j| + 4 (|lse| + ln n + 1))
// for n keys: delta_j is the error of a score, first of its dot product, then of the few steps
// after it (their size, weighted by p, is at most |lse| + ln n). g(x) = x holds for any order of
// summation; roundings of either sign at random amount to g(x) = sqrt(x) / 2, half because partial
// sums reach their full size only at the end. The weighted sums over visible keys come from the f64
// oracle itself, so whatever is masked does not count. Storing adds the unit roundoff of the
// result's dtype times the value. With these bounds
//   tolerance = 2 min(error of the oracle with an f32 accumulator, bound for any order)
//             + bound for random roundings (at most 2^-7 of its scale) + rounding of the result
// per row. The minimum keeps a broken oracle from excusing a broken kernel; the cap (on out only),
// for scores that f32 cannot resolve (a bias of -1e30), leaves the say to the oracle's own error.
// For BF16, kernels may round the weights to bf16 for the product with V: each adds an error of at
// most u p_j |v_jd|, u of bf16, of either sign at random, so that the tolerance grows by
// 6 u sqrt(sum_j p_j^2 max_d |v_jd|^2): 4.5 standard deviations (of 1 / sqrt(3) each; thousands of
// elements are compared), and twice that because the sum is an estimate from eight samples. The lse
// is that of the weights before rounding, which need be no better than 2^-13 each: a fortieth of
// the rounding to come.
// For F64 the truth is an f64 evaluation too and both floors count twice. A row whose scores may
// overflow f32 on the way is not judged.
//
// Gradients, from the same analysis with rho_i the relative error of the weights of query row i
// (the bound of lse and delta_j above, together; of dP = dout v^T and of delta = sum(dout out) the
// absolute errors are those of their dot products, and what the error of out does to delta):
//   |error of dS_ij| <= rho_i |dS_ij| + p_ij (|error of dP_ij| + |error of delta_i|)
//   |error of dq_i|  <= |scale| sum_j |error of dS_ij| |k_j|    dk, dv, dbias, dsinks likewise
// where what is independent from term to term adds up as root of squares (3 standard deviations,
// estimated from random signs) and the rest as it stands. 1 - tanh^2 adds 4 u to the errors of dP
// and delta. Of BF16 and F16 out may have been rounded before delta: 3 sqrt(sum_d (dout_d
// rounding of out_d)^2) of its error, which does not average out over rows. Of BF16 p and dS may
// have been rounded for their products, as p above. rho is capped at 2^-5. With these bounds for
// random roundings, of f32 half of each (the oracle's own error shows where that is too little; of
// F64 there is none, and all counts),
//   tolerance = 3 min(error of the oracle with an f32 accumulator,
//                     4 sqrt(longest sum) bound, of BF16 and F16 2 bound, + rounding of the result)
//             + bound + rounding of the result
// per row of the gradient; a row that nothing contributes to must be exactly 0.
//
// NaN, +inf and -inf must stand exactly where the truth, rounded to the result's dtype, has them; a
// row whose lse is -inf must be 0.
#ifndef FLASHLANE_DISPATCH_TOLERANCE_H_
#define FLASHLANE_DISPATCH_TOLERANCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/paged.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// Answers computed elsewhere, in f64: out [B, Hq, Sq, Dv], lse [B, Hq, Sq]. Absent = the oracle's.
struct ForwardAnswers {
  ConstTensorView out;
  ConstTensorView lse;
};

// The truth for one call and what may differ from it; reusable for every kernel and target.
struct ForwardReference {
  std::int64_t shape[4] = {};  // of out
  std::vector<double> out;     // row-major
  std::vector<double> lse;
  std::vector<double> out_row_tolerance;  // per row; without the rounding of the result
  std::vector<double> lse_row_tolerance;
};

// Runs the oracle on these inputs (in f64 for the truth, in their dtype for its error) on at most
// num_threads threads. Never reads keys at or past k_len. Errors: those of Attention.
Status MakeForwardReference(const AttentionInputs& inputs, const AttentionParams& params,
                            const ForwardAnswers& answers, int num_threads,
                            ForwardReference* reference);

// The same for a paged call whose queries are not packed. Never reads what AttentionPaged does not.
Status MakePagedReference(const PagedInputs& inputs, const AttentionParams& params,
                          const ForwardAnswers& answers, int num_threads,
                          ForwardReference* reference);

// Answers of a backward call, in f64. Absent = the oracle's.
struct BackwardAnswers {
  ConstTensorView dq;
  ConstTensorView dk;
  ConstTensorView dv;
};

// The truth for one gradient: row-major, of its operand's shape.
struct GradientReference {
  const char* name = "";
  int rank = 0;  // 0: the call has no such operand
  std::int64_t shape[kMaxRank] = {};
  std::vector<double> values;
  std::vector<double> row_tolerance;  // per row; without the rounding of the result
};

struct BackwardReference {
  GradientReference dq, dk, dv, dbias, dsinks;
};

// The truth for a backward call; as MakeForwardReference. Kept results are not looked at.
Status MakeBackwardReference(const BackwardInputs& inputs, const AttentionParams& params,
                             const BackwardAnswers& answers, int num_threads,
                             BackwardReference* reference);

struct Comparison {
  bool agrees = true;
  double max_error = 0;  // largest absolute error of any element
  // The element with the largest error as a fraction of its tolerance; infinity where a rule
  // without tolerance (NaN, infinities, exact zeros, shape) is broken.
  double fraction = 0;
  double worst_error = 0;
  double tolerance = 0;
  std::int64_t index[4] = {};
  std::string message;  // where it does not agree: that element, in words
};

// Compare a result of any attention dtype and any strides with the truth.
Comparison CompareOut(const ForwardReference& reference, const ConstTensorView& out);
Comparison CompareLse(const ForwardReference& reference, const ConstTensorView& lse);
Comparison CompareGradient(const GradientReference& reference, const ConstTensorView& gradient);

// Of an element of ApplyRope whose value is `value`, the sum of two products whose magnitudes add
// up to `magnitude`: a rounding of each product and of the sum in the type that is computed in, and
// that of the result to `dtype`.
double RopeTolerance(DType dtype, double magnitude, double value);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_TOLERANCE_H_
