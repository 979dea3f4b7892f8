// Every rule of flashlane/backward.h that is not the forward's: broken, it is refused with a
// message that names the argument, and no byte changes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <functional>
#include <string>
#include <vector>

#include "flashlane/backward.h"

namespace flashlane {
namespace {

using ::testing::HasSubstr;

// A legal call with everything: B 2, Hq 4, Hkv 2, Sq 3, Sk 5, D 8, Dv 6, F32.
struct Call {
  std::vector<float> q = std::vector<float>(2 * 4 * 3 * 8, 0.5f);
  std::vector<float> k = std::vector<float>(2 * 2 * 5 * 8, 0.25f);
  std::vector<float> v = std::vector<float>(2 * 2 * 5 * 6, 1.0f);
  std::vector<float> dout = std::vector<float>(2 * 4 * 3 * 6, 0.5f);
  std::vector<float> out = std::vector<float>(2 * 4 * 3 * 6, 1.0f);
  std::vector<float> lse = std::vector<float>(2 * 4 * 3, 1.0f);
  std::vector<float> bias = std::vector<float>(4 * 5, 0.0f);
  std::vector<float> sinks = std::vector<float>(4, 0.0f);
  std::vector<float> dq = std::vector<float>(2 * 4 * 3 * 8, -7.0f);
  std::vector<float> dk = std::vector<float>(2 * 2 * 5 * 8, -7.0f);
  std::vector<float> dv = std::vector<float>(2 * 2 * 5 * 6, -7.0f);
  std::vector<float> dbias = std::vector<float>(4 * 5, -7.0f);
  std::vector<float> dsinks = std::vector<float>(4, -7.0f);
  BackwardInputs inputs;
  AttentionParams params;
  BackwardOutputs outputs;
  ExecOptions options;

