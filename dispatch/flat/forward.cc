// attnk.sdpa, attnk.flash and attnk.tiled: forwards over flat buffers, and how far they are apart.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "dispatch/cost.h"
#include "dispatch/flat/checks.h"
#include "flashlane/flat.h"

namespace flashlane::flat {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }
std::uint64_t Unsigned(std::int64_t i) { return static_cast<std::uint64_t>(i); }

// out and lse of a call, in memory of our own.
struct Results {
  std::vector<double> out, lse;

  explicit Results(const FlatAttention& in)
      : out(Index(SizesOf(in).q)), lse(Index(SizesOf(in).lse)) {}
  FlatOutputs Outputs() { return {Buffer(out), Buffer(lse)}; }
};

AttentionOutputs CoreOutputs(const FlatAttention& in, const FlatOutputs& to) {
  AttentionOutputs outputs;
  outputs.out = OutputView(to.out.data, in.n_tok_q, in.h_q, in.head_dim);
  outputs.lse = TensorView(to.lse.data, DType::kF64, {1, in.h_q, in.n_tok_q});
  return outputs;
}

AttnStatus RunCore(const FlatAttention& in, Kernel kernel, const FlatOutputs& to) {
  ExecOptions options;
  options.kernel = kernel;
  return FromCore(Attention(CoreInputs(in), CoreParams(in), CoreOutputs(in, to), options));
}

// Keys [begin, end) of the call.
AttnStatus RunTile(const FlatAttention& in, std::int64_t begin, std::int64_t end,
                   const FlatOutputs& to) {
  AttentionInputs inputs = CoreInputs(in);
  const std::int64_t key = in.h_kv * in.head_dim;
  inputs.k = InputView({in.k.data + begin * key, 0}, end - begin, in.h_kv, in.head_dim);
  inputs.v = InputView({in.v.data + begin * key, 0}, end - begin, in.h_kv, in.head_dim);
  if (inputs.bias.present()) {
    inputs.bias = ConstTensorView(in.bias.data + begin, DType::kF64,
                                  {1, 1, in.n_tok_q, end - begin}, {0, 0, in.n_tok_k, 1});
  }
  AttentionParams params = CoreParams(in);
  params.q_start = -begin;
  return FromCore(Attention(inputs, params, CoreOutputs(in, to)));
}

AttnStatus Merge(const FlatAttention& in, const FlatOutputs& sum, const FlatOutputs& part) {
  const AttentionOutputs to = CoreOutputs(in, sum), from = CoreOutputs(in, part);
  return FromCore(MergeStates({to.out, to.lse}, {from.out, from.lse}, to));
}

// Tile by tile, merged in order; copied to the caller when all has gone well.
AttnStatus RunTiles(const FlatAttention& in, std::int64_t tile, const FlatOutputs& to) {
  Results sum(in), part(in);
  // Later keys no query sees.
  const std::int64_t keys = in.causal ? std::min(in.n_tok_k, in.n_tok_q) : in.n_tok_k;
  for (std::int64_t begin = 0; begin < keys;) {
    const std::int64_t end = begin + std::min(tile, keys - begin);
    AttnStatus status = RunTile(in, begin, end, begin == 0 ? sum.Outputs() : part.Outputs());
    if (status == AttnStatus::kOk && begin > 0) status = Merge(in, sum.Outputs(), part.Outputs());
    if (status != AttnStatus::kOk) return status;
    begin = end;
  }
  std::copy(sum.out.begin(), sum.out.end(), to.out.data);
  std::copy(sum.lse.begin(), sum.lse.end(), to.lse.data);
  return AttnStatus::kOk;
}

// The row of one query and head, with nothing subtracted.
void UnstableRow(const FlatAttention& in, std::int64_t h, std::int64_t i, const FlatOutputs& to) {
  const std::int64_t kv_head = h / (in.h_q / in.h_kv);
  const double* q = in.q.data + (i * in.h_q + h) * in.head_dim;
  double* out = to.out.data + (i * in.h_q + h) * in.head_dim;
  std::fill(out, out + in.head_dim, 0.0);
  double sum = 0;
  const std::int64_t keys = in.causal ? std::min(in.n_tok_k, i + 1) : in.n_tok_k;
  for (std::int64_t j = 0; j < keys; ++j) {
    const std::int64_t at = (j * in.h_kv + kv_head) * in.head_dim;
    double score = 0;
    for (std::int64_t d = 0; d < in.head_dim; ++d) score += q[d] * in.k.data[at + d];
    score *= in.scale;
    if (in.bias.size > 0) score += in.bias.data[i * in.n_tok_k + j];
    const double weight = std::exp(score);
    sum += weight;
    for (std::int64_t d = 0; d < in.head_dim; ++d) out[d] += weight * in.v.data[at + d];
  }
  for (std::int64_t d = 0; d < in.head_dim; ++d) out[d] /= sum;
  to.lse.data[h * in.n_tok_q + i] = std::log(sum);
}

