// attnk.contract: every rule has its own code, names go both ways, budgets do not overflow.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "flashlane/flat.h"
#include "tests/support/numbers.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr uint64_t kMaxU = std::numeric_limits<uint64_t>::max();

TEST(FlatContractTest, EveryRuleOfTheSizesHasItsCode) {
  EXPECT_EQ(attn_dims_check(-1, 2, 1, 4, 4, 8), ATTN_BAD_BATCH);
  EXPECT_EQ(attn_dims_check(1, 0, 1, 4, 4, 8), ATTN_BAD_H_Q);
  EXPECT_EQ(attn_dims_check(1, -2, 1, 4, 4, 8), ATTN_BAD_H_Q);
  EXPECT_EQ(attn_dims_check(1, 2, 0, 4, 4, 8), ATTN_BAD_H_KV);
  EXPECT_EQ(attn_dims_check(1, 2, -1, 4, 4, 8), ATTN_BAD_H_KV);
  EXPECT_EQ(attn_dims_check(1, 3, 2, 4, 4, 8), ATTN_BAD_GROUP);
  EXPECT_EQ(attn_dims_check(1, 1, 2, 4, 4, 8), ATTN_BAD_GROUP);
  EXPECT_EQ(attn_dims_check(1, 2, 1, -1, 4, 8), ATTN_BAD_N_TOK_Q);
  EXPECT_EQ(attn_dims_check(1, 2, 1, 4, -1, 8), ATTN_BAD_N_TOK_K);
  EXPECT_EQ(attn_dims_check(1, 2, 1, 4, 4, 0), ATTN_BAD_HEAD_DIM);
  EXPECT_EQ(attn_dims_check(1, 2, 1, 4, 4, -8), ATTN_BAD_HEAD_DIM);
  // Nothing to compute is legal.
  EXPECT_EQ(attn_dims_check(0, 2, 1, 4, 4, 8), ATTN_OK);
  EXPECT_EQ(attn_dims_check(1, 2, 1, 0, 4, 8), ATTN_OK);
  EXPECT_EQ(attn_dims_check(1, 2, 1, 4, 0, 8), ATTN_OK);
}

TEST(FlatContractTest, TheFirstBrokenRuleCounts) {
  EXPECT_EQ(attn_dims_check(-1, 0, 0, -1, -1, 0), ATTN_BAD_BATCH);
  EXPECT_EQ(attn_dims_check(1, 0, 0, -1, -1, 0), ATTN_BAD_H_Q);
  EXPECT_EQ(attn_dims_check(1, 3, 2, -1, -1, 0), ATTN_BAD_GROUP);
}

TEST(FlatContractTest, SizesThatNoMemoryHolds) {
  EXPECT_EQ(attn_dims_check(1, 1, 1, kMax, 1, 1), ATTN_SIZE_OVERFLOW);
  EXPECT_EQ(attn_dims_check(1, 1, 1, 1, kMax, 1), ATTN_SIZE_OVERFLOW);
  EXPECT_EQ(attn_dims_check(1, 1, 1, 1, 1, kMax), ATTN_SIZE_OVERFLOW);
  EXPECT_EQ(attn_dims_check(kMax, 1, 1, 1, 1, 1), ATTN_SIZE_OVERFLOW);
  EXPECT_EQ(attn_dims_check(1, kMax, 1, 1, 1, 1), ATTN_SIZE_OVERFLOW);
  EXPECT_EQ(attn_dims_check(1 << 20, 1 << 20, 1, 1 << 20, 1, 1), ATTN_SIZE_OVERFLOW);
  EXPECT_EQ(attn_dims_check(int64_t{1} << 32, 1 << 16, 1, 1 << 16, 1, 1), ATTN_SIZE_OVERFLOW);
  // 2^62 bytes are too many, 2^61 are not.
  EXPECT_EQ(attn_dims_check(1, 1, 1, int64_t{1} << 59, 1, 1), ATTN_SIZE_OVERFLOW);
  EXPECT_EQ(attn_dims_check(1, 1, 1, int64_t{1} << 58, 1, 1), ATTN_OK);
  // k and v are as wide as the kv heads.
  EXPECT_EQ(attn_dims_check(1, 1 << 30, 1, 0, 1 << 29, 1), ATTN_OK);
  // A size of 0 does not hide the others.
  EXPECT_EQ(attn_dims_check(0, 1, 1, kMax, 1, 2), ATTN_SIZE_OVERFLOW);
}

TEST(FlatContractTest, Scalars) {
  for (const double scale : {0.0, -1.0, 1e300, 5e-324}) EXPECT_EQ(attn_scale_check(scale), ATTN_OK);
  for (const double scale : {kNan, kInf, -kInf}) EXPECT_EQ(attn_scale_check(scale), ATTN_BAD_SCALE);
  EXPECT_EQ(attn_step_check(1e-4), ATTN_OK);
  for (const double step : {0.0, -0.0, -1.0, kNan, kInf}) {
    EXPECT_EQ(attn_step_check(step), ATTN_BAD_STEP);
  }
  EXPECT_EQ(attn_theta_check(10000.0), ATTN_OK);
  for (const double theta : {0.0, -1.0, kNan, kInf, -kInf}) {
    EXPECT_EQ(attn_theta_check(theta), ATTN_BAD_THETA);
  }
  EXPECT_EQ(attn_window_check(0), ATTN_OK);
  EXPECT_EQ(attn_window_check(kMax), ATTN_OK);
  EXPECT_EQ(attn_window_check(-1), ATTN_BAD_WINDOW);
  EXPECT_EQ(attn_tile_check(1), ATTN_OK);
  EXPECT_EQ(attn_tile_check(0), ATTN_BAD_TILE);
  EXPECT_EQ(attn_offset_check(int64_t{1} << 61), ATTN_OK);
  EXPECT_EQ(attn_offset_check(-(int64_t{1} << 61)), ATTN_OK);
  EXPECT_EQ(attn_offset_check((int64_t{1} << 61) + 1), ATTN_BAD_OFFSET);
  EXPECT_EQ(attn_offset_check(std::numeric_limits<int64_t>::min()), ATTN_BAD_OFFSET);
}

