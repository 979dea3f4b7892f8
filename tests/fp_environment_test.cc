// A call leaves the caller's floating-point environment as it was (threading/ proves it for
// workers).

#include <gtest/gtest.h>

#include <cfenv>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/support/problem.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

// The control part of the floating-point environment: rounding, and on x86 FTZ, DAZ and the traps.
std::vector<unsigned> FloatingPointControl() {
  std::vector<unsigned> control = {static_cast<unsigned>(std::fegetround())};
#if defined(__x86_64__)
  constexpr unsigned kStatusFlags = 0x3F;
  control.push_back(_mm_getcsr() & ~kStatusFlags);
#endif
  return control;
}

class FpEnvironmentTest : public RunTest {};

TEST_P(FpEnvironmentTest, StaysAsItWas) {
  ProblemSpec spec;
  spec.num_heads = 2;
  spec.seqlen_q = 200;
  spec.seqlen_k = 300;
  spec.head_dim = spec.head_dim_v = 8;
  spec.params.softcap = 5.0;
  const Problem problem(spec, GetParam().dtype);
  const ExecOptions options = GetParam().Options();
  const std::vector<unsigned> before = FloatingPointControl();
  ASSERT_TRUE(problem.Run(options).status.ok());
  EXPECT_EQ(FloatingPointControl(), before);
#if defined(__x86_64__)
  // A caller who flushes denormals keeps doing so.
  constexpr unsigned kFlushToZero = 0x8000;
  _mm_setcsr(_mm_getcsr() | kFlushToZero);
  const std::vector<unsigned> flushing = FloatingPointControl();
  const Status status = problem.Run(options).status;
  const std::vector<unsigned> after = FloatingPointControl();
  _mm_setcsr(_mm_getcsr() & ~kFlushToZero);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(after, flushing);
#endif
}

FLASHLANE_INSTANTIATE_RUNS(FpEnvironmentTest, AllRuns());

}  // namespace
}  // namespace flashlane::testing
