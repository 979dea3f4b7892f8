#include "dispatch/tolerance.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dispatch/sequence_values.h"
#include "dispatch/tensor_reader.h"
#include "dispatch/tolerance_rows.h"

namespace flashlane {
namespace {

// k and v up to k_len in f64, v followed by the extra columns; the rest is zero and never read.
struct KeysAndValues {
  std::vector<double> k, v;
  ConstTensorView k_view, v_view;

  KeysAndValues(const AttentionInputs& inputs, const AttentionParams& params) {
    const kernels::SequenceValues k_len =
        SequenceValuesOf(inputs.k_len, params.k_len.value_or(inputs.k.shape[2]));
    const TensorReader k_in(inputs.k);
    const TensorReader v_in(inputs.v);
    const std::int64_t head_dim = k_in.size(3);
    const std::int64_t head_dim_v = v_in.size(3);
    const std::int64_t width = head_dim_v + kNumExtras;
    const std::int64_t rows = k_in.size(0) * k_in.size(1) * k_in.size(2);
    k.resize(static_cast<std::size_t>(rows * head_dim));
    v.resize(static_cast<std::size_t>(rows * width));
    for (std::int64_t b = 0; b < k_in.size(0); ++b) {
      const std::int64_t keys = k_len.At(b);
      for (std::int64_t h = 0; h < k_in.size(1); ++h) {
        for (std::int64_t j = 0; j < keys; ++j) {
          const std::int64_t row = (b * k_in.size(1) + h) * k_in.size(2) + j;
          double* k_row = k.data() + row * head_dim;
          double* v_row = v.data() + row * width;
          k_in.Row(b, h, j, k_row);
          v_in.Row(b, h, j, v_row);
          FillExtras({k_row, head_dim, v_row, head_dim_v}, j);
        }
      }
    }
    k_view = {k.data(), DType::kF64, {k_in.size(0), k_in.size(1), k_in.size(2), head_dim}};
    v_view = {v.data(), DType::kF64, {k_in.size(0), k_in.size(1), k_in.size(2), width}};
  }
};

}  // namespace

Status MakeForwardReference(const AttentionInputs& inputs, const AttentionParams& params,
                            const ForwardAnswers& answers, int num_threads,
                            ForwardReference* reference) {
  if (inputs.q.rank != 4 || inputs.k.rank != 4 || inputs.v.rank != 4) {
    return Status::InvalidArgument("q, k, v: must have four dimensions");
  }
  const auto evaluate = [&](const AttentionInputs& of, Evaluation* evaluation) {
    return evaluation->Run(of.q, of.v.shape[3], num_threads,
                           [&](const AttentionOutputs& outputs, const ExecOptions& options) {
                             return Attention(of, params, outputs, options);
                           });
  };
  Evaluation same;  // first: Attention checks every operand before anything below reads one
  if (Status s = evaluate(inputs, &same); !s.ok()) return s;

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
  if (Status s = evaluate(exact, &truth); !s.ok()) return s;
  return FinishReference({inputs.q, params, inputs.k.shape[2], truth, same}, answers, reference);
}

}  // namespace flashlane
