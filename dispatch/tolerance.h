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
// NaN, +inf and -inf must stand exactly where the truth, rounded to the result's dtype, has them; a
// row whose lse is -inf must be 0.
#ifndef FLASHLANE_DISPATCH_TOLERANCE_H_
#define FLASHLANE_DISPATCH_TOLERANCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flashlane/attention.h"
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

// Of an element of ApplyRope whose value is `value`, the sum of two products whose magnitudes add
// up to `magnitude`: a rounding of each product and of the sum in the type that is computed in, and
// that of the result to `dtype`.
double RopeTolerance(DType dtype, double magnitude, double value);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_TOLERANCE_H_
