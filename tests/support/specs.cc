#include "tests/support/specs.h"

#include <cstddef>

namespace flashlane::testing {

ProblemSpec Shape(int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim) {
  ProblemSpec spec;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_k = seqlen_k;
  spec.head_dim = spec.head_dim_v = head_dim;
  return spec;
}

ProblemSpec RandomSpec(std::mt19937_64& random, const SpecLimits& limits) {
  const auto upto = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  };
  const auto from_one = [&](int64_t most) { return 1 + upto(most - 1); };
  const auto maybe = [&] { return random() % 4 == 0; };
  const int64_t seqlen_q = from_one(limits.seqlen_q);
  const int64_t seqlen_k = from_one(random() % 2 == 0 ? 41 : limits.seqlen_k);
  ProblemSpec spec = Shape(seqlen_q, seqlen_k, from_one(limits.head_dim));
  spec.seed = random();
  spec.batch = from_one(limits.batch);
  spec.num_kv_heads = from_one(limits.kv_heads);
  spec.num_heads = spec.num_kv_heads * from_one(limits.group);
  spec.layout = static_cast<Layout>(upto(3));
  if (maybe()) spec.head_dim_v = from_one(limits.head_dim);
  if (spec.layout == Layout::kPacked) spec.seqlen_q = spec.seqlen_k;
  spec.params.causal = maybe();
  if (maybe()) spec.params.window_size_left = upto(spec.seqlen_k);
  if (maybe()) spec.params.window_size_right = upto(spec.seqlen_k);
  if (maybe()) spec.params.softcap = 0.5 + static_cast<double>(upto(30));
  if (maybe()) spec.params.softmax_scale = static_cast<double>(upto(20)) / 10.0 - 1.0;
  spec.per_sequence_k_len = maybe();
  if (!spec.per_sequence_k_len && maybe()) spec.params.k_len = upto(spec.seqlen_k);
  spec.per_sequence_q_start = maybe();
  if (!spec.per_sequence_q_start && maybe()) {
    spec.params.q_start =
        maybe() ? QStart::BottomRight() : QStart(upto(2 * spec.seqlen_k) - spec.seqlen_k);
  }
  spec.alibi = maybe();
  spec.sinks = maybe();
  spec.f32_terms = maybe();
  if (maybe()) spec.bias_dims = static_cast<int>(upto(15));
  if (maybe()) spec.mask_dims = static_cast<int>(upto(15));
  return spec;
}

std::vector<HidingWay> HidingWays(int64_t seqlen_k) {
  return {
      {"k_len", [](ProblemSpec& s) { s.params.k_len = s.seqlen_k - 50; }, seqlen_k - 50,
       seqlen_k - 1},
      {"causal", [](ProblemSpec& s) { s.params.causal = true; }, 70, seqlen_k - 1},
      {"left",
       [](ProblemSpec& s) { s.params.window_size_left = 3, s.params.q_start = s.seqlen_k - 70; }, 0,
       seqlen_k - 74},
      {"right", [](ProblemSpec& s) { s.params.window_size_right = 5; }, 75, seqlen_k - 1},
  };
}

void FillKey(Problem& problem, int64_t j, double k, double v) {
  for (int64_t b = 0; b < problem.spec().batch; ++b) {
    for (int64_t h = 0; h < problem.spec().num_kv_heads; ++h) {
      for (int64_t d = 0; d < problem.spec().head_dim; ++d) problem.k.Set({b, h, j, d}, k);
      for (int64_t d = 0; d < problem.spec().head_dim_v; ++d) problem.v.Set({b, h, j, d}, v);
    }
  }
}

OwnedTensor OneSequence(const OwnedTensor& tensor, int64_t b) {
  OwnedTensor one = tensor;
  if (!tensor.view.present() || tensor.view.shape[0] == 1) return one;
  const auto skip = static_cast<std::ptrdiff_t>(b * tensor.view.strides[0]) *
                    static_cast<std::ptrdiff_t>(DTypeSize(tensor.view.dtype));
  one.storage.erase(one.storage.begin(), one.storage.begin() + skip);
  one.view.shape[0] = 1;
  return one;
}

}  // namespace flashlane::testing
