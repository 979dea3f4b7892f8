// Sizes that break 32-bit arithmetic and long sums, cheaply: sparse mappings and few visible keys.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dispatch/dtype.h"
#include "tests/support/compare.h"
#include "tests/support/memory.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"

namespace flashlane::testing {
namespace {

class LargeTest : public RunTest {};
class LargeVectorTest : public RunTest {};  // what the oracle, which visits every key, cannot do

// Every dimension's stride so large that offsets pass 2^31 and 2^32 elements.
TEST_P(LargeTest, ElementOffsetsBeyond32Bits) {
  const DType dtype = GetParam().dtype;
  const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
  constexpr int64_t kRow = (int64_t{1} << 31) + 8, kHead = 3 * kRow, kBatch = 2 * kHead;
  const int64_t elements = 2 * kBatch;
  SparseBuffer q(elements * size), k(elements * size), v(elements * size), out(elements * size);
  if (!q.ok() || !k.ok() || !v.ok() || !out.ok())
    GTEST_SKIP() << "no address space for the mappings";
  ProblemSpec spec;
  spec.batch = spec.num_heads = spec.num_kv_heads = 2;
  spec.seqlen_q = spec.seqlen_k = 3;
  spec.head_dim = spec.head_dim_v = 4;
  const Problem small(spec, dtype);
  const std::initializer_list<int64_t> shape = {2, 2, 3, 4}, strides = {kBatch, kHead, kRow, 1};
  const auto spread = [&](const OwnedTensor& from, SparseBuffer& to) {
    for (int64_t row = 0; row < 12; ++row) {
      const int64_t at = row / 6 * kBatch + row / 3 % 2 * kHead + row % 3 * kRow;
      std::memcpy(to.data() + at * size, from.storage.data() + row * 4 * size, 4 * size);
    }
    return ConstTensorView(to.data(), dtype, shape, strides);
  };
  AttentionInputs inputs;
  inputs.q = spread(small.q, q);
  inputs.k = spread(small.k, k);
  inputs.v = spread(small.v, v);
  AttentionOutputs outputs;
  outputs.out = TensorView(out.data(), dtype, shape, strides);
  const Status status = Attention(inputs, {}, outputs, GetParam().Options());
  ASSERT_TRUE(status.ok()) << status.message();
  const Result expected = small.Run(GetParam().Options());
  for (int64_t row = 0; row < 12; ++row) {
    const int64_t at = row / 6 * kBatch + row / 3 % 2 * kHead + row % 3 * kRow;
    EXPECT_EQ(0,
              std::memcmp(out.data() + at * size, expected.bits.data() + row * 4 * size, 4 * size));
  }
}

// 2^33 keys of which the window shows a few: neither time nor 32-bit counters may care.
TEST_P(LargeVectorTest, PositionsBeyond32Bits) {
  const DType dtype = GetParam().dtype;
  const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
  constexpr int64_t kKeys = int64_t{1} << 33, kNear = 9;
  SparseBuffer k(kKeys * size), v(kKeys * size);
  if (!k.ok() || !v.ok()) GTEST_SKIP() << "no address space for the mappings";
  ProblemSpec spec;
  spec.seqlen_q = 5;
  spec.seqlen_k = kNear;
  spec.params.window_size_left = 4;
  spec.params.causal = true;
  spec.params.q_start = 4;
  const Problem near(spec, dtype);
  const int64_t first = kKeys - kNear;
  std::memcpy(k.data() + first * size, near.k.storage.data(), kNear * size);
  std::memcpy(v.data() + first * size, near.v.storage.data(), kNear * size);
  AttentionInputs inputs = near.Inputs();
  inputs.k = ConstTensorView(k.data(), dtype, {1, 1, kKeys, 1});
  inputs.v = ConstTensorView(v.data(), dtype, {1, 1, kKeys, 1});
  AttentionParams params = spec.params;
  params.q_start = first + 4;
  std::vector<std::byte> out(5 * static_cast<size_t>(size));
  AttentionOutputs outputs;
  outputs.out = TensorView(out.data(), dtype, {1, 1, 5, 1});
  const Status status = Attention(inputs, params, outputs, GetParam().Options());
  ASSERT_TRUE(status.ok()) << status.message();
  const ForwardReference reference = ReferenceOf(near);
  const Comparison comparison =
      CompareOut(reference, ConstTensorView(out.data(), dtype, {1, 1, 5, 1}));
  EXPECT_TRUE(comparison.agrees) << comparison.message;
}

// A sum over 128 Ki keys must not stall where one more weight no longer changes it.
TEST_P(LargeTest, SumsOver128KiKeys) {
  ProblemSpec spec;
  spec.seqlen_q = 2;
  spec.seqlen_k = 128 * 1024;
  spec.head_dim = 1;
  spec.head_dim_v = 2;
  Problem problem(spec, GetParam().dtype);
  problem.q.Set({0, 0, 0, 0}, 0.0);  // row 0: every key weighs the same
  for (int64_t j = 0; j < spec.seqlen_k; ++j) problem.v.Set({0, 0, j, 1}, j % 2);
  const Result result = problem.Run(GetParam().Options());
  ASSERT_TRUE(result.status.ok());
  EXPECT_NEAR(result.lse[0], std::log(128.0 * 1024.0), 1e-5);
  EXPECT_EQ(result.out[1], 0.5);
  EXPECT_TRUE(Agrees(ReferenceOf(problem), result));
}

FLASHLANE_INSTANTIATE_RUNS(LargeTest, AllRuns());
FLASHLANE_INSTANTIATE_RUNS(LargeVectorTest, VectorRuns());

}  // namespace
}  // namespace flashlane::testing
