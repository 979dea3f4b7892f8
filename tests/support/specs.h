// Problems that tests of the forward and of the backward share.
#ifndef FLASHLANE_TESTS_SUPPORT_SPECS_H_
#define FLASHLANE_TESTS_SUPPORT_SPECS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/problem.h"

namespace flashlane::testing {

// One head of one sequence.
ProblemSpec Shape(int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim);

// The most that RandomSpec draws. Every second problem has at most 41 keys.
struct SpecLimits {
  int64_t batch, kv_heads, group, seqlen_q, seqlen_k, head_dim;
};

// Any combination of parameters, layouts and shapes.
ProblemSpec RandomSpec(std::mt19937_64& random, const SpecLimits& limits);

// A way to hide keys from every row of a problem of 70 queries.
struct HidingWay {
  const char* name;
  void (*hide)(ProblemSpec&);
  int64_t first_hidden, last_hidden;
};
std::vector<HidingWay> HidingWays(int64_t seqlen_k);

// Key j of every sequence and head.
void FillKey(Problem& problem, int64_t j, double k, double v);

// Sequence `b` of a tensor, with the strides of the whole; the tensor itself where it has one for
// all.
OwnedTensor OneSequence(const OwnedTensor& tensor, int64_t b);

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_SPECS_H_
