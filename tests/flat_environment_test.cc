// The flat modules where the environment is wrong: a status of its own, and nothing is written. A
// program of its own, because the environment is read once.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "flashlane/flat.h"
#include "tests/support/flat_calls.h"

namespace flashlane::testing {
namespace {

TEST(FlatEnvironmentTest, IsNotTheArgumentsFault) {
  ::setenv("FLASHLANE_NUM_THREADS", "many", 1);
  int refused = 0;
  for (const FlatFunction& function : FlatFunctions()) {
    FlatCall call;
    const bool alone = function.name.rfind("mask_", 0) == 0 ||
                       function.name.rfind("rope_inv_freq", 0) == 0 ||
                       function.name == "unstable_forward_flat";
    EXPECT_EQ(function.run(call), alone ? flat::ATTN_OK : flat::ATTN_BAD_ENVIRONMENT)
        << function.name;
    if (alone) continue;
    ++refused;
    for (const SlotMember output : function.outputs) {
      EXPECT_TRUE((call.*output).Untouched()) << function.name;
    }
  }
  EXPECT_GT(refused, 5);
}

}  // namespace
}  // namespace flashlane::testing
