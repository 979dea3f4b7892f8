// Problems over flat buffers, and attention as a plain loop to hold the flat modules against.
#ifndef FLASHLANE_TESTS_SUPPORT_FLAT_H_
#define FLASHLANE_TESTS_SUPPORT_FLAT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "flashlane/flat.h"

namespace flashlane::testing {

inline std::vector<double> RandomDoubles(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(engine);
  return values;
}

struct FlatProblem {
  explicit FlatProblem(const flat::FlatDims& dims_in, uint64_t seed = 1)
      : dims(dims_in),
        q(RandomDoubles(dims.n_tok_q * dims.h_q * dims.head_dim, seed)),
        k(RandomDoubles(dims.n_tok_k * dims.h_kv * dims.head_dim, seed + 1)),
        v(RandomDoubles(dims.n_tok_k * dims.h_kv * dims.head_dim, seed + 2)) {}

  flat::FlatInputs Inputs() const { return {q, k, v, bias}; }
  void AddBias(uint64_t seed) { bias = RandomDoubles(dims.n_tok_q * dims.n_tok_k, seed); }

  flat::FlatDims dims;
  std::vector<double> q, k, v, bias;
};

struct FlatResult {
  explicit FlatResult(const flat::FlatDims& dims)
      : out(static_cast<size_t>(dims.n_tok_q * dims.h_q * dims.head_dim), -77.0),
        lse(static_cast<size_t>(dims.n_tok_q * dims.h_q), -77.0) {}
  flat::FlatOutputs Outputs() { return {out, lse}; }
  std::vector<double> out, lse;
};

// By the definition, sharing nothing with the library.
inline FlatResult PlainAttention(const FlatProblem& problem, const flat::FlatParams& params) {
  const flat::FlatDims& d = problem.dims;
  FlatResult result(d);
  for (int64_t i = 0; i < d.n_tok_q; ++i) {
    for (int64_t h = 0; h < d.h_q; ++h) {
      const int64_t kv = h / (d.h_q / d.h_kv);
      std::vector<double> scores;
      double most = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t j = 0; j < d.n_tok_k && !(params.causal && j > i); ++j) {
        double dot = 0;
        for (int64_t x = 0; x < d.head_dim; ++x) {
          dot += problem.q[static_cast<size_t>((i * d.h_q + h) * d.head_dim + x)] *
                 problem.k[static_cast<size_t>((j * d.h_kv + kv) * d.head_dim + x)];
        }
        scores.push_back(params.scale * dot);
        if (!problem.bias.empty()) {
          scores.back() += problem.bias[static_cast<size_t>(i * d.n_tok_k + j)];
        }
        most = std::max(most, scores.back());
      }
      for (double& score : scores) sum += score = std::exp(score - most);
      for (int64_t x = 0; x < d.head_dim; ++x) {
        double average = 0;
        for (size_t j = 0; j < scores.size(); ++j) {
          const int64_t token = static_cast<int64_t>(j) * d.h_kv + kv;
          average += scores[j] / sum * problem.v[static_cast<size_t>(token * d.head_dim + x)];
        }
        result.out[static_cast<size_t>((i * d.h_q + h) * d.head_dim + x)] = average;
      }
      result.lse[static_cast<size_t>(h * d.n_tok_q + i)] = most + std::log(sum);
    }
  }
  return result;
}

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_FLAT_H_
