// Calls of the flat modules with memory of their own.
#ifndef FLASHLANE_TESTS_SUPPORT_FLAT_H_
#define FLASHLANE_TESTS_SUPPORT_FLAT_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "flashlane/flat.h"

namespace flashlane::testing {

struct FlatShape {
  std::int64_t n_tok_q = 1, n_tok_k = 1, h_q = 1, h_kv = 1, head_dim = 1;
};

struct FlatProblem {
  std::vector<double> q, k, v, bias;
  flat::FlatAttention in;

  // Random operands, with bias or without.
  explicit FlatProblem(const FlatShape& shape, bool with_bias = false, unsigned seed = 1,
                       double magnitude = 1.0) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal(0.0, magnitude);
    const auto fill = [&](std::vector<double>* to, std::int64_t size) {
      to->resize(static_cast<std::size_t>(size));
      for (double& x : *to) x = normal(random);
    };
    fill(&q, shape.n_tok_q * shape.h_q * shape.head_dim);
    fill(&k, shape.n_tok_k * shape.h_kv * shape.head_dim);
    fill(&v, shape.n_tok_k * shape.h_kv * shape.head_dim);
    fill(&bias, with_bias ? shape.n_tok_q * shape.n_tok_k : 0);
    in.n_tok_q = shape.n_tok_q;
    in.n_tok_k = shape.n_tok_k;
    in.h_q = shape.h_q;
    in.h_kv = shape.h_kv;
    in.head_dim = shape.head_dim;
    in.scale = 0.5;
    Attach();
  }
  FlatProblem(const FlatProblem&) = delete;
  FlatProblem& operator=(const FlatProblem&) = delete;

  // After the vectors have changed.
  void Attach() {
    in.q = flat::ConstBuffer(q);
    in.k = flat::ConstBuffer(k);
    in.v = flat::ConstBuffer(v);
    in.bias = flat::ConstBuffer(bias);
  }
};

// The two tokens of the specification's examples.
inline void MakeExample(FlatProblem* problem) {
  problem->q = problem->k = {1.0, 0.0, 0.0, 1.0};
  problem->v = {10.0, 20.0, 30.0, 40.0};
  problem->Attach();
}

constexpr double kUntouched = -12345.678;

struct FlatResult {
  std::vector<double> out, lse;

  explicit FlatResult(const FlatProblem& of)
      : out(of.q.size(), kUntouched),
        lse(static_cast<std::size_t>(of.in.n_tok_q * of.in.h_q), kUntouched) {}
  flat::FlatOutputs Outputs() { return {flat::Buffer(out), flat::Buffer(lse)}; }
};

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_FLAT_H_
