// How far gradients may be from the truth: the sums that the bounds of tolerance.h need, and the
// bounds.
//
// Sums weighted by P or dS come from the f64 oracles themselves, as the tolerances of the forward
// do: through columns behind v in the forward (sums over keys), behind dout in the backward (sums
// over query rows: dv is linear in them, and with zeros behind v nothing else changes), and behind
// q and k (weighted by dS: each column is zero in one of the two, so that no score changes).
#ifndef FLASHLANE_DISPATCH_TOLERANCE_GRADIENTS_H_
#define FLASHLANE_DISPATCH_TOLERANCE_GRADIENTS_H_

#include <cstdint>

#include "dispatch/tolerance_rows.h"
#include "flashlane/tensor.h"

namespace flashlane {

// Behind v. Groups of kNumSigned columns hold a value with random signs: the root mean square of
// their weighted sums estimates sqrt(sum (weight value)^2).
enum KeyColumn : std::int64_t {
  kColOne,
  kColMaxK,
  kColNormK,
  kColNormV,
  kColMaxKNormV,
  kColSignedOne,
  kColSignedNormV = kColSignedOne + kNumSigned,
  kColSignedMaxV = kColSignedNormV + kNumSigned,
  kNumKeyColumns = kColSignedMaxV + kNumSigned,
};

// Behind dout.
enum RowColumn : std::int64_t {
  kRowOne,
  kRowRelative,
  kRowScaledQ,
  kRowErrorDout,
  kRowScaledQDout,
  kRowAbsolute,
  kRowDelta,
  kRowSignedDout,
  kRowSignedAbsolute = kRowSignedDout + kNumSigned,
  kNumRowColumns = kRowSignedAbsolute + kNumSigned,
};

// Behind q and k: kNumSigned columns for sums over keys (zero in q), as many for sums over rows.
inline constexpr std::int64_t kNumProductColumns = 2 * kNumSigned;

// Sizes and parameters of a call, as the bounds need them.
struct GradientCall {
  std::int64_t batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v;
  DType dtype;
  double scale;
  double softcap;  // 0 = off
};

// What the bounds need of one query row; see the header of tolerance.h for the letters.
struct QueryRowTerms {
  double relative = 0;   // error of its weights, of each
  double delta = 0;      // |delta|
  double ddelta = 0;     // error of delta
  double dproduct = 0;   // error of dP is at most this times |v_j|
  double norm_dout = 0;  // and of dout and q:
  double max_dout = 0;
  double max_q = 0;
  double scaled_q = 0;  // |scale| |q|
  double max_k = 0;     // sum_j p_j max_d |k_jd|
  double max_k_norm_v = 0;
  double norm_v = 0;
  double squares_one = 0;     // sqrt(sum_j p_j^2)
  double squares_norm_v = 0;  // sqrt(sum_j (p_j |v_j|)^2)
  double sink = 0;            // exp(sink - lse)
  bool judged = true;         // no score may overflow f32 on the way
};

// Of a row whose q is `q`, dout is `dout`, sums over keys are `sums` (out, then the key columns)
// and log-sum-exp is `lse`.
struct QueryRowInputs {
  const double* q;
  const double* dout;
  const double* sums;
  double lse;
  double sink;  // -inf: none
};
inline bool IsHalf(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

QueryRowTerms TermsOf(const GradientCall& call, const QueryRowInputs& row);

// The columns behind the dout of row number `row`.
void FillRowColumns(const GradientCall& call, const QueryRowTerms& terms, std::int64_t row,
                    double* columns);

// Bounds for random roundings of one row of each gradient, without the rounding of the result.
// `products`: the row's sums in the columns behind q or k; `columns`: those behind dout.
struct KeyRowInputs {
  const double* k;
  const double* v;
  const double* products;
  const double* columns;
};
double DqBound(const GradientCall& call, const QueryRowTerms& terms, const double* products,
               double max_dq);
double DkBound(const GradientCall& call, const KeyRowInputs& key);
double DvBound(const GradientCall& call, const KeyRowInputs& key);
// Of one row's share in an element of dbias, where that has a column per key or one for all.
double DbiasBound(const QueryRowTerms& terms, bool per_key);
double DsinksBound(const QueryRowTerms& terms);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_TOLERANCE_GRADIENTS_H_
