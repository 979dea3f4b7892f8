// The reference of a paged call. The truth is evaluated from a copy of the live keys and values in
// one block per sequence, so that a mistake in the oracle's use of the table shows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "dispatch/sequence_values.h"
#include "dispatch/tensor_reader.h"
#include "dispatch/tolerance_rows.h"
#include "flashlane/paged.h"

namespace flashlane {
namespace {

// Live keys and values in f64, v followed by the extra columns; the rest is zero and never read.
struct OneBlockEach {
  std::vector<double> k, v;
  std::vector<std::uint32_t> table;
  PagedInputs inputs;  // without q and the terms of the score
  std::int64_t num_keys = 0;

  explicit OneBlockEach(const PagedInputs& from) {
    const std::int64_t batch = from.block_table.shape[0];
    const std::int64_t heads = from.k_cache.shape[2];
    const kernels::SequenceValues context_lens = SequenceValuesOf(from.context_lens, 0);
    for (std::int64_t b = 0; b < batch; ++b) num_keys = std::max(num_keys, context_lens.At(b));
    const std::int64_t block_size = std::max<std::int64_t>(num_keys, 1);
    const std::int64_t head_dim = from.k_cache.shape[3];
    const std::int64_t width = from.v_cache.shape[3] + kNumExtras;
    k.resize(static_cast<std::size_t>(batch * block_size * heads * head_dim));
    v.resize(static_cast<std::size_t>(batch * block_size * heads * width));
    table.resize(static_cast<std::size_t>(batch));
    std::iota(table.begin(), table.end(), 0u);
    inputs.k_cache = {k.data(), DType::kF64, {batch, block_size, heads, head_dim}};
    inputs.v_cache = {v.data(), DType::kF64, {batch, block_size, heads, width}};
    inputs.block_table = {table.data(), DType::kU32, {batch, 1}};
    inputs.context_lens = from.context_lens;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t j = 0; j < context_lens.At(b); ++j) CopyToken(from, b, j);
    }
  }

 private:
  void CopyToken(const PagedInputs& from, std::int64_t b, std::int64_t j) {
    const TensorReader k_in(from.k_cache);
    const TensorReader v_in(from.v_cache);
    const std::int64_t block_size = from.k_cache.shape[1];
    const ConstTensorView& entries = from.block_table;
    const std::int64_t block = static_cast<const std::uint32_t*>(
        entries.data)[b * entries.strides[0] + j / block_size * entries.strides[1]];
    for (std::int64_t h = 0; h < k_in.size(2); ++h) {
      const std::int64_t row = (b * inputs.k_cache.shape[1] + j) * k_in.size(2) + h;
      double* k_row = k.data() + row * k_in.size(3);
      double* v_row = v.data() + row * inputs.v_cache.shape[3];
      k_in.Row(block, j % block_size, h, k_row);
      v_in.Row(block, j % block_size, h, v_row);
      FillExtras({k_row, k_in.size(3), v_row, v_in.size(3)}, j);
    }
  }
};

}  // namespace

Status MakePagedReference(const PagedInputs& inputs, const AttentionParams& params,
                          const ForwardAnswers& answers, int num_threads,
                          ForwardReference* reference) {
  if (inputs.cu_seqlens_q.present()) {
    return Status::Unsupported("cu_seqlens_q: a reference is made of queries [B, Hq, Sq, D] only");
  }
  if (inputs.q.rank != 4 || inputs.k_cache.rank != 4 || inputs.v_cache.rank != 4) {
    return Status::InvalidArgument("q, k_cache, v_cache: must have four dimensions");
  }
  const auto evaluate = [&](const PagedInputs& of, Evaluation* evaluation) {
    return evaluation->Run(of.q, of.v_cache.shape[3], num_threads,
                           [&](const AttentionOutputs& outputs, const ExecOptions& options) {
                             return AttentionPaged(of, params, outputs, options);
                           });
  };
  Evaluation same;  // first: AttentionPaged checks every operand before anything below reads one
  if (Status s = evaluate(inputs, &same); !s.ok()) return s;

  const F64Copy q(inputs.q);
  const F64Copy alibi_slopes(inputs.alibi_slopes);
  const F64Copy sinks(inputs.sinks);
  OneBlockEach copy(inputs);
  PagedInputs exact = copy.inputs;
  exact.q = q.view;
  exact.alibi_slopes = alibi_slopes.view;
  exact.sinks = sinks.view;
  exact.mask = inputs.mask;
  Evaluation truth;
  if (Status s = evaluate(exact, &truth); !s.ok()) return s;
  return FinishReference({inputs.q, params, copy.num_keys, truth, same}, answers, reference);
}

}  // namespace flashlane