AttnStatus Forward(Backend backend, const FlatAttention& in, std::int64_t tile,
                   const FlatOutputs& to) {
  switch (backend) {
    case Backend::kSdpa:
      return SdpaForwardFlat(in, to);
    case Backend::kFlash:
      return FlashForwardFlat(in, tile, to);
    case Backend::kTiled:
      return TiledForwardFlat(in, tile, to);
    case Backend::kDirect:
      return DirectForwardFlat(in, to);
    case Backend::kUnstable:
      return UnstableForwardFlat(in, to);
  }
  return AttnStatus::kBadBackend;
}

double Difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::fabs(a - b);
  return std::isnan(difference) ? kInfinity : difference;
}

// `magnitude`: out with |v| for v.
void Compare(const FlatAttention& in, const Results& reference, const Results& other,
             const std::vector<double>& magnitude, Agreement* agreement) {
  const double per_unit =
      8 * static_cast<double>(in.n_tok_k) * std::numeric_limits<double>::epsilon();
  constexpr double kFloor = 1e-12;
  agreement->elements = SizesOf(in).q;
  agreement->agrees = true;
  const auto row_factor = [&](std::int64_t row) {
    const double lse = std::fabs(reference.lse[Index(row)]);
    return per_unit * (std::isfinite(lse) ? std::max(1.0, lse) : 1.0);
  };
  for (std::int64_t at = 0; at < agreement->elements; ++at) {
    const std::int64_t h = at / in.head_dim % in.h_q, i = at / in.head_dim / in.h_q;
    const double difference = Difference(reference.out[Index(at)], other.out[Index(at)]);
    const double tolerance = kFloor + row_factor(h * in.n_tok_q + i) * magnitude[Index(at)];
    if (at == 0 || difference > agreement->max_out_difference) {
      agreement->max_out_difference = difference;
      agreement->tolerance = tolerance;
    }
    // A row of infinities has no tolerance, and needs none where the difference is 0.
    if (difference != 0 && !(difference <= tolerance)) agreement->agrees = false;
  }
  for (std::int64_t row = 0; row < SizesOf(in).lse; ++row) {
    const double difference = Difference(reference.lse[Index(row)], other.lse[Index(row)]);
    agreement->max_lse_difference = std::max(agreement->max_lse_difference, difference);
    if (difference > kFloor + row_factor(row)) agreement->agrees = false;
  }
}

Agreement CompareBackend(Backend backend, const FlatAttention& in, std::int64_t tile) {
  Agreement agreement;
  Results reference(in), other(in), magnitude(in);
  std::vector<double> absolute(in.v.data, in.v.data + SizesOf(in).k);
  for (double& x : absolute) x = std::fabs(x);
  FlatAttention of_absolute = in;
  of_absolute.v = ConstBuffer(absolute);
  agreement.status = SdpaForwardFlat(in, reference.Outputs());
  if (agreement.status != AttnStatus::kOk) return agreement;
  agreement.status = SdpaForwardFlat(of_absolute, magnitude.Outputs());
  if (agreement.status != AttnStatus::kOk) return agreement;
  agreement.status = Forward(backend, in, tile, other.Outputs());
  if (agreement.status != AttnStatus::kOk) return agreement;
  Compare(in, reference, other, magnitude.out, &agreement);
  return agreement;
}

