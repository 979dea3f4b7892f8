// A result against the truth, within dispatch/tolerance.h.
#ifndef FLASHLANE_TESTS_SUPPORT_COMPARE_H_
#define FLASHLANE_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include "dispatch/tolerance.h"
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

inline ::testing::AssertionResult Agrees(const ForwardReference& reference, const Result& result) {
  if (!result.status.ok()) return ::testing::AssertionFailure() << result.status.message();
  const Comparison out = CompareOut(reference, result.out_tensor.View());
  if (!out.agrees) return ::testing::AssertionFailure() << "out: " << out.message;
  const Comparison lse = CompareLse(reference, result.lse_tensor.View());
  if (!lse.agrees) return ::testing::AssertionFailure() << "lse: " << lse.message;
  return ::testing::AssertionSuccess();
}

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_COMPARE_H_
