#include "dispatch/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "dispatch/dtype.h"
#include "dispatch/tensor_reader.h"

namespace flashlane {
namespace {

constexpr double kOracleFactor = 2.0;
constexpr double kOutCap = 0x1p-7;
constexpr double kLog2E = 1.4426950408889634;  // kernels may work in powers of two
constexpr double kWeightRounding = 6.0;
constexpr double kWeightError = 0x1p-13;
constexpr double kScoreSteps = 4.0;  // scale, softcap, ALiBi, bias; exp and log take their share

std::int64_t KeysOf(const AttentionInputs& inputs, const AttentionParams& params,
                    std::int64_t batch) {
  const ConstTensorView& view = inputs.k_len;
  if (!view.present()) return params.k_len.value_or(inputs.k.shape[2]);
  const std::int64_t i = batch * view.strides[0];
  switch (view.dtype) {
    case DType::kI32:
      return static_cast<const std::int32_t*>(view.data)[i];
    case DType::kU32:
      return static_cast<const std::uint32_t*>(view.data)[i];
    default:
      return static_cast<const std::int64_t*>(view.data)[i];
  }
}

double FiniteNorm(const double* row, std::int64_t size) {
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += std::isfinite(row[i]) ? row[i] * row[i] : 0.0;
  return std::sqrt(sum);
}

double FiniteMax(const double* row, std::int64_t size) {
  double largest = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (std::isfinite(row[i])) largest = std::max(largest, std::abs(row[i]));
  }
  return largest;
}

// Columns that ride behind v through the f64 oracle, so that it weighs them by p. The signed ones
// hold max_d |v_jd| with a random sign each: the mean of their squares estimates
// sum_j p_j^2 max_d |v_jd|^2 (Hutchinson 1990), which no weighted sum gives exactly.
constexpr std::int64_t kNumSigned = 8;
enum Extra : std::int64_t { kMaxV, kNormK, kProduct, kSigned, kNumExtras = kSigned + kNumSigned };

// One random bit per column and key (SplitMix64's finalizer).
double SignOf(std::int64_t key, std::int64_t column) {
  std::uint64_t z = (static_cast<std::uint64_t>(key) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return ((z >> 31 ^ z) >> column & 1) != 0 ? 1.0 : -1.0;
}

// k and v up to k_len in f64, v followed by the extra columns; the rest is zero and never read.
struct KeysAndValues {
  std::vector<double> k, v;
  ConstTensorView k_view, v_view;

  KeysAndValues(const AttentionInputs& inputs, const AttentionParams& params) {
    const TensorReader k_in(inputs.k);
    const TensorReader v_in(inputs.v);
    const std::int64_t head_dim = k_in.size(3);
    const std::int64_t head_dim_v = v_in.size(3);
    const std::int64_t width = head_dim_v + kNumExtras;
    const std::int64_t rows = k_in.size(0) * k_in.size(1) * k_in.size(2);
    k.resize(static_cast<std::size_t>(rows * head_dim));
    v.resize(static_cast<std::size_t>(rows * width));
    for (std::int64_t b = 0; b < k_in.size(0); ++b) {
      const std::int64_t keys = KeysOf(inputs, params, b);
      for (std::int64_t h = 0; h < k_in.size(1); ++h) {
        for (std::int64_t j = 0; j < keys; ++j) {
          const std::int64_t row = (b * k_in.size(1) + h) * k_in.size(2) + j;
          double* k_row = k.data() + row * head_dim;
          double* v_row = v.data() + row * width;
          k_in.Row(b, h, j, k_row);
          v_in.Row(b, h, j, v_row);
          double* extras = v_row + head_dim_v;
          extras[kMaxV] = FiniteMax(v_row, head_dim_v);
          extras[kNormK] = FiniteNorm(k_row, head_dim);
          extras[kProduct] = extras[kMaxV] * extras[kNormK];
          for (std::int64_t c = 0; c < kNumSigned; ++c) {
            extras[kSigned + c] = extras[kMaxV] * SignOf(j, c);
          }
        }
      }
    }
    k_view = {k.data(), DType::kF64, {k_in.size(0), k_in.size(1), k_in.size(2), head_dim}};
    v_view = {v.data(), DType::kF64, {k_in.size(0), k_in.size(1), k_in.size(2), width}};
  }
};

// One evaluation by the oracle: out with `width` columns, and lse.
struct Evaluation {
  std::int64_t width = 0;
  std::vector<double> out, lse;

  Status Run(const AttentionInputs& inputs, const AttentionParams& params, int num_threads) {
    const ConstTensorView& q = inputs.q;
    const DType dtype = q.dtype;
    const bool wide = dtype == DType::kF64;
    width = inputs.v.shape[3];
    std::int64_t rows = 0;
    std::int64_t elements = 0;
    if (__builtin_mul_overflow(q.shape[0], q.shape[1], &rows) ||
        __builtin_mul_overflow(rows, q.shape[2], &rows) ||
        __builtin_mul_overflow(rows, width, &elements) || rows < 0 || elements < 0) {
      return Status::InvalidArgument("q, v: out would have more than 2^63 elements");
    }
    const DType lse_dtype = wide ? DType::kF64 : DType::kF32;
    std::vector<double> raw_out(static_cast<std::size_t>(elements));
    std::vector<double> raw_lse(static_cast<std::size_t>(rows));
    const AttentionOutputs outputs = {
        {raw_out.data(), dtype, {q.shape[0], q.shape[1], q.shape[2], width}},
        {raw_lse.data(), lse_dtype, {q.shape[0], q.shape[1], q.shape[2]}}};
    ExecOptions options;
    options.kernel = Kernel::kNaive;
    options.num_threads = num_threads;
    options.accumulator = wide ? Accumulator::kF64 : Accumulator::kF32;
    if (Status s = Attention(inputs, params, outputs, options); !s.ok()) return s;
    out.resize(raw_out.size());
    lse.resize(raw_lse.size());
    ConvertElements(raw_out.data(), dtype, out.data(), DType::kF64, elements);
    ConvertElements(raw_lse.data(), lse_dtype, lse.data(), DType::kF64, rows);
    return {};
  }
};

// What the bounds need of one row.
struct RowMagnitudes {
  double max_v = 0;     // sum_j p_j max_d |v_jd|
  double norm_k = 0;    // sum_j p_j |k_j|
  double product = 0;   // sum_j p_j |k_j| max_d |v_jd|
  double squares = 0;   // about sqrt(sum_j (p_j max_d |v_jd|)^2)
  double max_out = 0;   // max_d |out_d|
  double lse = 0;       // 0 where it is not finite
  double scaled_q = 0;  // |scale| |q|
  double score = 0;     // at most: the largest number on the way to a score, in powers of two
};

struct Bounds {
  double out = 0;
  double lse = 0;
};

// g of the header for the dot products over D and for the sums over n keys.
struct Growth {
  double dot;
  double sum;
};

// The two bounds of the header.
Bounds RowBounds(const RowMagnitudes& row, double u, const Growth& growth, double log_n) {
  const double later = kScoreSteps * (std::abs(row.lse) + log_n + 1.0) + growth.sum;
  const double dot = growth.dot * row.scaled_q;
  const double both = row.max_v + row.max_out;
  return {u * (dot * (row.product + row.norm_k * row.max_out) + later * both),
          u * (dot * row.norm_k + later)};
}

// Largest difference where both are finite: what is not finite has rules of its own.
double LargestError(const double* a, const double* b, std::int64_t size) {
  double largest = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (std::isfinite(a[i]) && std::isfinite(b[i])) {
      largest = std::max(largest, std::abs(a[i] - b[i]));
    }
  }
  return largest;
}

// Everything MakeForwardReference has gathered before it derives tolerances.
struct Gathered {
  const AttentionInputs& inputs;
  const AttentionParams& params;
  const Evaluation& truth;  // f64, with the extra columns
  const Evaluation& same;   // the dtype of the inputs
};

RowMagnitudes MagnitudesOf(const Gathered& from, std::int64_t row, const double* q_row) {
  const std::int64_t head_dim = from.inputs.q.shape[3];
  const std::int64_t head_dim_v = from.same.width;
  const double* weighted = from.truth.out.data() + row * from.truth.width;
  const double scale =
      std::abs(from.params.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim))));
  const double norm_q = FiniteNorm(q_row, head_dim);
  const auto finite = [](double x) { return std::isfinite(x) ? x : 0.0; };
  RowMagnitudes magnitudes;
  magnitudes.max_v = finite(weighted[head_dim_v + kMaxV]);
  magnitudes.norm_k = finite(weighted[head_dim_v + kNormK]);
  magnitudes.product = finite(weighted[head_dim_v + kProduct]);
  magnitudes.squares = FiniteNorm(weighted + head_dim_v + kSigned, kNumSigned) /
                       std::sqrt(static_cast<double>(kNumSigned));
  magnitudes.max_out = FiniteMax(weighted, head_dim_v);
  magnitudes.lse = finite(from.truth.lse[static_cast<std::size_t>(row)]);
  magnitudes.scaled_q = scale * norm_q;
  magnitudes.score = kLog2E * std::max(std::max(1.0, scale) * norm_q * magnitudes.norm_k,
                                       std::abs(magnitudes.lse));
  return magnitudes;
}

