// Problems of the backward: those of the forward with the gradient of out.
#ifndef FLASHLANE_TESTS_SUPPORT_BACKWARD_H_
#define FLASHLANE_TESTS_SUPPORT_BACKWARD_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "dispatch/tolerance.h"
#include "flashlane/backward.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"

namespace flashlane::testing {

// Which gradients a call asks for.
enum Gradients : unsigned {
  kDq = 1,
  kDk = 2,
  kDv = 4,
  kDbias = 8,  // where the problem has bias; and sinks
  kDsinks = 16,
  kAllGradients = 31,
};

struct BackwardResult {
  Status status;
  OwnedTensor dq, dk, dv, dbias, dsinks;  // absent where not asked for

  // The raw bytes of all, for exact comparison.
  std::vector<std::byte> bits() const;
  BackwardOutputs Outputs();
};

// Poisoned (0xA5 bytes) outputs for these gradients, in the problem's layout.
BackwardResult MakeBackwardResult(const Problem& problem, unsigned gradients);

class BackwardProblem {
 public:
  BackwardProblem(const ProblemSpec& spec, DType dtype);

  const ProblemSpec& spec() const { return problem.spec(); }

  // Mutable, so that a test may plant values.
  Problem problem;
  OwnedTensor dout;

  BackwardInputs Inputs() const;  // without kept results
  BackwardResult Run(const ExecOptions& options, unsigned gradients = kAllGradients) const;
  // With the results of this forward call kept.
  BackwardResult RunKept(const ExecOptions& options, const Result& forward) const;
};

// The truth of a problem, computed once for all targets.
BackwardReference ReferenceOf(const BackwardProblem& problem);

// Every gradient that the result has.
::testing::AssertionResult Agrees(const BackwardReference& reference, const BackwardResult& result);

// Each row of the backward on each target this machine runs.
std::vector<RunCase> BackwardRuns();

// Packed tensors of random values and their gradients.
struct PackedBackward {
  std::vector<int64_t> cu_q, cu_k;
  OwnedTensor q, k, v, dout, slopes, sinks;
  OwnedTensor dq, dk, dv, dsinks;

  PackedBackward(const std::vector<int64_t>& lengths_q, const std::vector<int64_t>& lengths_k,
                 DType dtype);
  VarlenBackwardInputs Inputs() const;
  BackwardOutputs Outputs();
};

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_BACKWARD_H_
