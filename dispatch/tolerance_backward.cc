// The reference of a backward call: evaluations by the oracles in f64, with the columns of
// tolerance_gradients.h, and in the dtype of the inputs; and what comes of them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "dispatch/dtype.h"
#include "dispatch/sequence_values.h"
#include "dispatch/tensor_reader.h"
#include "dispatch/tolerance.h"
#include "dispatch/tolerance_gradients.h"

namespace flashlane {
namespace {

constexpr double kOracleFactor = 3.0;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What weights and products that leave the normal numbers may lose.
double Underflow(DType dtype) { return dtype == DType::kF64 ? 0x1p-1000 : 0x1p-110; }

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

GradientCall CallOf(const BackwardInputs& inputs, const AttentionParams& params) {
  const ConstTensorView& q = inputs.forward.q;
  const ConstTensorView& v = inputs.forward.v;
  const double scale =
      params.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(q.shape[3])));
  return {q.shape[0], q.shape[1], v.shape[1], q.shape[2], v.shape[2],
          q.shape[3], v.shape[3], q.dtype,    scale,      params.softcap.value_or(0.0)};
}

// A [B, heads, rows, width + extra] tensor of f64, the first columns from a view.
struct Widened {
  std::vector<double> values;
  std::int64_t batch, heads, rows, width, stride;

  Widened(const ConstTensorView& from, std::int64_t extra)
      : batch(from.shape[0]),
        heads(from.shape[1]),
        rows(from.shape[2]),
        width(from.shape[3]),
        stride(width + extra) {
    values.resize(Index(batch * heads * rows * stride));
  }
  double* Row(std::int64_t row) { return values.data() + row * stride; }
  const double* Row(std::int64_t row) const { return values.data() + row * stride; }
  ConstTensorView View() const {
    return {values.data(), DType::kF64, {batch, heads, rows, stride}};
  }
};

// All operands in f64 with their columns; of keys past k_len nothing is read, they are zero.
struct ExactOperands {
  GradientCall call;
  Widened q, k, v_forward, v_backward, dout;
  F64Copy alibi_slopes, bias, sinks;
  AttentionInputs forward;  // with v_forward

  ExactOperands(const BackwardInputs& inputs, const AttentionParams& params)
      : call(CallOf(inputs, params)),
        q(inputs.forward.q, kNumProductColumns),
        k(inputs.forward.k, kNumProductColumns),
        v_forward(inputs.forward.v, kNumKeyColumns),
        v_backward(inputs.forward.v, kNumRowColumns),
        dout(inputs.dout, kNumRowColumns),
        alibi_slopes(inputs.forward.alibi_slopes),
        bias(inputs.forward.bias),
        sinks(inputs.forward.sinks),
        forward(inputs.forward) {
    CopyQueries(inputs);
    CopyKeys(inputs, params);
    forward.q = q.View();
    forward.k = k.View();
    forward.v = v_forward.View();
    forward.alibi_slopes = alibi_slopes.view;
    forward.bias = bias.view;
    forward.sinks = sinks.view;
  }

  BackwardInputs Backward() const {
    BackwardInputs backward;
    backward.forward = forward;
    backward.forward.v = v_backward.View();
    backward.dout = dout.View();
    return backward;
  }

 private:
  void CopyQueries(const BackwardInputs& inputs) {
    const TensorReader q_in(inputs.forward.q);
    const TensorReader dout_in(inputs.dout);
    for (std::int64_t row = 0; row < call.batch * call.num_heads * call.seqlen_q; ++row) {
      const std::int64_t i = row % call.seqlen_q;
      const std::int64_t h = row / call.seqlen_q % call.num_heads;
      const std::int64_t b = row / call.seqlen_q / call.num_heads;
      q_in.Row(b, h, i, q.Row(row));
      dout_in.Row(b, h, i, dout.Row(row));
      const double max_q = FiniteMax(q.Row(row), call.head_dim);
      double* columns = q.Row(row) + call.head_dim + kNumSigned;
      for (std::int64_t c = 0; c < kNumSigned; ++c) columns[c] = SignOf(row, c) * max_q;
    }
  }