AttnStatus CheckDelta(Backend backend, const FlatAttention& in, std::int64_t tile,
                      const WorkBudget& budget) {
  if (BackendName(static_cast<std::int32_t>(backend)) == nullptr) return AttnStatus::kBadBackend;
  const bool has_tile = backend == Backend::kFlash || backend == Backend::kTiled;
  // Results of the reference, of its magnitudes and of the backend, and the tiles' two.
  const Work work{3, 5, 1, 1, has_tile ? tile : 1};
  if (const AttnStatus s = CheckWork(in, work, budget); s != AttnStatus::kOk) return s;
  const FlatSizes sizes = SizesOf(in);
  return CheckBuffers({Needed::Input(in.q, sizes.q), Needed::Input(in.k, sizes.k),
                       Needed::Input(in.v, sizes.k), Needed::Input(in.bias, sizes.bias)});
}

}  // namespace

std::uint64_t AttnFlops(std::int64_t n_tok_q, std::int64_t n_tok_k, std::int64_t h_q,
                        std::int64_t head_dim, bool causal) noexcept {
  if (n_tok_q < 1 || n_tok_k < 1 || h_q < 1 || head_dim < 1) return 0;
  const std::uint64_t rows = Unsigned(n_tok_q), keys = Unsigned(n_tok_k);
  std::uint64_t pairs = SaturatingProduct(rows, keys);
  if (causal) {
    // Rows up to the number of keys see 1, 2, ... keys; those after, all.
    const std::uint64_t rising = std::min(rows, keys);
    const std::uint64_t triangle = rising % 2 == 0 ? SaturatingProduct(rising / 2, rising + 1)
                                                   : SaturatingProduct(rising, rising / 2 + 1);
    pairs = SaturatingSum(triangle, SaturatingProduct(rows - rising, keys));
  }
  const std::uint64_t per_pair = SaturatingProduct(4, Unsigned(head_dim));
  return SaturatingProduct(SaturatingProduct(pairs, Unsigned(h_q)), per_pair);
}

AttnStatus SdpaForwardFlat(const FlatAttention& in, const FlatOutputs& to,
                           const WorkBudget& budget) noexcept {
  // The oracle keeps one row of scores per thread.
  const Work work{1, 0, 0, 1, 1};
  if (const AttnStatus s = CheckForward(in, work, budget, to); s != AttnStatus::kOk) return s;
  return RunCore(in, Kernel::kNaive, to);
}

AttnStatus FlashForwardFlat(const FlatAttention& in, std::int64_t tile, const FlatOutputs& to,
                            const WorkBudget& budget) noexcept {
  const Work work{1, 2, 0, 0, tile};
  if (const AttnStatus s = CheckForward(in, work, budget, to); s != AttnStatus::kOk) return s;
  try {
    return RunTiles(in, tile, to);
  } catch (const std::bad_alloc&) {
    return AttnStatus::kOutOfMemory;
  }
}

AttnStatus TiledForwardFlat(const FlatAttention& in, std::int64_t tile, const FlatOutputs& to,
                            const WorkBudget& budget) noexcept {
  return FlashForwardFlat(in, tile, to, budget);
}

AttnStatus DirectForwardFlat(const FlatAttention& in, const FlatOutputs& to,
                             const WorkBudget& budget) noexcept {
  if (const AttnStatus s = CheckForward(in, {}, budget, to); s != AttnStatus::kOk) return s;
  return RunCore(in, Kernel::kFlash, to);
}

AttnStatus UnstableForwardFlat(const FlatAttention& in, const FlatOutputs& to,
                               const WorkBudget& budget) noexcept {
  if (const AttnStatus s = CheckForward(in, {}, budget, to); s != AttnStatus::kOk) return s;
  for (std::int64_t h = 0; h < in.h_q; ++h) {
    for (std::int64_t i = 0; i < in.n_tok_q; ++i) UnstableRow(in, h, i, to);
  }
  return AttnStatus::kOk;
}

Agreement FlashAgreesWithSdpa(const FlatAttention& in, std::int64_t tile,
                              const WorkBudget& budget) noexcept {
  return ReferenceDeltaFlat(Backend::kFlash, in, tile, budget);
}

Agreement ReferenceDeltaFlat(Backend backend, const FlatAttention& in, std::int64_t tile,
                             const WorkBudget& budget) noexcept {
  Agreement failed;
  failed.status = CheckDelta(backend, in, tile, budget);
  if (failed.status != AttnStatus::kOk) return failed;
  try {
    return CompareBackend(backend, in, tile);
  } catch (const std::bad_alloc&) {
    failed.status = AttnStatus::kOutOfMemory;
    return failed;
  }
}

}  // namespace flashlane::flat
