// A result against the truth, within dispatch/tolerance.h.
#ifndef FLASHLANE_TESTS_SUPPORT_COMPARE_H_
#define FLASHLANE_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include "dispatch/tolerance.h"
#include "tests/support/paged.h"
#include "tests/support/problem.h"

namespace flashlane::testing {

// The truth of a problem, computed once for all targets.
inline ForwardReference ReferenceOf(const Problem& problem) {
  ForwardReference reference;
  const Status status =
      MakeForwardReference(problem.Inputs(), problem.spec().params, {}, 0, &reference);
  EXPECT_TRUE(status.ok()) << status.message();
  return reference;
}

inline ::testing::AssertionResult Agrees(const ForwardReference& reference, const Status& status,
                                         const OwnedTensor& out_tensor,
                                         const OwnedTensor& lse_tensor) {
  if (!status.ok()) return ::testing::AssertionFailure() << status.message();
  const Comparison out = CompareOut(reference, out_tensor.View());
  if (!out.agrees) return ::testing::AssertionFailure() << "out: " << out.message;
  const Comparison lse = CompareLse(reference, lse_tensor.View());
  if (!lse.agrees) return ::testing::AssertionFailure() << "lse: " << lse.message;
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult Agrees(const ForwardReference& reference, const Result& result) {
  return Agrees(reference, result.status, result.out_tensor, result.lse_tensor);
}

// A paged problem against its own truth.
inline ::testing::AssertionResult AgreesWithTruth(const PagedProblem& problem,
                                                  const ExecOptions& options) {
  ForwardReference reference;
  const Status status =
      MakePagedReference(problem.Inputs(), problem.spec().params, {}, 0, &reference);
  if (!status.ok()) return ::testing::AssertionFailure() << status.message();
  const PagedProblem::Outputs paged = problem.Run(options);
  return Agrees(reference, paged.status, paged.out, paged.lse);
}

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_COMPARE_H_
