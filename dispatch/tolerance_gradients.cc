#include "dispatch/tolerance_gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch/dtype.h"

namespace flashlane {
namespace {

// Scores that f32 cannot resolve: beyond this the say is the oracle's own error.
constexpr double kRelativeCap = 0x1p-5;
// Of sums whose terms are independent: 3 standard deviations, from a root mean square of eight.
constexpr double kDeviations = 3.0;
constexpr double kCapSteps = 4.0;  // roundings of tanh, its square and 1 - tanh^2

// Floors count half of every rounding: sums of |q| |k| and the like overstate what vectors
// that point anywhere do, and where they do not the oracle's own error says so, three times. Of F64
// that is not known.
constexpr double kFloorPart = 0.5;

double Accumulating(const GradientCall& call) {
  if (call.dtype == DType::kF64) return UnitRoundoff(DType::kF64);
  return kFloorPart * UnitRoundoff(DType::kF32);
}

// g of tolerance.h for roundings of either sign at random.
double Growth(std::int64_t size) {
  return 0.5 * std::sqrt(static_cast<double>(std::max<std::int64_t>(size, 1)));
}

// Also of numbers whose squares are none.
double RootMeanSquare(const double* columns) {
  const double largest = FiniteMax(columns, kNumSigned);
  if (largest == 0) return 0.0;
  double scaled[kNumSigned];
  for (std::int64_t c = 0; c < kNumSigned; ++c) scaled[c] = columns[c] / largest;
  return largest * FiniteNorm(scaled, kNumSigned) / std::sqrt(static_cast<double>(kNumSigned));
}

double Finite(double x) { return std::isfinite(x) ? x : 0.0; }

// What the rounding of out to its dtype does to delta: sum_d (dout_d error of out_d)^2, rooted.
double RoundedDelta(const QueryRowInputs& row, const GradientCall& call) {
  double sum = 0;
  for (std::int64_t d = 0; d < call.head_dim_v; ++d) {
    const double error = Finite(row.dout[d] * RoundingError(call.dtype, row.sums[d]));
    sum += error * error;
  }
  return std::sqrt(sum);
}

double WeightRounding(const GradientCall& call) {
  return call.dtype == DType::kBF16 ? kWeightRounding * UnitRoundoff(DType::kBF16) : 0.0;
}

// Query rows that add to one kv head.
std::int64_t RowsPerKey(const GradientCall& call) {
  return call.seqlen_q * (call.num_heads / call.num_kv_heads);
}

// What a key's own score adds to the error of its weight: it may be far larger than the scores of
// the keys that have most of it.
double OwnScore(const GradientCall& call, const KeyRowInputs& key) {
  return Accumulating(call) * (Growth(call.head_dim) + kScoreSteps) *
         FiniteNorm(key.k, call.head_dim);
}

}  // namespace

QueryRowTerms TermsOf(const GradientCall& call, const QueryRowInputs& row) {
  const double u = Accumulating(call);
  const std::int64_t dv = call.head_dim_v;
  const double* columns = row.sums + dv;
  // Of the keys alone: a sink may have nearly all of the weight.
  const double weight = Finite(columns[kColOne]);
  const double norm_k = weight > 0 ? Finite(columns[kColNormK]) / weight : 0.0;
  const double lse = Finite(row.lse);
  QueryRowTerms terms;
  const double norm_q = FiniteNorm(row.q, call.head_dim);
  terms.scaled_q = std::abs(call.scale) * norm_q;
  terms.max_q = FiniteMax(row.q, call.head_dim);
  terms.norm_dout = FiniteNorm(row.dout, dv);
  terms.max_dout = FiniteMax(row.dout, dv);
  terms.max_k = Finite(columns[kColMaxK]);
  terms.max_k_norm_v = Finite(columns[kColMaxKNormV]);
  terms.norm_v = Finite(columns[kColNormV]);
  terms.squares_one = RootMeanSquare(columns + kColSignedOne);
  terms.squares_norm_v = RootMeanSquare(columns + kColSignedNormV);
  terms.judged =
      call.dtype == DType::kF64 ||
      kLog2E * std::max(std::max(1.0, std::abs(call.scale)) * norm_q * norm_k, std::abs(lse)) <=
          std::numeric_limits<float>::max();
  if (row.lse == -std::numeric_limits<double>::infinity()) return terms;  // sees no key

  const double score = std::max(std::abs(lse), terms.scaled_q * norm_k);
  const double dot = Growth(call.head_dim) * terms.scaled_q * norm_k;
  const double log_n = std::log(static_cast<double>(std::max<std::int64_t>(call.seqlen_k, 1)));
  terms.relative = u * (dot + kScoreSteps * (score + log_n + 1) + Growth(call.seqlen_k));
  if (call.softcap != 0) terms.relative += 2 * u * dot / call.softcap;
  if (call.dtype == DType::kBF16) terms.relative += kWeightError;
  terms.relative = std::min(terms.relative, kRelativeCap);

  const double norm_out = FiniteNorm(row.sums, dv);
  for (std::int64_t d = 0; d < dv; ++d) terms.delta += Finite(row.dout[d] * row.sums[d]);
  terms.delta = std::abs(terms.delta);
  terms.dproduct = u * Growth(dv) * terms.norm_dout;
  terms.ddelta = terms.dproduct * norm_out +
                 terms.norm_dout * terms.relative * (terms.norm_v + norm_out) +
                 terms.norm_dout * WeightRounding(call) * RootMeanSquare(columns + kColSignedMaxV);
  if (IsHalf(call.dtype)) {
    terms.ddelta += kDeviations * RoundedDelta(row, call);
  }
  if (call.softcap != 0) {
    terms.dproduct += kCapSteps * u * terms.norm_dout;
    terms.ddelta += kCapSteps * u * terms.delta;
  }
  terms.sink = std::exp(row.sink - lse);
  return terms;
}

void FillRowColumns(const GradientCall& call, const QueryRowTerms& terms, std::int64_t row,
                    double* columns) {
  const double u = Accumulating(call);
  const double scaled = std::abs(call.scale) * terms.max_q;
  columns[kRowOne] = 1.0;
  columns[kRowRelative] = terms.relative;
  columns[kRowScaledQ] = terms.scaled_q;
  columns[kRowErrorDout] = (terms.relative + u * Growth(RowsPerKey(call))) * terms.max_dout;
  columns[kRowScaledQDout] = terms.scaled_q * terms.max_dout;
  columns[kRowAbsolute] = scaled * terms.dproduct;
  // Rows whose out is nearly the same round it alike: errors of delta add up as they stand.
  const double delta = scaled * terms.ddelta;
  columns[kRowDelta] = IsHalf(call.dtype) ? delta : 0.0;
  for (std::int64_t c = 0; c < kNumSigned; ++c) {
    columns[kRowSignedDout + c] = SignOf(row, c) * terms.max_dout;
    columns[kRowSignedAbsolute + c] = SignOf(row, kNumSigned + c) * delta;
  }
}

double DqBound(const GradientCall& call, const QueryRowTerms& terms, const double* products,
               double max_dq) {
  const double squares = RootMeanSquare(products);
  const double absolute =
      std::abs(call.scale) * (terms.dproduct * terms.max_k_norm_v + terms.ddelta * terms.max_k);
  return terms.relative * (kDeviations * squares + max_dq) + absolute +
         WeightRounding(call) * squares;
}

double DkBound(const GradientCall& call, const KeyRowInputs& key) {
  const double u = Accumulating(call);
  const double weight = key.columns[kRowOne];
  if (!(weight > 0)) return 0.0;
  const double squares = RootMeanSquare(key.products + kNumSigned);
  const double relative =
      (key.columns[kRowRelative] + OwnScore(call, key) * key.columns[kRowScaledQ]) / weight +
      u * Growth(RowsPerKey(call));
  return kDeviations * std::min(relative, kRelativeCap) * squares +
         (IsHalf(call.dtype) ? key.columns[kRowDelta]
                             : kDeviations * RootMeanSquare(key.columns + kRowSignedAbsolute)) +
         key.columns[kRowAbsolute] * FiniteNorm(key.v, call.head_dim_v) +
         WeightRounding(call) * squares;
}

double DvBound(const GradientCall& call, const KeyRowInputs& key) {
  return key.columns[kRowErrorDout] + OwnScore(call, key) * key.columns[kRowScaledQDout] +
         WeightRounding(call) * RootMeanSquare(key.columns + kRowSignedDout);
}

double DbiasBound(const QueryRowTerms& terms, bool per_key) {
  const double squares = terms.norm_dout * terms.squares_norm_v + terms.delta * terms.squares_one;
  const double absolute =
      per_key ? terms.dproduct * terms.squares_norm_v + terms.ddelta * terms.squares_one
              : terms.dproduct * terms.norm_v + terms.ddelta;
  return kDeviations * terms.relative * squares + absolute;
}

double DsinksBound(const QueryRowTerms& terms) {
  return terms.sink * (terms.relative * terms.delta + terms.ddelta);
}

}  // namespace flashlane
