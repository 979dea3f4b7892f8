#include "dispatch/flat/call.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace flashlane::flat {
namespace {

uint64_t Unsigned(int64_t size) { return static_cast<uint64_t>(std::max<int64_t>(size, 0)); }

AttnStatus CheckBuffer(const Needed& buffer) {
  if (buffer.size < 0) return ATTN_SHORT_BUFFER;
  if (buffer.elements == 0) return ATTN_OK;
  if (buffer.data == nullptr) return ATTN_NULL_BUFFER;
  if (Unsigned(buffer.size) < buffer.elements) return ATTN_SHORT_BUFFER;
  const auto address = reinterpret_cast<uintptr_t>(buffer.data);
  return address % buffer.element_bytes == 0 ? ATTN_OK : ATTN_MISALIGNED_BUFFER;
}

bool Overlap(const Needed& a, const Needed& b) {
  if (a.elements == 0 || b.elements == 0) return false;
  const auto begin_a = reinterpret_cast<uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<uintptr_t>(b.data);
  return begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

}  // namespace

AttnStatus CheckBuffers(std::initializer_list<Needed> inputs, std::initializer_list<Needed> outputs,
                        const void* in_place) {
  for (const auto& buffers : {inputs, outputs}) {
    for (const Needed& buffer : buffers) {
      if (const AttnStatus s = CheckBuffer(buffer); s != ATTN_OK) return s;
    }
  }
  for (const Needed* out = outputs.begin(); out != outputs.end(); ++out) {
    for (const Needed& in : inputs) {
      const bool same = in_place != nullptr && in.data == in_place && out->data == in_place &&
                        in.bytes() == out->bytes();
      if (!same && Overlap(*out, in)) return ATTN_BUFFER_OVERLAP;
    }
    for (const Needed* other = outputs.begin(); other != out; ++other) {
      if (Overlap(*out, *other)) return ATTN_BUFFER_OVERLAP;
    }
  }
  return ATTN_OK;
}

uint64_t BytesOf(std::initializer_list<Needed> buffers) {
  uint64_t bytes = 0;
  for (const Needed& buffer : buffers) bytes = SaturatingSum(bytes, buffer.bytes());
  return bytes;
}

Elements::Elements(const FlatDims& dims)
    : q(SaturatingProduct(SaturatingProduct(Unsigned(dims.n_tok_q), Unsigned(dims.h_q)),
                          Unsigned(dims.head_dim))),
      kv(SaturatingProduct(SaturatingProduct(Unsigned(dims.n_tok_k), Unsigned(dims.h_kv)),
                           Unsigned(dims.head_dim))),
      rows(SaturatingProduct(Unsigned(dims.n_tok_q), Unsigned(dims.h_q))),
      pairs(SaturatingProduct(Unsigned(dims.n_tok_q), Unsigned(dims.n_tok_k))) {}

bool SizeFits(uint64_t elements) {
  return SaturatingProduct(elements, sizeof(double)) < (uint64_t{1} << 62);
}

AttnStatus CheckDims(const FlatDims& dims) {
  return attn_dims_check(1, dims.h_q, dims.h_kv, dims.n_tok_q, dims.n_tok_k, dims.head_dim);
}

AttnStatus CheckTokens(int64_t n_tok_q, int64_t n_tok_k) {
  if (n_tok_q < 0) return ATTN_BAD_N_TOK_Q;
  if (n_tok_k < 0) return ATTN_BAD_N_TOK_K;
  const bool fits = SizeFits(SaturatingProduct(Unsigned(n_tok_q), Unsigned(n_tok_k)));
  return fits ? ATTN_OK : ATTN_SIZE_OVERFLOW;
}

uint64_t VisiblePairs(const FlatDims& dims, bool causal) {
  const uint64_t queries = Unsigned(dims.n_tok_q), keys = Unsigned(dims.n_tok_k);
  if (!causal) return SaturatingProduct(queries, keys);
  // 1 + 2 + ... + m, and all keys for the queries from there on. One of m, m + 1 is even.
  const uint64_t m = std::min(queries, keys);
  const uint64_t triangle =
      m % 2 == 0 ? SaturatingProduct(m / 2, m + 1) : SaturatingProduct(m, (m + 1) / 2);
  return SaturatingSum(triangle, SaturatingProduct(queries - m, keys));
}

uint64_t ForwardFlopsOf(const FlatDims& dims, bool causal) {
  const uint64_t per_pair =
      SaturatingProduct(4, SaturatingProduct(Unsigned(dims.h_q), Unsigned(dims.head_dim)));
  return SaturatingProduct(VisiblePairs(dims, causal), per_pair);
}

ForwardBuffers BuffersOf(const FlatInputs& inputs, const FlatDims& dims,
                         const FlatOutputs& outputs) {
  const Elements elements(dims);
  return {
      Need(inputs.q, elements.q),    Need(inputs.k, elements.kv),
      Need(inputs.v, elements.kv),   Need(inputs.bias, inputs.bias.size == 0 ? 0 : elements.pairs),
      Need(outputs.out, elements.q), NeedIfPresent(outputs.lse, elements.rows)};
}

AttnStatus CheckSizesAndScale(const FlatInputs& inputs, const FlatDims& dims,
                              const FlatParams& params) {
  if (const AttnStatus s = CheckDims(dims); s != ATTN_OK) return s;
  if (inputs.bias.size != 0) {
    if (const AttnStatus s = CheckTokens(dims.n_tok_q, dims.n_tok_k); s != ATTN_OK) return s;
  }
  return attn_scale_check(params.scale);
}

AttnStatus CheckForwardCall(const FlatInputs& inputs, const FlatDims& dims,
                            const FlatParams& params, const FlatOutputs& outputs,
                            const FlatOptions& options, uint64_t own_bytes) {
  if (const AttnStatus s = CheckSizesAndScale(inputs, dims, params); s != ATTN_OK) return s;
  const ForwardBuffers need = BuffersOf(inputs, dims, outputs);
  const uint64_t bytes =
      SaturatingSum(own_bytes, BytesOf({need.q, need.k, need.v, need.bias, need.out, need.lse}));
  const AttnStatus s = attn_budget_check(ForwardFlopsOf(dims, params.causal), bytes, options);
  if (s != ATTN_OK) return s;
  return CheckBuffers({need.q, need.k, need.v, need.bias}, {need.out, need.lse});
}

AttnStatus CheckInputsOnly(const FlatInputs& inputs, const FlatDims& dims,
                           const FlatOptions& options, uint64_t flops, uint64_t own_bytes) {
  const ForwardBuffers need = BuffersOf(inputs, dims);
  const uint64_t bytes = SaturatingSum(own_bytes, BytesOf({need.q, need.k, need.v, need.bias}));
  if (const AttnStatus s = attn_budget_check(flops, bytes, options); s != ATTN_OK) return s;
  return CheckBuffers({need.q, need.k, need.v, need.bias}, {});
}

AttentionInputs ViewsOf(const FlatInputs& inputs, const FlatDims& dims) {
  AttentionInputs views;
  views.q = ConstTensorView::FromBshd(inputs.q.data, DType::kF64, 1, dims.n_tok_q, dims.h_q,
                                      dims.head_dim);
  views.k = ConstTensorView::FromBshd(inputs.k.data, DType::kF64, 1, dims.n_tok_k, dims.h_kv,
                                      dims.head_dim);
  views.v = ConstTensorView::FromBshd(inputs.v.data, DType::kF64, 1, dims.n_tok_k, dims.h_kv,
                                      dims.head_dim);
  if (inputs.bias.size != 0) {
    views.bias = ConstTensorView(inputs.bias.data, DType::kF64, {1, 1, dims.n_tok_q, dims.n_tok_k});
  }
  return views;
}

AttentionOutputs ViewsOf(const FlatOutputs& outputs, const FlatDims& dims) {
  AttentionOutputs views;
  views.out =
      TensorView::FromBshd(outputs.out.data, DType::kF64, 1, dims.n_tok_q, dims.h_q, dims.head_dim);
  if (outputs.lse.present()) {
    views.lse = TensorView(outputs.lse.data, DType::kF64, {1, dims.h_q, dims.n_tok_q});
  }
  return views;
}

AttentionParams ParamsOf(const FlatParams& params) {
  AttentionParams core;
  core.softmax_scale = params.scale;
  core.causal = params.causal;
  return core;
}

ExecOptions CoreOptions(const FlatOptions& options, Kernel kernel) {
  ExecOptions core;
  core.kernel = kernel;
  core.num_threads = options.num_threads;
  return core;
}

AttnStatus FromCore(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ATTN_OK;
    case StatusCode::kInvalidArgument:
      return ATTN_BAD_ENVIRONMENT;
    case StatusCode::kUnsupported:
      return ATTN_UNSUPPORTED;
    case StatusCode::kBudgetExceeded:
    case StatusCode::kOutOfMemory:
      break;
  }
  return ATTN_OUT_OF_MEMORY;
}

AttnStatus RunForward(const FlatInputs& inputs, const FlatDims& dims, const FlatParams& params,
                      const FlatOutputs& outputs, const ExecOptions& options) {
  return FromCore(
      Attention(ViewsOf(inputs, dims), ParamsOf(params), ViewsOf(outputs, dims), options));
}

}  // namespace flashlane::flat