void DeriveRow(const Gathered& from, std::int64_t row, const double* q_row,
               ForwardReference* reference) {
  const DType dtype = from.inputs.q.dtype;
  const bool wide = dtype == DType::kF64;
  const double u = UnitRoundoff(wide ? DType::kF64 : DType::kF32);
  const auto n = static_cast<double>(std::max<std::int64_t>(from.inputs.k.shape[2], 1));
  const auto d = static_cast<double>(from.inputs.q.shape[3]);
  const double evaluations = wide ? 2.0 : 1.0;  // the truth is as inexact as the result
  const RowMagnitudes magnitudes = MagnitudesOf(from, row, q_row);
  const auto i = static_cast<std::size_t>(row);
  if (!wide && magnitudes.score > std::numeric_limits<float>::max()) {
    reference->out_row_tolerance[i] = std::numeric_limits<double>::infinity();
    reference->lse_row_tolerance[i] = std::numeric_limits<double>::infinity();
    return;
  }

  const Growth always = {d, n};
  const Growth random = {0.5 * std::sqrt(d), 0.5 * std::sqrt(n)};
  const Bounds most = RowBounds(magnitudes, u, always, std::log(n));
  Bounds floor = RowBounds(magnitudes, u, random, std::log(n));
  floor.out = std::min(floor.out, kOutCap * (magnitudes.max_v + magnitudes.max_out));

  if (dtype == DType::kBF16) {
    floor.out += kWeightRounding * UnitRoundoff(dtype) * magnitudes.squares;
    floor.lse += kWeightError;
  }

  const std::int64_t width = from.same.width;
  const double out_error =
      LargestError(from.same.out.data() + row * width, reference->out.data() + row * width, width);
  const double lse_error = LargestError(&from.same.lse[i], &reference->lse[i], 1);
  const DType lse_dtype = wide ? DType::kF64 : DType::kF32;
  const double most_out = evaluations * most.out + RoundingError(dtype, magnitudes.max_out);
  const double most_lse = evaluations * most.lse + RoundingError(lse_dtype, magnitudes.lse);
  reference->out_row_tolerance[i] =
      kOracleFactor * std::min(out_error, most_out) + evaluations * floor.out;
  reference->lse_row_tolerance[i] =
      kOracleFactor * std::min(lse_error, most_lse) + evaluations * floor.lse;
}

