// What RopeInverseFrequencies, RopeTable and ApplyRope refuse: the message names argument, value
// and rule, and no byte of any output has changed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "flashlane/rope.h"
#include "tests/support/numbers.h"

namespace flashlane::testing {
namespace {

using ::testing::HasSubstr;
using Type = RopeScaling::Type;

// A legal call of each kind, to be spoilt in one point.
struct Call {
  std::vector<double> frequencies{1.0, 0.5};
  std::vector<float> cos = std::vector<float>(6 * 2, 0.5f);
  std::vector<float> sin = std::vector<float>(6 * 2, 0.25f);
  std::vector<float> q = std::vector<float>(2 * 4 * 3 * 5, 1.0f), q_out = q;
  // Of k and positions there is more than is used, so that an output that is laid over them meets
  // nothing else.
  std::vector<float> k = std::vector<float>(q.size(), 2.0f), k_out = k;
  std::vector<int64_t> positions = std::vector<int64_t>(k.size(), 0);

  double theta = 10000.0;
  RopeScaling scaling;
  TensorView inv_freq{frequencies.data(), DType::kF64, {2}};
  double attention_factor = -7.0;
  RopeTableInputs table_inputs;
  RopeTableOutputs table;
  RopeInputs inputs;
  RopeParams params;
  RopeOutputs outputs;
  ExecOptions options;