TEST(FlatContractTest, StatusNamesGoBothWays) {
  EXPECT_STREQ(attn_status_name(360), "ATTN_OK");
  EXPECT_EQ(attn_status_from_name("ATTN_OK"), 360);
  std::set<std::string> names, messages;
  for (int32_t code = ATTN_OK; code <= ATTN_BAD_ENVIRONMENT; ++code) {
    const std::string name = attn_status_name(code);
    EXPECT_EQ(attn_status_from_name(name), code) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(messages.insert(attn_status_message(code)).second) << name;
    EXPECT_NE(name, "ATTN_UNKNOWN") << code;
  }
  for (const int32_t code : {0, -1, 359, ATTN_BAD_ENVIRONMENT + 1, INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ(attn_status_name(code), "ATTN_UNKNOWN");
    EXPECT_STREQ(attn_status_message(code), "no such status");
  }
  for (const char* name : {"", "ATTN_UNKNOWN", "attn_ok", "ATTN_OK ", "ATTN_O", "OK"}) {
    EXPECT_EQ(attn_status_from_name(name), ATTN_UNKNOWN) << name;
  }
}

TEST(FlatContractTest, BackendNamesGoBothWays) {
  const char* const names[] = {"sdpa", "flash", "tiled", "direct", "unstable"};
  for (int32_t backend = ATTN_BACKEND_SDPA; backend <= ATTN_BACKEND_UNSTABLE; ++backend) {
    EXPECT_STREQ(attn_backend_name(backend), names[backend]);
    EXPECT_EQ(attn_backend_from_name(names[backend]), backend);
  }
  EXPECT_STREQ(attn_backend_name(-1), "unknown");
  EXPECT_STREQ(attn_backend_name(5), "unknown");
  EXPECT_EQ(attn_backend_from_name("Flash"), ATTN_BACKEND_UNKNOWN);
  EXPECT_EQ(attn_backend_from_name("unknown"), ATTN_BACKEND_UNKNOWN);
}

TEST(FlatContractTest, Budget) {
  FlatOptions options;
  EXPECT_EQ(attn_budget_check(kMaxU, kMaxU, options), ATTN_OK);  // no limit
  options.max_flops = 100;
  options.max_bytes = 1000;
  EXPECT_EQ(attn_budget_check(100, 1000, options), ATTN_OK);
  EXPECT_EQ(attn_budget_check(101, 1000, options), ATTN_OVER_FLOPS);
  EXPECT_EQ(attn_budget_check(100, 1001, options), ATTN_OVER_BYTES);
  EXPECT_EQ(attn_budget_check(101, 1001, options), ATTN_OVER_FLOPS);
  EXPECT_EQ(attn_budget_check(0, 0, {0, 0, 0}), ATTN_OK);
  EXPECT_EQ(attn_budget_check(0, 0, {0, 0, -1}), ATTN_BAD_THREADS);
}

TEST(FlatContractTest, WorkThatOverflowsIsBeyondEveryLimit) {
  EXPECT_EQ(attn_work_product(1ull << 40, 1ull << 20), 1ull << 60);
  EXPECT_EQ(attn_work_product(1ull << 40, 1ull << 24), kMaxU);  // 2^64 would be 0
  FlatOptions options;
  options.max_flops = kMaxU - 1;
  EXPECT_EQ(attn_budget_check(attn_work_product(1ull << 40, 1ull << 24), 0, options),
            ATTN_OVER_FLOPS);
}

TEST(FlatContractTest, Flops) {
  uint64_t flops = 0;
  EXPECT_EQ(attn_flops_forward({3, 5, 4, 2, 8}, false, &flops), ATTN_OK);
  EXPECT_EQ(flops, 4u * 3 * 5 * 4 * 8);
  EXPECT_EQ(attn_flops_forward({3, 5, 4, 2, 8}, true, &flops), ATTN_OK);
  EXPECT_EQ(flops, 4u * (1 + 2 + 3) * 4 * 8);
  EXPECT_EQ(attn_flops_forward({5, 3, 4, 2, 8}, true, &flops), ATTN_OK);
  EXPECT_EQ(flops, 4u * (1 + 2 + 3 + 3 + 3) * 4 * 8);
  EXPECT_EQ(attn_flops_forward({0, 3, 4, 2, 8}, true, &flops), ATTN_OK);
  EXPECT_EQ(flops, 0u);
  const int64_t many = int64_t{1} << 40;
  EXPECT_EQ(attn_flops_forward({many, many, 1, 1, 1}, true, &flops), ATTN_OK);
  EXPECT_EQ(flops, kMaxU);
  EXPECT_EQ(attn_flops_forward({1, 1, 3, 2, 1}, true, &flops), ATTN_BAD_GROUP);
  EXPECT_EQ(attn_flops_forward({1, 1, 1, 1, 1}, true, nullptr), ATTN_NULL_BUFFER);
  EXPECT_EQ(flops, kMaxU);
}

}  // namespace
}  // namespace flashlane::testing