void DeriveTolerances(const Gathered& from, ForwardReference* reference) {
  const TensorReader q(from.inputs.q);
  std::vector<double> q_row(static_cast<std::size_t>(q.size(3)));
  reference->out_row_tolerance.resize(reference->lse.size());
  reference->lse_row_tolerance.resize(reference->lse.size());
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    for (std::int64_t h = 0; h < q.size(1); ++h) {
      for (std::int64_t i = 0; i < q.size(2); ++i, ++row) {
        q.Row(b, h, i, q_row.data());
        DeriveRow(from, row, q_row.data(), reference);
      }
    }
  }
}

Status TakeAnswers(const ForwardAnswers& answers, ForwardReference* reference) {
  const std::int64_t* shape = reference->shape;
  const auto fits = [shape](const ConstTensorView& view, int rank) {
    return view.dtype == DType::kF64 && view.rank == rank &&
           std::equal(shape, shape + rank, view.shape);
  };
  if (answers.out.present()) {
    if (!fits(answers.out, 4)) {
      return Status::InvalidArgument("out: the answers must be F64 of shape [B, Hq, Sq, Dv]");
    }
    reference->out = F64Copy(answers.out).values;
  }
  if (answers.lse.present()) {
    if (!fits(answers.lse, 3)) {
      return Status::InvalidArgument("lse: the answers must be F64 of shape [B, Hq, Sq]");
    }
    reference->lse = F64Copy(answers.lse).values;
  }
  return {};
}

}  // namespace

Status MakeForwardReference(const AttentionInputs& inputs, const AttentionParams& params,
                            const ForwardAnswers& answers, int num_threads,
                            ForwardReference* reference) {
  if (inputs.q.rank != 4 || inputs.k.rank != 4 || inputs.v.rank != 4) {
    return Status::InvalidArgument("q, k, v: must have four dimensions");
  }
  Evaluation same;  // first: Attention checks every operand before anything below reads one
  Status status = same.Run(inputs, params, num_threads);
  if (!status.ok()) return status;

  const F64Copy q(inputs.q);
  const F64Copy alibi_slopes(inputs.alibi_slopes);
  const F64Copy bias(inputs.bias);
  const F64Copy sinks(inputs.sinks);
  const KeysAndValues keys(inputs, params);
  AttentionInputs exact = inputs;
  exact.q = q.view;
  exact.k = keys.k_view;
  exact.v = keys.v_view;
  exact.alibi_slopes = alibi_slopes.view;
  exact.bias = bias.view;
  exact.sinks = sinks.view;
  Evaluation truth;
  status = truth.Run(exact, params, num_threads);
  if (!status.ok()) return status;

  ForwardReference result;
  std::copy(inputs.q.shape, inputs.q.shape + 3, result.shape);
  result.shape[3] = same.width;
  result.lse = truth.lse;
  result.out.resize(same.out.size());
  for (std::size_t row = 0; row < result.lse.size(); ++row) {
    const double* from = truth.out.data() + static_cast<std::int64_t>(row) * truth.width;
    std::copy(from, from + same.width,
              result.out.data() + static_cast<std::int64_t>(row) * same.width);
  }
  status = TakeAnswers(answers, &result);
  if (!status.ok()) return status;
  DeriveTolerances({inputs, params, truth, same}, &result);
  *reference = std::move(result);
  return {};
}

}  // namespace flashlane