  Call() {
    const int64_t rows[] = {0, 5, 2, 3, 4, 1};
    std::copy(std::begin(rows), std::end(rows), positions.begin());
    table_inputs.inv_freq = inv_freq;
    table.cos = TensorView(cos.data(), DType::kF32, {6, 2});
    table.sin = TensorView(sin.data(), DType::kF32, {6, 2});
    inputs.q = ConstTensorView(q.data(), DType::kF32, {2, 4, 3, 5});
    inputs.k = ConstTensorView(k.data(), DType::kF32, {2, 2, 3, 5});
    inputs.cos = table.cos;
    inputs.sin = table.sin;
    outputs.q = TensorView(q_out.data(), DType::kF32, {2, 4, 3, 5});
    outputs.k = TensorView(k_out.data(), DType::kF32, {2, 2, 3, 5});
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void GivePositions() {
    inputs.positions = ConstTensorView(positions.data(), DType::kI64, {2, 3});
  }
};

Status Frequencies(Call& c) {
  return RopeInverseFrequencies(c.theta, c.scaling, c.inv_freq, &c.attention_factor);
}
Status Table(Call& c) { return RopeTable(c.table_inputs, c.table, c.options); }
Status Apply(Call& c) { return ApplyRope(c.inputs, c.params, c.outputs, c.options); }

struct Refusal {
  std::string message;  // a part of it
  std::function<void(Call&)> spoil;
  StatusCode code = StatusCode::kInvalidArgument;
};

void ExpectRefused(Status (*run)(Call&), const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    Call call;
    ASSERT_TRUE(run(call).ok());
    const std::vector<double> frequencies = call.frequencies;
    const std::vector<float> cos = call.cos, sin = call.sin, q = call.q, k = call.k;
    call.q_out.assign(call.q_out.size(), -7.0f);
    call.k_out.assign(call.k_out.size(), -7.0f);
    call.attention_factor = -7.0;
    const std::vector<float> q_out = call.q_out, k_out = call.k_out;
    refusal.spoil(call);
    const Status status = run(call);
    EXPECT_EQ(status.code(), refusal.code) << refusal.message;
    EXPECT_THAT(status.message(), HasSubstr(refusal.message));
    EXPECT_EQ(call.attention_factor, -7.0);
    EXPECT_TRUE(!std::isfinite(call.frequencies[1]) || call.frequencies == frequencies);
    EXPECT_TRUE(call.cos == cos && call.sin == sin && call.q == q && call.k == k);
    EXPECT_TRUE(call.q_out == q_out && call.k_out == k_out) << refusal.message;
  }
}

void Scale(Call& c, Type type, double factor = 2.0, int64_t original = 100) {
  c.scaling.type = type;
  c.scaling.factor = factor;
  c.scaling.original_max_position = original;
}

TEST(RopeContractTest, Frequencies) {
  ExpectRefused(
      &Frequencies,
      {
          {"theta: value 0.000000 is not finite and > 0", [](Call& c) { c.theta = 0; }},
          {"theta: value -1.000000 is not finite and > 0", [](Call& c) { c.theta = -1; }},
          {"theta: value nan is not finite", [](Call& c) { c.theta = std::nan(""); }},
          {"theta: value inf is not finite", [](Call& c) { c.theta = kInf; }},
          {"with this scaling gives frequencies that are not finite",
           [](Call& c) { Scale(c, Type::kLinear, 5e-324); }},
          {"inv_freq: rank 0 is not 1", [](Call& c) { c.inv_freq = {}; }},
          {"inv_freq: dtype F32 is not F64", [](Call& c) { c.inv_freq.dtype = DType::kF32; }},
          {"inv_freq: data is null", [](Call& c) { c.inv_freq.data = nullptr; }},
          {"inv_freq: stride 0 makes elements of an output overlap",
           [](Call& c) { c.inv_freq.strides[0] = 0; }},
          {"scaling.type: value 6 is not one of",
           [](Call& c) { c.scaling.type = static_cast<Type>(6); }},
          {"factor: value 0.000000 is not finite and > 0",
           [](Call& c) { Scale(c, Type::kLinear, 0); }},
          {"factor: value nan is not finite", [](Call& c) { Scale(c, Type::kNtk, std::nan("")); }},
          {"inv_freq: rotary_dim 2 has no NTK-aware scaling",
           [](Call& c) {
             Scale(c, Type::kNtk);
             c.inv_freq.shape[0] = 1;
           }},
          {"original_max_position: value 0 is not within [1, 2^53]",
           [](Call& c) { Scale(c, Type::kDynamicNtk, 2, 0); }},
          {"seqlen: value -1 is not within [0, 2^53]",
           [](Call& c) {
             Scale(c, Type::kDynamicNtk);
             c.scaling.seqlen = -1;
           }},
          {"theta: value 1.000000 is not finite and > 1",
           [](Call& c) {
             Scale(c, Type::kYarn);
             c.theta = 1;
           }},
          {"original_max_position: value -3 is", [](Call& c) { Scale(c, Type::kYarn, 2, -3); }},
          {"beta_slow: value 0.000000 is not finite and > 0",
           [](Call& c) {
             Scale(c, Type::kYarn);
             c.scaling.beta_slow = 0;
           }},
          {"beta_fast: value 1.000000 is not finite and above beta_slow 1.000000",
           [](Call& c) {
             Scale(c, Type::kYarn);
             c.scaling.beta_fast = 1;
           }},
          {"attention_factor: value -1.000000 is not finite and >= 0",
           [](Call& c) {
             Scale(c, Type::kYarn);
             c.scaling.attention_factor = -1;
           }},
          {"mscale_all_dim: value inf is not finite",
           [](Call& c) {
             Scale(c, Type::kYarn);
             c.scaling.mscale_all_dim = kInf;
           }},
          {"low_freq_factor: value 0.000000 is not finite and > 0",
           [](Call& c) {
             Scale(c, Type::kLlama3);
             c.scaling.low_freq_factor = 0;
           }},
          {"high_freq_factor: value 1.000000 is not finite and above low_freq_factor 1.000000",
           [](Call& c) {
             Scale(c, Type::kLlama3);
             c.scaling.high_freq_factor = 1;
           }},
      });
}

// Members that a type does not name.
TEST(RopeContractTest, WhatATypeIgnores) {
  Call call;
  call.scaling.factor = -1;
  call.scaling.beta_fast = -1;
  call.scaling.high_freq_factor = 0;
  EXPECT_TRUE(Frequencies(call).ok());
  call.scaling.type = Type::kLinear;
  call.scaling.factor = 2;
  EXPECT_TRUE(Frequencies(call).ok());
  EXPECT_TRUE(RopeInverseFrequencies(1e4, {}, call.inv_freq).ok());
}

TEST(RopeContractTest, Table) {
  ExpectRefused(
      &Table,
      {
          {"inv_freq: rank 0 is not 1", [](Call& c) { c.table_inputs.inv_freq = {}; }},
          {"inv_freq: dtype F32 is not F64",
           [](Call& c) { c.table_inputs.inv_freq.dtype = DType::kF32; }},
          {"inv_freq: value inf at 1 is not finite", [](Call& c) { c.frequencies[1] = kInf; }},
          {"attention_factor: value nan is not finite",
           [](Call& c) { c.table_inputs.attention_factor = std::nan(""); }},
          {"cos: dtype BF16 is not one of F32, F64",
           [](Call& c) { c.table.cos.dtype = DType::kBF16; }},
          {"cos: rank 0 is not 2", [](Call& c) { c.table.cos = {}; }},
          {"sin: dtype F64 is not F32, cos's dtype",
           [](Call& c) { c.table.sin.dtype = DType::kF64; }},
          {"cos: rotary_dim / 2 1 is not 2 (shape [6, 1])",
           [](Call& c) { c.table.cos.shape[1] = 1; }},
          {"sin: num_positions 5 is not 6", [](Call& c) { c.table.sin.shape[0] = 5; }},
          {"sin: stride 2 of dimension 1 is not 1", [](Call& c) { c.table.sin.strides[1] = 2; }},
          {"cos: stride 0 makes elements of an output overlap",
           [](Call& c) { c.table.cos.strides[0] = 0; }},
          {"sin: shares memory with cos", [](Call& c) { c.table.sin.data = c.cos.data(); }},
          {"positions: length 5 is not 6",
           [](Call& c) {
             c.table_inputs.positions = ConstTensorView(c.positions.data(), DType::kI64, {5});
           }},
          {"positions: value -9007199254740993 at 2 is not within",
           [](Call& c) {
             c.positions[2] = -(int64_t{1} << 53) - 1;
             c.table_inputs.positions = ConstTensorView(c.positions.data(), DType::kI64, {6});
           }},
          {"positions: dtype U32 is not one of I32, I64",
           [](Call& c) {
             c.table_inputs.positions = ConstTensorView(c.positions.data(), DType::kU32, {6});
           }},
          {"start: value 9007199254740992 and 6 rows reach past 2^53",
           [](Call& c) { c.table_inputs.start = int64_t{1} << 53; }},
          {"start: value -9223372036854775808 and 6",
           [](Call& c) { c.table_inputs.start = std::numeric_limits<int64_t>::min(); }},
          {"num_threads: value -1 is negative", [](Call& c) { c.options.num_threads = -1; }},
      });
}

TEST(RopeContractTest, ApplyOperands) {
  ExpectRefused(
      &Apply,
      {
          {"q: absent, and so is k",
           [](Call& c) {
             c.inputs.q = c.inputs.k = {};
             c.outputs.q = c.outputs.k = {};
           }},
          {"q: rank 2 is not 3 or 4", [](Call& c) { c.inputs.q.rank = 2; }},
          {"q: dtype I32 is not one of F32, F64, BF16, F16",
           [](Call& c) { c.inputs.q.dtype = DType::kI32; }},
          {"q: stride 2 of dimension 3 is not 1", [](Call& c) { c.inputs.q.strides[3] = 2; }},
          {"q: data is null", [](Call& c) { c.inputs.q.data = nullptr; }},
          {"q: shape [2, -4, 3, 5] has a negative size", [](Call& c) { c.inputs.q.shape[1] = -4; }},
          {"k: dtype F64 is not F32, q's dtype", [](Call& c) { c.inputs.k.dtype = DType::kF64; }},
          {"k: rank 3 is not 4, that of q", [](Call& c) { c.inputs.k.rank = 3; }},
          {"k: batch 1 is not 2", [](Call& c) { c.inputs.k.shape[0] = 1; }},
          {"k: seqlen 2 is not 3", [](Call& c) { c.inputs.k.shape[2] = 2; }},
          {"out.q: absent, but q is given", [](Call& c) { c.outputs.q = {}; }},
          {"out.k: given, but k is absent", [](Call& c) { c.inputs.k = {}; }},
          {"out.q: shape [2, 4, 3, 4] does not match q's [2, 4, 3, 5]",
           [](Call& c) { c.outputs.q.shape[3] = 4; }},
          {"out.k: dtype BF16 is not F32, k's dtype",
           [](Call& c) { c.outputs.k.dtype = DType::kBF16; }},
          {"out.q: stride 0 makes elements of an output overlap",
           [](Call& c) { c.outputs.q.strides[1] = 0; }},
          {"out.q: shares memory with q", [](Call& c) { c.outputs.q.data = c.q.data() + 5; }},
          {"out.q: shares memory with q",
           [](Call& c) {  // the same memory, heads and tokens exchanged
             c.outputs.q.data = c.q.data();
             c.outputs.q.strides[1] = 5;
             c.outputs.q.strides[2] = 20;
           }},
          {"out.q: shares memory with k", [](Call& c) { c.outputs.q.data = c.k.data(); }},
          {"out.k: shares memory with q", [](Call& c) { c.outputs.k.data = c.q.data(); }},
          {"out.k: shares memory with out.q", [](Call& c) { c.outputs.k.data = c.q_out.data(); }},
          {"out.q: shares memory with cos",
           [](Call& c) {
             c.inputs.cos = ConstTensorView(c.q_out.data(), DType::kF32, {6, 2});
           }},
          {"out.k: shares memory with positions",
           [](Call& c) {
             c.outputs.k.data = c.positions.data();
             c.GivePositions();
           }},
      });
}

TEST(RopeContractTest, ApplyTables) {
  ExpectRefused(
      &Apply,
      {
          {"cos: rank 0 is not 2", [](Call& c) { c.inputs.cos = {}; }},
          {"sin: rank 0 is not 2", [](Call& c) { c.inputs.sin = {}; }},
          {"cos: dtype F64 is not F32, for q of F32",
           [](Call& c) { c.inputs.cos.dtype = DType::kF64; }},
          {"sin: shape [5, 2] does not match cos's [6, 2]",
           [](Call& c) { c.inputs.sin.shape[0] = 5; }},
          {"cos: rotary_dim 0 is below 2",
           [](Call& c) { c.inputs.cos.shape[1] = c.inputs.sin.shape[1] = 0; }},
          {"cos: 3 pairs of dimensions are more than q's head_dim 5 has",
           [](Call& c) {
             c.inputs.cos.shape[0] = c.inputs.sin.shape[0] = 4;
             c.inputs.cos.shape[1] = c.inputs.sin.shape[1] = 3;
           }},
          {"cos: 2 pairs of dimensions are more than k's head_dim 3 has",
           [](Call& c) { c.inputs.k.shape[3] = c.outputs.k.shape[3] = 3; }},
          {"cos: stride 2 of dimension 1 is not 1", [](Call& c) { c.inputs.cos.strides[1] = 2; }},
          {"q_start: value -1 is negative", [](Call& c) { c.params.q_start = -1; }},
          {"q_start: value 4 and 3 tokens reach past the 6 rows of cos",
           [](Call& c) { c.params.q_start = 4; }},
          {"q_start: value 9223372036854775807 and 3 tokens",
           [](Call& c) { c.params.q_start = std::numeric_limits<int64_t>::max(); }},
          {"positions[1]: value 6 at 2 is not within [0, 5], the rows of cos",
           [](Call& c) {
             c.GivePositions();
             c.positions[5] = 6;
           }},
          {"positions[0]: value -1 at 0 is not within [0, 5]",
           [](Call& c) {
             c.GivePositions();
             c.positions[0] = -1;
           }},
          {"positions: batch 3 is not 2",
           [](Call& c) {
             c.inputs.positions = ConstTensorView(c.positions.data(), DType::kI64, {3, 2});
           }},
          {"positions: length 2 is not 3",
           [](Call& c) {
             c.inputs.positions = ConstTensorView(c.positions.data(), DType::kI64, {2});
           }},
          {"positions: value 6 at 1 is not within [0, 5], the rows of cos",
           [](Call& c) {
             c.inputs.positions = ConstTensorView(c.positions.data(), DType::kI64, {3});
             c.positions[1] = 6;
           }},
          {"positions[0]: dtype F32 is not one of I32, I64",
           [](Call& c) {
             c.GivePositions();
             c.inputs.positions.dtype = DType::kF32;
           }},
          {"num_threads: value -1 is negative", [](Call& c) { c.options.num_threads = -1; }},
          {"target", [](Call& c) { c.options.target = "PDP11"; }},
          // 3 flops for each of 4 rotated elements of 2 * (4 + 2) * 3 heads.
          {"max_flops: the call needs 432, above 431", [](Call& c) { c.options.max_flops = 431; },
           StatusCode::kBudgetExceeded},
      });
}

TEST(RopeContractTest, WhatIsNotRefused) {
  Call call;
  call.options.max_flops = 432;
  call.options.max_scratch_bytes = 0;
  call.params.q_start = 3;
  EXPECT_EQ(Apply(call).message(), "");
  call.GivePositions();
  call.params.q_start = -1;  // positions say it
  EXPECT_EQ(Apply(call).message(), "");
  // More than one sequence may share a row; the tables may be one and the same memory.
  call.positions.assign(6, 5);
  call.inputs.sin = call.inputs.cos;
  EXPECT_EQ(Apply(call).message(), "");
}

}  // namespace
}  // namespace flashlane::testing
