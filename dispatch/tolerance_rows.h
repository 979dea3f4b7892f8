// What the references of contiguous and of paged calls share: the evaluations by the oracle, and
// the tolerances that come of them.
#ifndef FLASHLANE_DISPATCH_TOLERANCE_ROWS_H_
#define FLASHLANE_DISPATCH_TOLERANCE_ROWS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dispatch/tolerance.h"
#include "flashlane/attention.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// Columns that ride behind v through the f64 oracle, so that it weighs them by p. The signed ones
// hold max_d |v_jd| with a random sign each: the mean of their squares estimates
// sum_j p_j^2 max_d |v_jd|^2 (Hutchinson 1990), which no weighted sum gives exactly.
inline constexpr std::int64_t kNumSigned = 8;
// One random bit per column and key, as a sign.
double SignOf(std::int64_t key, std::int64_t column);

// Of the finite elements: what is not finite has rules of its own.
double FiniteNorm(const double* row, std::int64_t size);
double FiniteMax(const double* row, std::int64_t size);
double LargestError(const double* a, const double* b, std::int64_t size);

inline constexpr double kLog2E = 1.4426950408889634;  // kernels may work in powers of two
inline constexpr double kWeightRounding = 6.0;        // of BF16, see tolerance.h; and kWeightError
inline constexpr double kWeightError = 0x1p-13;
inline constexpr double kScoreSteps = 4.0;  // scale, softcap, ALiBi, bias; exp and log take theirs

enum Extra : std::int64_t { kMaxV, kNormK, kProduct, kSigned, kNumExtras = kSigned + kNumSigned };

// Fills the columns behind one row of v, of key j.
struct KeyRows {
  const double* k;
  std::int64_t head_dim;
  double* v;
  std::int64_t head_dim_v;
};
void FillExtras(const KeyRows& rows, std::int64_t j);

// One evaluation by the oracle: out with `width` columns, and lse.
struct Evaluation {
  using Attend = std::function<Status(const AttentionOutputs&, const ExecOptions&)>;

  std::int64_t width = 0;
  std::vector<double> out, lse;

  // Of queries q [B, Hq, Sq, D] and values of head_dim_v columns; accumulates in f32, or in f64
  // where q is F64.
  Status Run(const ConstTensorView& q, std::int64_t head_dim_v, int num_threads,
             const Attend& attend);
};

// Everything that tolerances are derived from.
struct Gathered {
  const ConstTensorView& q;
  const AttentionParams& params;
  std::int64_t num_keys;    // of the longest sequence
  const Evaluation& truth;  // f64, with the extra columns
  const Evaluation& same;   // the dtype of the inputs
};

// The reference: the truth, or the answers where there are any, and the tolerances.
Status FinishReference(const Gathered& from, const ForwardAnswers& answers,
                       ForwardReference* reference);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_TOLERANCE_ROWS_H_