  void CopyKeys(const BackwardInputs& inputs, const AttentionParams& params) {
    const kernels::SequenceValues k_len =
        SequenceValuesOf(inputs.forward.k_len, params.k_len.value_or(call.seqlen_k));
    const TensorReader k_in(inputs.forward.k);
    const TensorReader v_in(inputs.forward.v);
    for (std::int64_t b = 0; b < call.batch; ++b) {
      for (std::int64_t h = 0; h < call.num_kv_heads; ++h) {
        for (std::int64_t j = 0; j < k_len.At(b); ++j) {
          const std::int64_t row = (b * call.num_kv_heads + h) * call.seqlen_k + j;
          k_in.Row(b, h, j, k.Row(row));
          v_in.Row(b, h, j, v_forward.Row(row));
          v_in.Row(b, h, j, v_backward.Row(row));
          FillKeyColumns(row, j);
        }
      }
    }
  }

  void FillKeyColumns(std::int64_t row, std::int64_t j) {
    double* columns = v_forward.Row(row) + call.head_dim_v;
    const double max_k = FiniteMax(k.Row(row), call.head_dim);
    const double norm_v = FiniteNorm(v_forward.Row(row), call.head_dim_v);
    const double max_v = FiniteMax(v_forward.Row(row), call.head_dim_v);
    columns[kColOne] = 1.0;
    columns[kColMaxK] = max_k;
    columns[kColNormK] = FiniteNorm(k.Row(row), call.head_dim);
    columns[kColNormV] = norm_v;
    columns[kColMaxKNormV] = max_k * norm_v;
    double* products = k.Row(row) + call.head_dim;
    for (std::int64_t c = 0; c < kNumSigned; ++c) {
      columns[kColSignedOne + c] = SignOf(j, c);
      columns[kColSignedNormV + c] = SignOf(j, c) * norm_v;
      columns[kColSignedMaxV + c] = SignOf(j, c) * max_v;
      products[c] = SignOf(j, c) * max_k;
    }
  }
};

// Gradients by the oracle, accumulated in f32, or in f64 where the inputs are F64.
struct GradientEvaluation {
  std::vector<double> dq, dk, dv, dbias, dsinks;

  Status Run(const BackwardInputs& inputs, const AttentionParams& params, int num_threads) {
    std::vector<double> raw[5];
    std::vector<double>* results[] = {&dq, &dk, &dv, &dbias, &dsinks};
    const AttentionInputs& in = inputs.forward;
    const ConstTensorView* likes[] = {&in.q, &in.k, &in.v, &in.bias, &in.sinks};
    BackwardOutputs outputs;
    TensorView* views[] = {&outputs.dq, &outputs.dk, &outputs.dv, &outputs.dbias, &outputs.dsinks};
    for (int g = 0; g < 5; ++g) {
      if (!likes[g]->present()) continue;
      raw[g].resize(Index(NumElements(*likes[g])) + 1);
      *views[g] = TensorView(raw[g].data(), likes[g]->dtype, likes[g]->rank, likes[g]->shape);
    }
    ExecOptions options;
    options.kernel = Kernel::kNaive;
    options.num_threads = num_threads;
    options.accumulator = in.q.dtype == DType::kF64 ? Accumulator::kF64 : Accumulator::kF32;
    if (Status s = AttentionBackward(inputs, params, outputs, options); !s.ok()) return s;
    for (int g = 0; g < 5; ++g) {
      if (!likes[g]->present()) continue;
      results[g]->resize(raw[g].size() - 1);
      ConvertElements(raw[g].data(), likes[g]->dtype, results[g]->data(), DType::kF64,
                      static_cast<std::int64_t>(raw[g].size()) - 1);
    }
    return {};
  }
};

GradientReference MakeGradient(const char* name, const ConstTensorView& like) {
  GradientReference gradient;
  gradient.name = name;
  gradient.rank = like.rank;
  std::copy(like.shape, like.shape + kMaxRank, gradient.shape);
  return gradient;
}

// Takes the first `width` of every `stride` values.
std::vector<double> FirstColumns(const std::vector<double>& values, std::int64_t width,
                                 std::int64_t stride) {
  std::vector<double> first;
  for (std::size_t at = 0; at < values.size(); at += Index(stride)) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(at);
    first.insert(first.end(), begin, begin + width);
  }
  return first;
}

Status TakeAnswer(const ConstTensorView& answer, GradientReference* gradient) {
  if (!answer.present()) return {};
  if (answer.dtype != DType::kF64 || answer.rank != gradient->rank ||
      !std::equal(gradient->shape, gradient->shape + gradient->rank, answer.shape)) {
    return Status::InvalidArgument(std::string(gradient->name) +
                                   ": the answers must be F64 of its operand's shape");
  }
  gradient->values = F64Copy(answer).values;
  return {};
}

