// attnk.rope over flashlane/rope.h.

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "dispatch/cost.h"
#include "dispatch/flat/checks.h"
#include "flashlane/flat.h"

namespace flashlane::flat {
namespace {

AttnStatus CheckHeadDim(std::int64_t head_dim) {
  return head_dim < 2 || head_dim % 2 != 0 ? AttnStatus::kBadHeadDim : AttnStatus::kOk;
}

std::uint64_t Bytes(std::int64_t doubles) {
  return SaturatingProduct(static_cast<std::uint64_t>(doubles), sizeof(double));
}

// Of calls whose head_dim and theta are right.
AttnStatus Frequencies(std::int64_t head_dim, double theta, const RopeScaling& scaling,
                       double* inv_freq, double* attention_factor) {
  const TensorView view(inv_freq, DType::kF64, {head_dim / 2});
  const Status status = RopeInverseFrequencies(theta, scaling, view, attention_factor);
  return status.ok() ? AttnStatus::kOk : AttnStatus::kBadScaling;
}

AttnStatus FillTable(std::int64_t head_dim, std::int64_t n_positions, double theta,
                     const RopeScaling& scaling, const RopeTableBuffers& table) {
  std::vector<double> inv_freq(static_cast<std::size_t>(head_dim / 2));
  RopeTableInputs inputs;
  const AttnStatus status =
      Frequencies(head_dim, theta, scaling, inv_freq.data(), &inputs.attention_factor);
  if (status != AttnStatus::kOk) return status;
  inputs.inv_freq = ConstTensorView(inv_freq.data(), DType::kF64, {head_dim / 2});
  RopeTableOutputs outputs;
  outputs.cos = TensorView(table.cos.data, DType::kF64, {n_positions, head_dim / 2});
  outputs.sin = TensorView(table.sin.data, DType::kF64, {n_positions, head_dim / 2});
  // What scaling can still break: frequencies that overflow.
  ExecOptions options;
  options.num_threads = 1;  // whatever the environment says
  return RopeTable(inputs, outputs, options).ok() ? AttnStatus::kOk : AttnStatus::kBadScaling;
}

// `positions`: rows of the table.
AttnStatus CheckApply(const FlatRope& in, const Buffer& out, const WorkBudget& budget,
                      std::int64_t* positions) {
  if (in.n_tok < 1) return AttnStatus::kBadTokensQ;
  if (in.n_heads < 1) return AttnStatus::kBadHeadsQ;
  if (const AttnStatus s = CheckHeadDim(in.head_dim); s != AttnStatus::kOk) return s;
  std::int64_t elements = 0;
  if (const AttnStatus s = Elements({in.n_tok, in.n_heads, in.head_dim}, &elements);
      s != AttnStatus::kOk) {
    return s;
  }
  constexpr std::uint64_t kFlopsPerElement = 3;  // as ApplyRope
  const std::uint64_t flops =
      SaturatingProduct(kFlopsPerElement, static_cast<std::uint64_t>(elements));
  const std::uint64_t bytes = SaturatingProduct(2, Bytes(elements));
  if (const AttnStatus s = AttnBudgetCheck(flops, bytes, budget); s != AttnStatus::kOk) return s;
  const std::int64_t half = in.head_dim / 2;
  *positions = std::min(in.cos.size, in.sin.size) / half;
  const std::int64_t table = std::max<std::int64_t>(*positions, 1) * half;
  const bool in_place = out.data == in.x.data;
  // In place, x is checked by its size alone.
  const Needed x = Needed::Input(in.x, elements);
  const AttnStatus s =
      CheckBuffers({in_place ? Needed{x.data, x.size, 0, false} : x, Needed::Input(in.cos, table),
                    Needed::Input(in.sin, table), Needed::Input(in.position, in.n_tok),
                    Needed::Output(out, elements)});
  if (s != AttnStatus::kOk) return s;
  if (in.x.size < elements) return AttnStatus::kBadBuffer;
  for (std::int64_t t = 0; t < in.n_tok; ++t) {
    const std::int64_t position = in.position.data[t];
    if (position < 0 || position >= *positions) return AttnStatus::kBadPosition;
  }
  return AttnStatus::kOk;
}

AttnStatus Apply(const FlatRope& in, const Buffer& out, const WorkBudget& budget, bool inverse) {
  std::int64_t positions = 0;
  if (const AttnStatus s = CheckApply(in, out, budget, &positions); s != AttnStatus::kOk) return s;
  RopeInputs inputs;
  inputs.q = ConstTensorView(in.x.data, DType::kF64, {in.n_tok, in.n_heads, in.head_dim});
  inputs.cos = ConstTensorView(in.cos.data, DType::kF64, {positions, in.head_dim / 2});
  inputs.sin = ConstTensorView(in.sin.data, DType::kF64, {positions, in.head_dim / 2});
  inputs.positions = ConstTensorView(in.position.data, DType::kI64, {in.n_tok});
  RopeOutputs outputs;
  outputs.q = TensorView(out.data, DType::kF64, {in.n_tok, in.n_heads, in.head_dim});
  RopeParams params;
  params.interleaved = in.interleaved;
  params.inverse = inverse;
  return FromCore(ApplyRope(inputs, params, outputs));
}

}  // namespace

AttnStatus RopeInvFreqFlat(std::int64_t head_dim, double theta, const Buffer& inv_freq,
                           const RopeScaling& scaling) noexcept {
  if (const AttnStatus s = CheckHeadDim(head_dim); s != AttnStatus::kOk) return s;
  if (const AttnStatus s = AttnThetaCheck(theta); s != AttnStatus::kOk) return s;
  const AttnStatus s = CheckBuffers({Needed::Output(inv_freq, head_dim / 2)});
  if (s != AttnStatus::kOk) return s;
  return Frequencies(head_dim, theta, scaling, inv_freq.data, nullptr);
}

AttnStatus RopeTableFlat(std::int64_t head_dim, std::int64_t n_positions, double theta,
                         const RopeTableBuffers& table, const RopeScaling& scaling,
                         const WorkBudget& budget) noexcept {
  if (const AttnStatus s = CheckHeadDim(head_dim); s != AttnStatus::kOk) return s;
  if (n_positions < 1) return AttnStatus::kBadLength;
  std::int64_t elements = 0;
  if (const AttnStatus s = Elements({n_positions, head_dim}, &elements); s != AttnStatus::kOk) {
    return s;
  }
  if (const AttnStatus s = AttnBudgetCheck(0, Bytes(elements), budget); s != AttnStatus::kOk) {
    return s;
  }
  if (const AttnStatus s = AttnThetaCheck(theta); s != AttnStatus::kOk) return s;
  const AttnStatus s = CheckBuffers(
      {Needed::Output(table.cos, elements / 2), Needed::Output(table.sin, elements / 2)});
  if (s != AttnStatus::kOk) return s;
  try {
    return FillTable(head_dim, n_positions, theta, scaling, table);
  } catch (const std::bad_alloc&) {
    return AttnStatus::kOutOfMemory;
  }
}

AttnStatus RopeApplyFlat(const FlatRope& in, const Buffer& out, const WorkBudget& budget) noexcept {
  return Apply(in, out, budget, /*inverse=*/false);
}

AttnStatus RopeApplyInverseFlat(const FlatRope& in, const Buffer& out,
                                const WorkBudget& budget) noexcept {
  return Apply(in, out, budget, /*inverse=*/true);
}

}  // namespace flashlane::flat
