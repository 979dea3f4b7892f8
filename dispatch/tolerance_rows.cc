#include "dispatch/tolerance_rows.h"

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

RowMagnitudes MagnitudesOf(const Gathered& from, std::int64_t row, const double* q_row) {
  const std::int64_t head_dim = from.q.shape[3];
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
  const DType dtype = from.q.dtype;
  const bool wide = dtype == DType::kF64;
  const double u = UnitRoundoff(wide ? DType::kF64 : DType::kF32);
  const auto n = static_cast<double>(std::max<std::int64_t>(from.num_keys, 1));
  const auto d = static_cast<double>(from.q.shape[3]);
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
  const TensorReader q(from.q);
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

// SplitMix64's finalizer.
double SignOf(std::int64_t key, std::int64_t column) {
  std::uint64_t z = (static_cast<std::uint64_t>(key) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return ((z >> 31 ^ z) >> column & 1) != 0 ? 1.0 : -1.0;
}

double LargestError(const double* a, const double* b, std::int64_t size) {
  double largest = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (std::isfinite(a[i]) && std::isfinite(b[i])) {
      largest = std::max(largest, std::abs(a[i] - b[i]));
    }
  }
  return largest;
}

void FillExtras(const KeyRows& rows, std::int64_t j) {
  double* extras = rows.v + rows.head_dim_v;
  extras[kMaxV] = FiniteMax(rows.v, rows.head_dim_v);
  extras[kNormK] = FiniteNorm(rows.k, rows.head_dim);
  extras[kProduct] = extras[kMaxV] * extras[kNormK];
  for (std::int64_t c = 0; c < kNumSigned; ++c) {
    extras[kSigned + c] = extras[kMaxV] * SignOf(j, c);
  }
}

Status Evaluation::Run(const ConstTensorView& q, std::int64_t head_dim_v, int num_threads,
                       const Attend& attend) {
  const DType dtype = q.dtype;
  const bool wide = dtype == DType::kF64;
  width = head_dim_v;
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
  if (Status s = attend(outputs, options); !s.ok()) return s;
  out.resize(raw_out.size());
  lse.resize(raw_lse.size());
  ConvertElements(raw_out.data(), dtype, out.data(), DType::kF64, elements);
  ConvertElements(raw_lse.data(), lse_dtype, lse.data(), DType::kF64, rows);
  return {};
}

Status FinishReference(const Gathered& from, const ForwardAnswers& answers,
                       ForwardReference* reference) {
  ForwardReference result;
  std::copy(from.q.shape, from.q.shape + 3, result.shape);
  result.shape[3] = from.same.width;
  result.lse = from.truth.lse;
  result.out.resize(from.same.out.size());
  for (std::size_t row = 0; row < result.lse.size(); ++row) {
    const double* wide = from.truth.out.data() + static_cast<std::int64_t>(row) * from.truth.width;
    std::copy(wide, wide + from.same.width,
              result.out.data() + static_cast<std::int64_t>(row) * from.same.width);
  }
  if (Status s = TakeAnswers(answers, &result); !s.ok()) return s;
  DeriveTolerances(from, &result);
  *reference = std::move(result);
  return {};
}

}  // namespace flashlane