// Derives tolerances from the truth and the evaluation in the dtype of the inputs.
class Derivation {
 public:
  Derivation(const ExactOperands& exact, const std::vector<QueryRowTerms>& terms,
             const GradientEvaluation& truth, const GradientEvaluation& same)
      : exact_(exact), call_(exact.call), terms_(terms), truth_(truth), same_(same) {}

  void Dq(GradientReference* dq) const {
    for (std::int64_t row = 0; row < call_.batch * call_.num_heads * call_.seqlen_q; ++row) {
      const double* wide = truth_.dq.data() + row * exact_.q.stride;
      const QueryRowTerms& terms = terms_[Index(row)];
      const double bound =
          DqBound(call_, terms, wide + call_.head_dim, FiniteMax(wide, call_.head_dim));
      Add(dq, row, call_.head_dim, same_.dq, terms.judged ? bound : kInfinity);
    }
  }

  void Keys(GradientReference* dk, GradientReference* dv) const {
    for (std::int64_t row = 0; row < call_.batch * call_.num_kv_heads * call_.seqlen_k; ++row) {
      const KeyRowInputs key = {
          exact_.k.Row(row), exact_.v_forward.Row(row),
          truth_.dk.data() + row * exact_.k.stride + call_.head_dim,
          truth_.dv.data() + row * exact_.v_backward.stride + call_.head_dim_v};
      const bool judged = HeadIsJudged(row / call_.seqlen_k);
      Add(dk, row, call_.head_dim, same_.dk, judged ? DkBound(call_, key) : kInfinity);
      Add(dv, row, call_.head_dim_v, same_.dv, judged ? DvBound(call_, key) : kInfinity);
    }
  }

  void Dbias(GradientReference* dbias) const {
    const std::int64_t* s = dbias->shape;
    for (std::int64_t row = 0; row < s[0] * s[1] * s[2]; ++row) {
      const std::int64_t at[] = {row / s[2] / s[1], row / s[2] % s[1], row % s[2]};
      Shares shares;
      for (std::int64_t query = 0; query < std::ssize(terms_); ++query) {
        const std::int64_t of[] = {query / call_.seqlen_q / call_.num_heads,
                                   query / call_.seqlen_q % call_.num_heads,
                                   query % call_.seqlen_q};
        bool counts = true;
        for (int d = 0; d < 3; ++d) counts = counts && (s[d] == 1 || of[d] == at[d]);
        if (counts) shares.Add(terms_[Index(query)], DbiasBound(terms_[Index(query)], s[3] != 1));
      }
      Add(dbias, row, s[3], same_.dbias, shares.Bound(call_.dtype));
    }
  }

  void Dsinks(GradientReference* dsinks) const {
    for (std::int64_t h = 0; h < call_.num_heads; ++h) {
      Shares shares;
      for (std::int64_t query = 0; query < std::ssize(terms_); ++query) {
        if (query / call_.seqlen_q % call_.num_heads != h) continue;
        shares.Add(terms_[Index(query)], DsinksBound(terms_[Index(query)]));
      }
      Add(dsinks, h, 1, same_.dsinks, shares.Bound(call_.dtype));
    }
  }

 private:
  // Of the query rows that are summed: their errors are independent, but for the rounding of out,
  // which rows that are nearly the same have in common.
  struct Shares {
    double sum = 0, squares = 0, largest = 0;
    bool judged = true;
    void Add(const QueryRowTerms& terms, double bound) {
      sum += bound;
      squares += bound * bound;
      largest = std::max(largest, bound);
      judged = judged && terms.judged;
    }
    double Bound(DType dtype) const {
      if (!judged) return kInfinity;
      return IsHalf(dtype) ? sum : largest + 2 * std::sqrt(squares);
    }
  };

  bool HeadIsJudged(std::int64_t kv_head) const {
    const std::int64_t rows = call_.num_heads / call_.num_kv_heads * call_.seqlen_q;
    const auto begin = terms_.begin() + static_cast<std::ptrdiff_t>(kv_head * rows);
    return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(rows),
                       [](const QueryRowTerms& terms) { return terms.judged; });
  }

  void Add(GradientReference* gradient, std::int64_t row, std::int64_t width,
           const std::vector<double>& same, double bound) const {
    const double* values = gradient->values.data() + row * width;
    const double error = LargestError(same.data() + row * width, values, width);
    // A sum of n terms may be off by 2 sqrt(n) times as much as with roundings at random, of which
    // the bound counts half. Bounds of two-byte types hold roundings that the oracle has not.
    const std::int64_t longest =
        std::max({call_.head_dim, call_.head_dim_v, call_.seqlen_k,
                  call_.seqlen_q * (call_.num_heads / call_.num_kv_heads)});
    const double growth = IsHalf(call_.dtype) ? 2 : 4 * std::sqrt(static_cast<double>(longest));
    const double most = growth * bound + RoundingError(call_.dtype, FiniteMax(values, width));
    const double evaluations = call_.dtype == DType::kF64 ? 2.0 : 1.0;
    const bool nothing =
        bound == 0 && std::all_of(values, values + width, [](double x) { return x == 0; });
    gradient->row_tolerance.push_back(nothing ? 0.0
                                              : kOracleFactor * std::min(error, most) +
                                                    evaluations * bound + Underflow(call_.dtype));
  }

  const ExactOperands& exact_;
  const GradientCall& call_;
  const std::vector<QueryRowTerms>& terms_;
  const GradientEvaluation& truth_;
  const GradientEvaluation& same_;
};