  Call() {
    inputs.forward.q = ConstTensorView(q.data(), DType::kF32, {2, 4, 3, 8});
    inputs.forward.k = ConstTensorView(k.data(), DType::kF32, {2, 2, 5, 8});
    inputs.forward.v = ConstTensorView(v.data(), DType::kF32, {2, 2, 5, 6});
    inputs.forward.bias = ConstTensorView(bias.data(), DType::kF32, {1, 4, 1, 5});
    inputs.forward.sinks = ConstTensorView(sinks.data(), DType::kF32, {4});
    inputs.dout = ConstTensorView(dout.data(), DType::kF32, {2, 4, 3, 6});
    inputs.out = ConstTensorView(out.data(), DType::kF32, {2, 4, 3, 6});
    inputs.lse = ConstTensorView(lse.data(), DType::kF32, {2, 4, 3});
    outputs.dq = TensorView(dq.data(), DType::kF32, {2, 4, 3, 8});
    outputs.dk = TensorView(dk.data(), DType::kF32, {2, 2, 5, 8});
    outputs.dv = TensorView(dv.data(), DType::kF32, {2, 2, 5, 6});
    outputs.dbias = TensorView(dbias.data(), DType::kF32, {1, 4, 1, 5});
    outputs.dsinks = TensorView(dsinks.data(), DType::kF32, {4});
  }
  Status Run() const { return AttentionBackward(inputs, params, outputs, options); }
  std::vector<float> Bytes() const {
    std::vector<float> all;
    for (const auto* tensor :
         {&q, &k, &v, &dout, &out, &lse, &bias, &sinks, &dq, &dk, &dv, &dbias, &dsinks}) {
      all.insert(all.end(), tensor->begin(), tensor->end());
    }
    return all;
  }
};

TEST(BackwardContractTest, TheLegalCallIsLegal) {
  Call call;
  const Status status = call.Run();
  EXPECT_TRUE(status.ok()) << status.message();
  for (const auto* tensor : {&call.dq, &call.dk, &call.dv, &call.dbias, &call.dsinks}) {
    for (const float value : *tensor) EXPECT_NE(value, -7.0f);
  }
}

struct Broken {
  const char* name;
  StatusCode code;
  const char* message;  // a part of it
  std::function<void(Call&)> break_it;
};

constexpr StatusCode kBad = StatusCode::kInvalidArgument;

std::vector<Broken> InputRules() {
  return {
      {"QRank", kBad, "q: rank 3", [](Call& c) { c.inputs.forward.q.rank = 3; }},
      {"HugeRowOfNothing", kBad, "more elements than memory can hold",
       [](Call& c) {
         c.inputs.forward.q =
             ConstTensorView(c.inputs.forward.q.data, DType::kF32, {0, 4, 3, int64_t{1} << 61});
       }},
      {"Softcap", kBad, "softcap: value -1", [](Call& c) { c.params.softcap = -1.0; }},
      {"KLen", kBad, "k_len: value 6", [](Call& c) { c.params.k_len = 6; }},
      {"DoutAbsent", kBad, "dout: rank 0 is not 4", [](Call& c) { c.inputs.dout = {}; }},
      {"DoutNull", kBad, "dout: data is null", [](Call& c) { c.inputs.dout.data = nullptr; }},
      {"DoutDType", kBad, "dout: dtype F16 is not F32, q's dtype",
       [](Call& c) { c.inputs.dout.dtype = DType::kF16; }},
      {"DoutBatch", kBad, "dout: batch 1 is not 2", [](Call& c) { c.inputs.dout.shape[0] = 1; }},
      {"DoutHeads", kBad, "dout: num_heads 2 is not 4",
       [](Call& c) { c.inputs.dout.shape[1] = 2; }},
      {"DoutLength", kBad, "dout: seqlen_q 2 is not 3",
       [](Call& c) { c.inputs.dout.shape[2] = 2; }},
      {"DoutWidth", kBad, "dout: head_dim_v 5 is not 6",
       [](Call& c) { c.inputs.dout.shape[3] = 5; }},
      {"DoutInner", kBad, "dout: stride 0 of dimension 3 is not 1",
       [](Call& c) { c.inputs.dout.strides[3] = 0; }},
      {"OutAlone", kBad, "out: given without lse; keep both or neither",
       [](Call& c) { c.inputs.lse = {}; }},
      {"LseAlone", kBad, "lse: given without out; keep both or neither",
       [](Call& c) { c.inputs.out = {}; }},
      {"OutWidth", kBad, "out: head_dim_v 5 is not 6", [](Call& c) { c.inputs.out.shape[3] = 5; }},
      {"OutDType", kBad, "out: dtype BF16", [](Call& c) { c.inputs.out.dtype = DType::kBF16; }},
      {"LseDType", kBad, "lse: dtype F16 is not F32",
       [](Call& c) { c.inputs.lse.dtype = DType::kF16; }},
      {"LseHeads", kBad, "lse: num_heads 3 is not 4", [](Call& c) { c.inputs.lse.shape[1] = 3; }},
  };
}

std::vector<Broken> OutputRules() {
  return {
      {"Nothing", kBad, "dq: no gradient is asked for", [](Call& c) { c.outputs = {}; }},
      {"DqWidth", kBad, "dq: head_dim 7 is not 8", [](Call& c) { c.outputs.dq.shape[3] = 7; }},
      {"DqDType", kBad, "dq: dtype F64", [](Call& c) { c.outputs.dq.dtype = DType::kF64; }},
      {"DqNull", kBad, "dq: data is null", [](Call& c) { c.outputs.dq.data = nullptr; }},
      {"DqRank", kBad, "dq: rank 3 is not 4", [](Call& c) { c.outputs.dq.rank = 3; }},
      {"DkHeads", kBad, "dk: num_kv_heads 1 is not 2", [](Call& c) { c.outputs.dk.shape[1] = 1; }},
      {"DkLength", kBad, "dk: seqlen_k 4 is not 5", [](Call& c) { c.outputs.dk.shape[2] = 4; }},
      {"DvWidth", kBad, "dv: head_dim_v 5 is not 6", [](Call& c) { c.outputs.dv.shape[3] = 5; }},
      {"DvOverlapsItself", kBad, "dv: stride 0 makes elements of an output overlap",
       [](Call& c) { c.outputs.dv.strides[1] = 0; }},
      {"DbiasWithoutBias", kBad, "dbias: asked for, but there is no bias",
       [](Call& c) { c.inputs.forward.bias = {}; }},
      {"DbiasShape", kBad, "dbias: shape [1, 4, 1, 4] is not [1, 4, 1, 5], that of bias",
       [](Call& c) { c.outputs.dbias.shape[3] = 4; }},
      {"DbiasDType", kBad, "dbias: dtype F16 is not F32",
       [](Call& c) { c.outputs.dbias.dtype = DType::kF16; }},
      {"DsinksWithoutSinks", kBad, "dsinks: asked for, but there is no sinks",
       [](Call& c) { c.inputs.forward.sinks = {}; }},
      {"DsinksShape", kBad, "dsinks: shape [3] is not [4]",
       [](Call& c) { c.outputs.dsinks.shape[0] = 3; }},
      {"DqIsQ", kBad, "dq: shares memory with q", [](Call& c) { c.outputs.dq.data = c.q.data(); }},
      {"DkIsDout", kBad, "dk: shares memory with dout",
       [](Call& c) { c.outputs.dk.data = c.dout.data() + 3; }},
      {"DvIsOut", kBad, "dv: shares memory with out",
       [](Call& c) { c.outputs.dv.data = c.out.data() + 20; }},
      {"DsinksIsLse", kBad, "dsinks: shares memory with lse",
       [](Call& c) { c.outputs.dsinks.data = c.lse.data(); }},
      {"DbiasIsBias", kBad, "dbias: shares memory with bias",
       [](Call& c) { c.outputs.dbias.data = c.bias.data(); }},
      {"DkIsDq", kBad, "dk: shares memory with dq",
       [](Call& c) { c.outputs.dk.data = c.dq.data() + 10; }},
      {"DsinksIsDbias", kBad, "dsinks: shares memory with dbias",
       [](Call& c) { c.outputs.dsinks.data = c.dbias.data() + 19; }},
  };
}

std::vector<Broken> OptionRules() {
  return {
      {"Target", kBad, "target", [](Call& c) { c.options.target = "FANCY"; }},
      {"Threads", kBad, "num_threads", [](Call& c) { c.options.num_threads = -1; }},
      {"Kernel", StatusCode::kUnsupported, "kernel: ?",
       [](Call& c) { c.options.kernel = static_cast<Kernel>(77); }},
      {"Accumulator", kBad, "accumulator: 9",
       [](Call& c) { c.options.accumulator = static_cast<Accumulator>(9); }},
      {"Flops", StatusCode::kBudgetExceeded, "max_flops",
       [](Call& c) { c.options.max_flops = 2 * 4 * 3 * 5 * 2 * (3 * 8 + 2 * 6) - 1; }},
      {"Scratch", StatusCode::kBudgetExceeded, "max_scratch_bytes",
       [](Call& c) { c.options.max_scratch_bytes = 10; }},
  };
}

class BackwardContractRuleTest : public ::testing::TestWithParam<Broken> {};

TEST_P(BackwardContractRuleTest, IsRefusedAndNothingIsWritten) {
  for (const Kernel kernel : {Kernel::kFlash, Kernel::kNaive}) {
    Call call;
    call.options.kernel = kernel;
    GetParam().break_it(call);
    const std::vector<float> before = call.Bytes();
    const Status status = call.Run();
    EXPECT_EQ(status.code(), GetParam().code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
    EXPECT_EQ(call.Bytes(), before);
  }
}

std::string BrokenName(const ::testing::TestParamInfo<Broken>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Inputs, BackwardContractRuleTest, ::testing::ValuesIn(InputRules()),
                         BrokenName);
INSTANTIATE_TEST_SUITE_P(Outputs, BackwardContractRuleTest, ::testing::ValuesIn(OutputRules()),
                         BrokenName);
INSTANTIATE_TEST_SUITE_P(Options, BackwardContractRuleTest, ::testing::ValuesIn(OptionRules()),
                         BrokenName);

// Packed: lengths 2 and 1 of queries, 3 and 2 of keys.
struct PackedCall {
  std::vector<float> values = std::vector<float>(5 * 2 * 4, 0.5f);
  std::vector<int32_t> cu_q = {0, 2, 3}, cu_k = {0, 3, 5};
  std::vector<float> lse = std::vector<float>(2 * 3, 0.0f);
  std::vector<float> dq = std::vector<float>(3 * 2 * 4, -7.0f);
  std::vector<float> dk = std::vector<float>(5 * 2 * 4, -7.0f);
  VarlenBackwardInputs inputs;
  BackwardOutputs outputs;

  PackedCall() {
    inputs.forward.q = ConstTensorView(values.data(), DType::kF32, {3, 2, 4});
    inputs.forward.k = inputs.forward.v = ConstTensorView(values.data(), DType::kF32, {5, 2, 4});
    inputs.forward.cu_seqlens_q = ConstTensorView(cu_q.data(), DType::kI32, {3});
    inputs.forward.cu_seqlens_k = ConstTensorView(cu_k.data(), DType::kI32, {3});
    inputs.dout = ConstTensorView(values.data(), DType::kF32, {3, 2, 4});
    outputs.dq = TensorView(dq.data(), DType::kF32, {3, 2, 4});
    outputs.dk = TensorView(dk.data(), DType::kF32, {5, 2, 4});
  }
};

TEST(BackwardContractTest, PackedRules) {
  const struct {
    const char* message;
    std::function<void(PackedCall&)> break_it;
  } rules[] = {
      {"dout: rank 4 is not 3", [](PackedCall& c) { c.inputs.dout.rank = 4; }},
      {"dout: seqlen_q 2 is not 3", [](PackedCall& c) { c.inputs.dout.shape[0] = 2; }},
      {"dq: rank 4 is not 3", [](PackedCall& c) { c.outputs.dq.rank = 4; }},
      {"dk: seqlen_k 4 is not 5", [](PackedCall& c) { c.outputs.dk.shape[0] = 4; }},
      {"cu_seqlens_q: value 4", [](PackedCall& c) { c.cu_q[2] = 4; }},
      {"lse: given without out",
       [](PackedCall& c) {
         c.inputs.lse = ConstTensorView(c.lse.data(), DType::kF32, {2, 3});
       }},
      {"dbias: asked for, but there is no bias",
       [](PackedCall& c) {
         c.outputs.dbias = TensorView(c.lse.data(), DType::kF32, {1, 1, 1, 1});
       }},
      {"dq: shares memory with cu_seqlens_k",
       [](PackedCall& c) { c.outputs.dq.data = c.cu_k.data(); }},
      {"dk: shares memory with dout", [](PackedCall& c) { c.inputs.dout.data = c.dk.data(); }},
  };
  PackedCall legal;
  ASSERT_TRUE(AttentionVarlenBackward(legal.inputs, {}, legal.outputs).ok());
  for (const auto& rule : rules) {
    PackedCall call;
    rule.break_it(call);
    const std::vector<int32_t> cu_k = call.cu_k;
    const Status status = AttentionVarlenBackward(call.inputs, {}, call.outputs);
    EXPECT_EQ(status.code(), kBad) << rule.message;
    EXPECT_THAT(status.message(), HasSubstr(rule.message));
    EXPECT_EQ(call.dq, std::vector<float>(call.dq.size(), -7.0f)) << rule.message;
    EXPECT_EQ(call.dk, std::vector<float>(call.dk.size(), -7.0f)) << rule.message;
    EXPECT_EQ(call.cu_k, cu_k);
  }
}

TEST(BackwardContractTest, ABudgetThatSufficesIsEnough) {
  Call call;
  call.options.num_threads = 1;
  call.options.max_flops = 2 * 4 * 3 * 5 * 2 * (4 * 8 + 3 * 6);  // S and dP once more, for dbias
  call.options.max_scratch_bytes = 4 << 20;
  const Status status = call.Run();
  EXPECT_TRUE(status.ok()) << status.message();
}

// One kv head is one piece, but threads share the tiles of its dbias, and what one element sums.
TEST(BackwardContractTest, TheBudgetCountsWhoWorksOnDbias) {
  constexpr int64_t kLength = 505;
  std::vector<float> rows(kLength, 0.5f), bias(kLength * kLength);
  std::vector<float> dbias(kLength * kLength, -7.0f);
  const ConstTensorView view(rows.data(), DType::kF32, {1, 1, kLength, 1});
  for (const int64_t size : {kLength, int64_t{1}}) {
    BackwardInputs inputs;
    inputs.forward.q = inputs.forward.k = inputs.forward.v = inputs.dout = view;
    inputs.forward.bias = ConstTensorView(bias.data(), DType::kF32, {1, 1, size, size});
    BackwardOutputs outputs;
    outputs.dbias = TensorView(dbias.data(), DType::kF32, {1, 1, size, size});
    ExecOptions options;
    options.max_scratch_bytes = 10;
    // Of machines with one core, too.
    const tbb::global_control two(tbb::global_control::max_allowed_parallelism, 2);
    tbb::task_arena arena(2);
    const Status status =
        arena.execute([&] { return AttentionBackward(inputs, {}, outputs, options); });
    EXPECT_EQ(status.code(), StatusCode::kBudgetExceeded);
    EXPECT_THAT(status.message(), HasSubstr("(2 workers)")) << size;
    EXPECT_EQ(dbias, std::vector<float>(dbias.size(), -7.0f));
  }
}

// Heads of dsinks are what threads share, but they take no scratch.
TEST(BackwardContractTest, TheBudgetDoesNotCountWhoWorksOnDsinks) {
  std::vector<float> rows(4 * 3, 0.5f), sinks(4, 0.5f), dsinks(4, -7.0f);
  const ConstTensorView one_head(rows.data(), DType::kF32, {1, 1, 3, 1});
  BackwardInputs inputs;
  inputs.forward.q = inputs.dout = ConstTensorView(rows.data(), DType::kF32, {1, 4, 3, 1});
  inputs.forward.k = inputs.forward.v = one_head;
  inputs.forward.sinks = ConstTensorView(sinks.data(), DType::kF32, {4});
  BackwardOutputs outputs;
  outputs.dsinks = TensorView(dsinks.data(), DType::kF32, {4});
  ExecOptions options;
  options.max_scratch_bytes = 10;
  const tbb::global_control two(tbb::global_control::max_allowed_parallelism, 2);
  tbb::task_arena arena(2);
  const Status status =
      arena.execute([&] { return AttentionBackward(inputs, {}, outputs, options); });
  EXPECT_EQ(status.code(), StatusCode::kBudgetExceeded);
  EXPECT_THAT(status.message(), HasSubstr("(1 workers)"));
}

// dq, dk and dv as slices of one tensor, as the gradient of a fused projection is laid out.
TEST(BackwardContractTest, GradientsMayBeSlicesOfOneTensor) {
  std::vector<float> qkv(3 * 3 * 2 * 4, 0.5f), dqkv(3 * 3 * 2 * 4, -7.0f), dout(3 * 2 * 4, 1.0f);
  const auto slice = [](std::vector<float>& packed, int which) {
    return TensorView(packed.data() + which * 8, DType::kF32, {1, 2, 3, 4}, {72, 4, 24, 1});
  };
  BackwardInputs inputs;
  inputs.forward.q = slice(qkv, 0);
  inputs.forward.k = slice(qkv, 1);
  inputs.forward.v = slice(qkv, 2);
  inputs.dout = ConstTensorView(dout.data(), DType::kF32, {1, 2, 3, 4});
  BackwardOutputs outputs;
  outputs.dq = slice(dqkv, 0);
  outputs.dk = slice(dqkv, 1);
  outputs.dv = slice(dqkv, 2);
  const Status status = AttentionBackward(inputs, {}, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  for (const float value : dqkv) EXPECT_NE(value, -7.0f);
}

}  // namespace
}  // namespace flashlane
