#include "bench/operands.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "dispatch/contract.h"
#include "dispatch/cost.h"
#include "dispatch/dtype.h"

namespace flashlane::bench {
namespace {

// Blocks of all sequences in an order that no prefetcher guesses.
Tensor ShuffledTable(int64_t batch, int64_t max_blocks) {
  std::vector<uint32_t> blocks(static_cast<size_t>(batch * max_blocks));
  std::iota(blocks.begin(), blocks.end(), 0u);
  Random random;
  for (size_t i = blocks.size() - 1; i > 0; --i) {
    const float place = (random.Next() + 1.0f) * 0.5f * static_cast<float>(i);
    std::swap(blocks[i], blocks[std::min(static_cast<size_t>(place), i)]);
  }
  Tensor table(DType::kU32, {batch, max_blocks}, nullptr);
  std::copy(blocks.begin(), blocks.end(), static_cast<uint32_t*>(table.view.data));
  return table;
}

}  // namespace

Tensor::Tensor(DType dtype, std::initializer_list<int64_t> shape, Random* random)
    : view(nullptr, dtype, shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  bytes.resize(count * DTypeSize(dtype));
  view.data = bytes.data();
  if (random == nullptr) return;
  // Piece by piece: a cache of f64 takes a gigabyte.
  std::vector<float> values(std::min<size_t>(count, size_t{1} << 16));
  for (size_t at = 0; at < count; at += values.size()) {
    const size_t size = std::min(values.size(), count - at);
    for (size_t i = 0; i < size; ++i) values[i] = random->Next();
    ConvertElements(values.data(), DType::kF32, bytes.data() + at * DTypeSize(dtype), dtype,
                    static_cast<int64_t>(size));
  }
}

Tensor Tensor::Mask(std::initializer_list<int64_t> shape, Random* random) {
  const Tensor numbers(DType::kF32, shape, random);
  const float* values = static_cast<const float*>(numbers.view.data);
  Tensor mask(DType::kBool, shape, nullptr);
  for (size_t i = 0; i < mask.bytes.size(); ++i) {
    // The first quartile of the numbers above.
    mask.bytes[i] = std::byte{values[i] > -0.2f};
  }
  return mask;
}

Operands::Operands(const Shape& s, DType dtype, bool is_paged)
    : q(dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim}, &random),
      k(dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim}, &random),
      v(dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim_v}, &random),
      out(dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim_v}, nullptr),
      paged(is_paged) {
  inputs.q = q.view;
  inputs.k = k.view;
  inputs.v = v.view;
  outputs.out = out.view;
  if (s.decodes) {
    inputs.k = ConstTensorView::FromBshd(k.bytes.data(), dtype, s.batch, s.seqlen_k, s.num_kv_heads,
                                         s.head_dim);
    inputs.v = ConstTensorView::FromBshd(v.bytes.data(), dtype, s.batch, s.seqlen_k, s.num_kv_heads,
                                         s.head_dim_v);
  }
  if (paged) {
    const int64_t max_blocks = s.seqlen_k / kBenchBlockSize;
    block_table = ShuffledTable(s.batch, max_blocks);
    context_lens = Tensor(DType::kU32, {s.batch}, nullptr);
    std::fill_n(static_cast<uint32_t*>(context_lens.view.data), s.batch,
                static_cast<uint32_t>(s.seqlen_k));
    const int64_t blocks = s.batch * max_blocks;
    paged_inputs.q = q.view;
    paged_inputs.k_cache = ConstTensorView(k.bytes.data(), dtype,
                                           {blocks, kBenchBlockSize, s.num_kv_heads, s.head_dim});
    paged_inputs.v_cache = ConstTensorView(v.bytes.data(), dtype,
                                           {blocks, kBenchBlockSize, s.num_kv_heads, s.head_dim_v});
    paged_inputs.block_table = block_table.view;
    paged_inputs.context_lens = context_lens.view;
  }
  if ((s.extras & kBias) != 0) {
    bias = Tensor(DType::kF32, {1, 1, s.seqlen_q, s.seqlen_k}, &random);
    inputs.bias = bias.view;
  }
  if ((s.extras & (kMask | kPaddingMask)) != 0) {
    mask = (s.extras & kMask) != 0 ? Tensor::Mask({1, 1, s.seqlen_q, s.seqlen_k}, &random)
                                   : Tensor::Mask({s.batch, 1, 1, s.seqlen_k}, &random);
    inputs.mask = mask.view;
  }
  if ((s.extras & kAlibi) != 0) {
    slopes = Tensor(DType::kF32, {s.num_heads}, &random);
    inputs.alibi_slopes = slopes.view;
  }
  if (s.backward) {
    const DType lse_dtype = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    lse = Tensor(lse_dtype, {s.batch, s.num_heads, s.seqlen_q}, nullptr);
    dout = Tensor(dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim_v}, &random);
    dq = Tensor(dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim}, nullptr);
    dk = Tensor(dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim}, nullptr);
    dv = Tensor(dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim_v}, nullptr);
    outputs.lse = lse.view;
    backward_inputs.forward = inputs;
    backward_inputs.dout = dout.view;
    backward_inputs.out = out.view;
    backward_inputs.lse = lse.view;
    gradients.dq = dq.view;
    gradients.dk = dk.view;
    gradients.dv = dv.view;
  }
}

Status Operands::Prepare(const Shape& shape, const ExecOptions& options) const {
  return shape.backward ? Attention(inputs, shape.params, outputs, options) : Status();
}

Status Operands::Call(const Shape& shape, const ExecOptions& options) const {
  if (shape.backward) return AttentionBackward(backward_inputs, shape.params, gradients, options);
  if (!paged) return Attention(inputs, shape.params, outputs, options);
  AttentionParams params = shape.params;
  params.q_start = QStart();  // context_lens says it
  return AttentionPaged(paged_inputs, params, outputs, options);
}

double Operands::Flops(const Shape& shape) const {
  if (shape.backward) {
    return static_cast<double>(
        BackwardFlops(ResolveBackward(backward_inputs, shape.params, gradients)));
  }
  return static_cast<double>(ForwardFlops(ResolveForward(inputs, shape.params, outputs)));
}

double Operands::bytes() const {
  size_t bytes = 0;
  for (const Tensor* tensor : {&q, &k, &v, &out, &bias, &mask, &lse, &dout, &dq, &dk, &dv}) {
    bytes += tensor->bytes.size();
  }
  return static_cast<double>(bytes);
}

}  // namespace flashlane::bench