// The terms of all query rows; fills the columns behind dout.
Status GatherTerms(const AttentionParams& params, int num_threads, ExactOperands* exact,
                   std::vector<QueryRowTerms>* terms) {
  const GradientCall& call = exact->call;
  const std::int64_t width = exact->v_forward.stride;
  Evaluation forward;
  const auto attend = [&](const AttentionOutputs& outputs, const ExecOptions& options) {
    return Attention(exact->forward, params, outputs, options);
  };
  if (Status s = forward.Run(exact->forward.q, width, num_threads, attend); !s.ok()) return s;
  for (std::int64_t row = 0; row < std::ssize(forward.lse); ++row) {
    const std::int64_t h = row / call.seqlen_q % call.num_heads;
    const double sink = exact->sinks.values.empty() ? -kInfinity : exact->sinks.values[Index(h)];
    terms->push_back(
        TermsOf(call, {exact->q.Row(row), exact->dout.Row(row), forward.out.data() + row * width,
                       forward.lse[Index(row)], sink}));
    FillRowColumns(call, terms->back(), row, exact->dout.Row(row) + call.head_dim_v);
  }
  return {};
}

}  // namespace

Status MakeBackwardReference(const BackwardInputs& inputs, const AttentionParams& params,
                             const BackwardAnswers& answers, int num_threads,
                             BackwardReference* reference) {
  for (const ConstTensorView* view :
       {&inputs.forward.q, &inputs.forward.k, &inputs.forward.v, &inputs.dout}) {
    if (view->rank != 4) {
      return Status::InvalidArgument("q, k, v, dout: must have four dimensions");
    }
  }
  GradientEvaluation same;  // first: it checks every operand before anything below reads one
  if (Status s = same.Run(inputs, params, num_threads); !s.ok()) return s;
  ExactOperands exact(inputs, params);
  AttentionParams scaled = params;
  scaled.softmax_scale = exact.call.scale;
  std::vector<QueryRowTerms> terms;
  if (Status s = GatherTerms(scaled, num_threads, &exact, &terms); !s.ok()) return s;
  GradientEvaluation truth;
  if (Status s = truth.Run(exact.Backward(), scaled, num_threads); !s.ok()) return s;

  BackwardReference result;
  const AttentionInputs& in = inputs.forward;
  result.dq = MakeGradient("dq", in.q);
  result.dk = MakeGradient("dk", in.k);
  result.dv = MakeGradient("dv", in.v);
  result.dq.values = FirstColumns(truth.dq, exact.call.head_dim, exact.q.stride);
  result.dk.values = FirstColumns(truth.dk, exact.call.head_dim, exact.k.stride);
  result.dv.values = FirstColumns(truth.dv, exact.call.head_dim_v, exact.v_backward.stride);
  if (Status s = TakeAnswer(answers.dq, &result.dq); !s.ok()) return s;
  if (Status s = TakeAnswer(answers.dk, &result.dk); !s.ok()) return s;
  if (Status s = TakeAnswer(answers.dv, &result.dv); !s.ok()) return s;
  const Derivation derive(exact, terms, truth, same);
  derive.Dq(&result.dq);
  derive.Keys(&result.dk, &result.dv);
  if (in.bias.present()) {
    result.dbias = MakeGradient("dbias", in.bias);
    result.dbias.values = truth.dbias;
    derive.Dbias(&result.dbias);
  }
  if (in.sinks.present()) {
    result.dsinks = MakeGradient("dsinks", in.sinks);
    result.dsinks.values = truth.dsinks;
    derive.Dsinks(&result.dsinks);
  }
  *reference = std::move(result);
  return {};
}

}  // namespace flashlane
