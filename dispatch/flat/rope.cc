// attnk.rope: flat functions over flashlane/rope.h.

#include "flashlane/flat/rope.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dispatch/flat/call.h"

namespace flashlane::flat {
namespace {

constexpr int64_t kMaxTablePosition = int64_t{1} << 53;  // the core's

AttnStatus CheckFrequencies(int64_t head_dim, double theta) {
  if (head_dim < 2 || head_dim % 2 != 0) return ATTN_BAD_HEAD_DIM;
  if (!SizeFits(static_cast<uint64_t>(head_dim))) return ATTN_SIZE_OVERFLOW;
  return attn_theta_check(theta);
}

// Sizes, threads and buffers have been checked: what is left is the scaling, and a theta without
// one whose powers are beyond F64.
AttnStatus FromScaling(const Status& status, const RopeScaling& scaling) {
  if (status.code() != StatusCode::kInvalidArgument) return FromCore(status);
  return scaling.type == RopeScaling::Type::kNone ? ATTN_BAD_THETA : ATTN_BAD_SCALING;
}

AttnStatus CheckTable(const FlatRopeTableParams& params) {
  const AttnStatus s = CheckFrequencies(params.head_dim, params.theta);
  if (s != ATTN_OK) return s;
  if (params.n_pos < 0) return ATTN_BAD_N_POS;
  if (!SizeFits(SaturatingProduct(static_cast<uint64_t>(params.n_pos),
                                  static_cast<uint64_t>(params.head_dim)))) {
    return ATTN_SIZE_OVERFLOW;
  }
  const int64_t start = params.start;
  if (start < -kMaxTablePosition || start > kMaxTablePosition) return ATTN_BAD_POSITION;
  const bool within = params.n_pos == 0 || start + params.n_pos - 1 <= kMaxTablePosition;
  return within ? ATTN_OK : ATTN_BAD_POSITION;
}

// As FlatRopeDims, rotary_dim filled in.
struct RopeSizes {
  int64_t n_tok, h, head_dim, rotary_dim;
  int64_t pairs() const { return rotary_dim / 2; }
};

AttnStatus CheckRopeDims(const FlatRopeDims& dims, RopeSizes* sizes) {
  const AttnStatus s = attn_dims_check(1, dims.h, dims.h, dims.n_tok, dims.n_tok, dims.head_dim);
  if (s != ATTN_OK) return s;
  if (dims.rotary_dim < 0 || dims.rotary_dim > dims.head_dim || dims.rotary_dim % 2 != 0) {
    return ATTN_BAD_ROTARY_DIM;
  }
  if (dims.rotary_dim == 0 && dims.head_dim % 2 != 0) return ATTN_BAD_HEAD_DIM;
  *sizes = {dims.n_tok, dims.h, dims.head_dim,
            dims.rotary_dim == 0 ? dims.head_dim : dims.rotary_dim};
  return ATTN_OK;
}

// One row of each table at least: how many there are is what the positions are checked against.
AttnStatus CheckRope(const FlatRopeInputs& in, const RopeSizes& sizes, const Doubles& out,
                     const FlatOptions& options, int64_t* n_pos) {
  const uint64_t tokens = static_cast<uint64_t>(sizes.n_tok);
  const uint64_t elements = SaturatingProduct(tokens, static_cast<uint64_t>(sizes.h)) *
                            static_cast<uint64_t>(sizes.head_dim);
  const uint64_t turned = SaturatingProduct(tokens, static_cast<uint64_t>(sizes.h)) *
                          static_cast<uint64_t>(sizes.rotary_dim);
  *n_pos = std::min(in.cos_t.size, in.sin_t.size) / sizes.pairs();
  const uint64_t table = static_cast<uint64_t>(std::max<int64_t>(*n_pos, tokens == 0 ? 0 : 1)) *
                         static_cast<uint64_t>(sizes.pairs());
  const Needed x = Need(in.x, elements), result = Need(out, elements);
  const Needed cos_t = Need(in.cos_t, table), sin_t = Need(in.sin_t, table);
  const Needed position = Need(in.position, tokens);
  const AttnStatus s = attn_budget_check(SaturatingProduct(3, turned),
                                         BytesOf({x, cos_t, sin_t, position, result}), options);
  if (s != ATTN_OK) return s;
  return CheckBuffers({x, cos_t, sin_t, position}, {result}, in.x.data);
}

AttnStatus Apply(const FlatRopeInputs& in, const FlatRopeDims& dims, const RopeParams& params,
                 const Doubles& out, const FlatOptions& options) {
  RopeSizes sizes{};
  if (const AttnStatus s = CheckRopeDims(dims, &sizes); s != ATTN_OK) return s;
  int64_t n_pos = 0;
  if (const AttnStatus s = CheckRope(in, sizes, out, options, &n_pos); s != ATTN_OK) return s;
  for (int64_t t = 0; t < sizes.n_tok; ++t) {
    if (in.position.data[t] < 0 || in.position.data[t] >= n_pos) return ATTN_BAD_POSITION;
  }
  RopeInputs core;
  core.q = ConstTensorView(in.x.data, DType::kF64, {sizes.n_tok, sizes.h, sizes.head_dim});
  core.cos = ConstTensorView(in.cos_t.data, DType::kF64, {n_pos, sizes.pairs()});
  core.sin = ConstTensorView(in.sin_t.data, DType::kF64, {n_pos, sizes.pairs()});
  core.positions = ConstTensorView(in.position.data, DType::kI64, {sizes.n_tok});
  RopeOutputs outputs;
  outputs.q = TensorView(out.data, DType::kF64, {sizes.n_tok, sizes.h, sizes.head_dim});
  return FromCore(ApplyRope(core, params, outputs, CoreOptions(options, Kernel::kFlash)));
}

}  // namespace

AttnStatus rope_inv_freq(int64_t head_dim, double theta, Doubles inv_freq,
                         const FlatOptions& options) noexcept {
  return rope_inv_freq_scaled(head_dim, theta, {}, inv_freq, nullptr, options);
}

AttnStatus rope_inv_freq_scaled(int64_t head_dim, double theta, const RopeScaling& scaling,
                                Doubles inv_freq, double* attention_factor,
                                const FlatOptions& options) noexcept {
  if (const AttnStatus s = CheckFrequencies(head_dim, theta); s != ATTN_OK) return s;
  const int64_t pairs = head_dim / 2;
  const Needed need = Need(inv_freq, static_cast<uint64_t>(pairs));
  const AttnStatus s = attn_budget_check(need.elements, need.bytes(), options);
  if (s != ATTN_OK) return s;
  if (const AttnStatus buffers = CheckBuffers({}, {need}); buffers != ATTN_OK) return buffers;
  return FromScaling(
      RopeInverseFrequencies(theta, scaling, TensorView(inv_freq.data, DType::kF64, {pairs}),
                             attention_factor),
      scaling);
}

AttnStatus rope_table(int64_t head_dim, int64_t n_pos, double theta, const FlatRopeTables& tables,
                      const FlatOptions& options) noexcept {
  FlatRopeTableParams params;
  params.head_dim = head_dim;
  params.n_pos = n_pos;
  params.theta = theta;
  return rope_table_scaled(params, tables, options);
}

AttnStatus rope_table_scaled(const FlatRopeTableParams& params, const FlatRopeTables& tables,
                             const FlatOptions& options) noexcept {
  return WithoutThrowing([&] {
    if (const AttnStatus s = CheckTable(params); s != ATTN_OK) return s;
    const int64_t pairs = params.head_dim / 2;
    const uint64_t elements = static_cast<uint64_t>(params.n_pos) * static_cast<uint64_t>(pairs);
    const Needed cos_t = Need(tables.cos_t, elements), sin_t = Need(tables.sin_t, elements);
    const uint64_t own = static_cast<uint64_t>(pairs) * sizeof(double);
    AttnStatus s = attn_budget_check(SaturatingProduct(2, elements),
                                     SaturatingSum(own, BytesOf({cos_t, sin_t})), options);
    if (s == ATTN_OK) s = CheckBuffers({}, {cos_t, sin_t});
    if (s != ATTN_OK) return s;

    std::vector<double> inv_freq(static_cast<size_t>(pairs));
    RopeTableInputs inputs;
    s = FromScaling(RopeInverseFrequencies(params.theta, params.scaling,
                                           TensorView(inv_freq.data(), DType::kF64, {pairs}),
                                           &inputs.attention_factor),
                    params.scaling);
    if (s != ATTN_OK) return s;
    inputs.inv_freq = ConstTensorView(inv_freq.data(), DType::kF64, {pairs});
    inputs.start = params.start;
    const RopeTableOutputs outputs = {
        TensorView(tables.cos_t.data, DType::kF64, {params.n_pos, pairs}),
        TensorView(tables.sin_t.data, DType::kF64, {params.n_pos, pairs})};
    return FromCore(RopeTable(inputs, outputs, CoreOptions(options, Kernel::kFlash)));
  });
}

AttnStatus rope_apply_flat(const FlatRopeInputs& inputs, const FlatRopeDims& dims, bool interleaved,
                           Doubles out, const FlatOptions& options) noexcept {
  RopeParams params;
  params.interleaved = interleaved;
  return Apply(inputs, dims, params, out, options);
}

AttnStatus rope_apply_inverse_flat(const FlatRopeInputs& inputs, const FlatRopeDims& dims,
                                   bool interleaved, Doubles out,
                                   const FlatOptions& options) noexcept {
  RopeParams params;
  params.interleaved = interleaved;
  params.inverse = true;
  return Apply(inputs, dims, params, out, options);
}

}  // namespace flashlane::flat
