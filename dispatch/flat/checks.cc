#include "dispatch/flat/checks.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>

#include "dispatch/cost.h"

namespace flashlane::flat {
namespace {

// Doubles that a 63-bit number of bytes can address.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;

bool Overlaps(const Needed& a, const Needed& b) {
  if (a.needed == 0 || b.needed == 0) return false;
  const auto* a_begin = static_cast<const std::uint64_t*>(a.data);
  const auto* b_begin = static_cast<const std::uint64_t*>(b.data);
  const std::less<> before;
  return before(a_begin, b_begin + b.needed) && before(b_begin, a_begin + a.needed);
}

}  // namespace

AttnStatus Elements(std::initializer_list<std::int64_t> sizes, std::int64_t* product) {
  *product = 1;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(*product, size, product)) return AttnStatus::kSizeOverflow;
  }
  return *product > kMaxElements ? AttnStatus::kSizeOverflow : AttnStatus::kOk;
}

AttnStatus CheckBuffers(std::initializer_list<Needed> buffers) {
  for (const Needed& buffer : buffers) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(buffer.data) % alignof(double) == 0;
    if (buffer.size < buffer.needed || !aligned || (buffer.data == nullptr && buffer.needed > 0)) {
      return AttnStatus::kBadBuffer;
    }
  }
  for (const Needed& output : buffers) {
    for (const Needed& other : buffers) {
      if (output.writes && &output != &other && Overlaps(output, other)) {
        return AttnStatus::kBadBuffer;
      }
    }
  }
  return AttnStatus::kOk;
}

FlatSizes SizesOf(const FlatAttention& in) {
  FlatSizes sizes;
  sizes.q = in.n_tok_q * in.h_q * in.head_dim;
  sizes.k = in.n_tok_k * in.h_kv * in.head_dim;
  sizes.bias = in.bias.size == 0 ? 0 : in.n_tok_q * in.n_tok_k;
  sizes.lse = in.n_tok_q * in.h_q;
  // Each is at most 2^60, so that the sum stays below 2^63.
  const std::int64_t elements = 2 * sizes.q + 2 * sizes.k + sizes.bias + sizes.lse;
  sizes.bytes = SaturatingProduct(static_cast<std::uint64_t>(elements), sizeof(double));
  return sizes;
}

AttnStatus CheckWork(const FlatAttention& in, const Work& work, const WorkBudget& budget) {
  const AttnStatus dims = AttnDimsCheck(1, in.h_q, in.h_kv, in.n_tok_q, in.n_tok_k, in.head_dim);
  if (dims != AttnStatus::kOk) return dims;
  const FlatSizes sizes = SizesOf(in);
  const auto copies = [](std::uint64_t count, std::int64_t elements) {
    return SaturatingProduct(count * sizeof(double), static_cast<std::uint64_t>(elements));
  };
  std::uint64_t bytes = SaturatingSum(sizes.bytes, copies(work.results, sizes.q + sizes.lse));
  bytes = SaturatingSum(bytes, copies(work.key_copies, sizes.k));
  bytes = SaturatingSum(bytes, copies(work.score_rows, in.n_tok_k));
  const std::uint64_t flops = SaturatingProduct(
      AttnFlops(in.n_tok_q, in.n_tok_k, in.h_q, in.head_dim, in.causal), work.passes);
  if (const AttnStatus s = AttnBudgetCheck(flops, bytes, budget); s != AttnStatus::kOk) return s;
  if (const AttnStatus s = AttnScaleCheck(in.scale); s != AttnStatus::kOk) return s;
  return work.tile >= 1 ? AttnStatus::kOk : AttnStatus::kBadTile;
}

AttnStatus CheckForward(const FlatAttention& in, const Work& work, const WorkBudget& budget,
                        const FlatOutputs& to) {
  if (const AttnStatus s = CheckWork(in, work, budget); s != AttnStatus::kOk) return s;
  const FlatSizes sizes = SizesOf(in);
  return CheckBuffers({Needed::Input(in.q, sizes.q), Needed::Input(in.k, sizes.k),
                       Needed::Input(in.v, sizes.k), Needed::Input(in.bias, sizes.bias),
                       Needed::Output(to.out, sizes.q), Needed::Output(to.lse, sizes.lse)});
}

AttnStatus FromCore(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return AttnStatus::kOk;
    case StatusCode::kOutOfMemory:
      return AttnStatus::kOutOfMemory;
    default:
      return AttnStatus::kBadEnvironment;
  }
}

AttentionInputs CoreInputs(const FlatAttention& in) {
  AttentionInputs inputs;
  inputs.q = InputView(in.q, in.n_tok_q, in.h_q, in.head_dim);
  inputs.k = InputView(in.k, in.n_tok_k, in.h_kv, in.head_dim);
  inputs.v = InputView(in.v, in.n_tok_k, in.h_kv, in.head_dim);
  if (in.bias.size > 0) {
    inputs.bias = ConstTensorView(in.bias.data, DType::kF64, {1, 1, in.n_tok_q, in.n_tok_k});
  }
  return inputs;
}

AttentionParams CoreParams(const FlatAttention& in) {
  AttentionParams params;
  params.softmax_scale = in.scale;
  params.causal = in.causal;
  return params;
}

}  // namespace flashlane::flat
