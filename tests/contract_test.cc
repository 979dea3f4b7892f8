// Every rule of flashlane/attention.h: broken, it is refused with a message that names the
// argument, and no output byte changes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "dispatch/view.h"
#include "flashlane/attention.h"
#include "flashlane/info.h"

namespace flashlane {
namespace {

using ::testing::HasSubstr;

// A legal call: B 2, Hq 4, Hkv 2, Sq 3, Sk 5, D 8, Dv 6, F32.
struct Call {
  std::vector<float> q = std::vector<float>(2 * 4 * 3 * 8, 0.5f);
  std::vector<float> k = std::vector<float>(2 * 2 * 5 * 8, 0.25f);
  std::vector<float> v = std::vector<float>(2 * 2 * 5 * 6, 1.0f);
  std::vector<float> terms = std::vector<float>(2 * 4 * 3 * 5, 0.0f);
  std::vector<uint8_t> bools = std::vector<uint8_t>(2 * 4 * 3 * 5, 1);
  std::vector<int64_t> lengths = {5, 4};
  std::vector<float> out = std::vector<float>(2 * 4 * 3 * 6, -7.0f);
  std::vector<float> lse = std::vector<float>(2 * 4 * 3, -7.0f);
  AttentionInputs inputs;
  AttentionParams params;
  AttentionOutputs outputs;
  ExecOptions options;

  Call() {
    inputs.q = ConstTensorView(q.data(), DType::kF32, {2, 4, 3, 8});
    inputs.k = ConstTensorView(k.data(), DType::kF32, {2, 2, 5, 8});
    inputs.v = ConstTensorView(v.data(), DType::kF32, {2, 2, 5, 6});
    outputs.out = TensorView(out.data(), DType::kF32, {2, 4, 3, 6});
    outputs.lse = TensorView(lse.data(), DType::kF32, {2, 4, 3});
  }
  ConstTensorView Terms(std::initializer_list<int64_t> shape) const {
    return ConstTensorView(terms.data(), DType::kF32, shape);
  }
  Status Run() const { return Attention(inputs, params, outputs, options); }
};

TEST(ContractTest, TheLegalCallIsLegal) {
  Call call;
  call.inputs.alibi_slopes = call.Terms({4});
  call.inputs.sinks = call.Terms({4});
  call.inputs.bias = call.Terms({2, 1, 3, 1});
  call.inputs.mask = ConstTensorView(call.bools.data(), DType::kBool, {1, 4, 1, 5});
  call.inputs.k_len = ConstTensorView(call.lengths.data(), DType::kI64, {2});
  call.inputs.q_start = ConstTensorView(call.lengths.data(), DType::kI64, {2});
  const Status status = call.Run();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_NE(call.out[0], -7.0f);
}

struct Broken {
  const char* name;
  StatusCode code;
  const char* message;  // a part of it
  std::function<void(Call&)> break_it;
};

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<Broken> ShapeRules() {
  return {
      {"QRank", kBad, "q: rank 3 is not 4",
       [](Call& c) {
         c.inputs.q = ConstTensorView(c.q.data(), DType::kF32, {8, 3, 8});
       }},
      {"QAbsent", kBad, "q: rank 0 is not 4", [](Call& c) { c.inputs.q = {}; }},
      {"VAbsent", kBad, "v: rank 0 is not 4", [](Call& c) { c.inputs.v = {}; }},
      {"QNull", kBad, "q: data is null", [](Call& c) { c.inputs.q.data = nullptr; }},
      {"OutNull", kBad, "out: data is null", [](Call& c) { c.outputs.out.data = nullptr; }},
      {"QMisaligned", kBad, "q: data is not aligned",
       [](Call& c) { c.inputs.q.data = reinterpret_cast<const char*>(c.q.data()) + 2; }},
      {"QDType", kBad, "q: dtype I64 is not one of F32, F64, BF16, F16",
       [](Call& c) { c.inputs.q.dtype = DType::kI64; }},
      {"KDType", kBad, "k: dtype F64 is not F32", [](Call& c) { c.inputs.k.dtype = DType::kF64; }},
      {"OutDType", kBad, "out: dtype BF16", [](Call& c) { c.outputs.out.dtype = DType::kBF16; }},
      {"LseDType", kBad, "lse: dtype F64", [](Call& c) { c.outputs.lse.dtype = DType::kF64; }},
      {"KDTypeUnknown", kBad, "k: dtype 42 is not an element type",
       [](Call& c) { c.inputs.k.dtype = static_cast<DType>(42); }},
      {"OutDTypeUnknown", kBad, "out: dtype 42 is not an element type",
       [](Call& c) { c.outputs.out.dtype = static_cast<DType>(42); }},
      {"TooManyDimensions", kBad, "q: rank 5 is not 4",
       [](Call& c) {
         c.inputs.q = ConstTensorView(c.q.data(), DType::kF32, {1, 2, 4, 3, 8});
       }},
      {"StridesMismatch", kBad, "q: the numbers of sizes and strides differ",
       [](Call& c) {
         c.inputs.q = ConstTensorView(c.q.data(), DType::kF32, {2, 4, 3, 8}, {96, 24, 8});
       }},
      {"LseStridesMismatch", kBad, "lse: the numbers of sizes and strides differ",
       [](Call& c) {
         c.outputs.lse = TensorView(c.lse.data(), DType::kF32, {2, 4, 3}, {12, 3});
       }},
      {"MaskStridesMismatch", kBad, "mask: the numbers of sizes and strides differ",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.bools.data(), DType::kBool, {1, 1, 1, 5}, {1});
       }},
      {"HugeEmpty", kBad, "more elements than memory can hold",
       [](Call& c) {
         c.inputs.q = ConstTensorView(c.q.data(), DType::kF32, {int64_t{1} << 62, 0, 8, 64});
       }},
      {"NegativeSize", kBad, "q: shape [2, 4, -3, 8] has a negative size",
       [](Call& c) { c.inputs.q.shape[2] = -3; }},
      {"HugeSize", kBad, "more elements than memory can hold",
       [](Call& c) { c.inputs.q.shape[2] = int64_t{1} << 60; }},
      {"HugeRowOfNothing", kBad, "more elements than memory can hold",
       [](Call& c) {
         c.inputs.q = ConstTensorView(c.q.data(), DType::kF32, {0, 4, 3, int64_t{1} << 61});
       }},
      {"KBatch", kBad, "k: batch 1 is not 2", [](Call& c) { c.inputs.k.shape[0] = 1; }},
      {"Group", kBad, "k: num_heads 4 is not a multiple of num_kv_heads 3",
       [](Call& c) {
         c.inputs.k = ConstTensorView(c.terms.data(), DType::kF32, {2, 3, 2, 8});
         c.inputs.v = ConstTensorView(c.terms.data(), DType::kF32, {2, 3, 2, 6});
       }},
      {"KHeadDim", kBad, "k: head_dim 7 is not 8", [](Call& c) { c.inputs.k.shape[3] = 7; }},
      {"VHeads", kBad, "v: num_kv_heads 1 is not 2", [](Call& c) { c.inputs.v.shape[1] = 1; }},
      {"VLength", kBad, "v: seqlen_k 4 is not 5", [](Call& c) { c.inputs.v.shape[2] = 4; }},
      {"OutLength", kBad, "out: seqlen_q 2 is not 3", [](Call& c) { c.outputs.out.shape[2] = 2; }},
      {"OutWidth", kBad, "out: head_dim_v 5 is not 6", [](Call& c) { c.outputs.out.shape[3] = 5; }},
      {"LseHeads", kBad, "lse: num_heads 3 is not 4", [](Call& c) { c.outputs.lse.shape[1] = 3; }},
      {"NoHeads", kBad, "k: number of heads 0 is below 1",
       [](Call& c) { c.inputs.k.shape[1] = 0; }},
      {"InnerStride", kBad, "k: stride 2 of dimension 3 is not 1",
       [](Call& c) { c.inputs.k.strides[3] = 2; }},
      {"NegativeStride", kBad, "v: stride -6 of dimension 2 is negative",
       [](Call& c) { c.inputs.v.strides[2] = -6; }},
      {"HugeStride", kBad, "reaches beyond any address",
       [](Call& c) { c.inputs.v.strides[0] = int64_t{1} << 62; }},
      {"OutBroadcast", kBad, "out: stride 0 makes elements of an output overlap",
       [](Call& c) { c.outputs.out.strides[1] = 0; }},
      {"OutOverlap", kBad, "out: stride 5 makes elements of an output overlap",
       [](Call& c) { c.outputs.out.strides[2] = 5; }},
  };
}

std::vector<Broken> OperandRules() {
  return {
      {"AlibiHeads", kBad, "alibi_slopes: num_heads 2 is not 4",
       [](Call& c) { c.inputs.alibi_slopes = c.Terms({2}); }},
      {"AlibiDType", kBad, "alibi_slopes: dtype BF16",
       [](Call& c) { c.inputs.alibi_slopes = ConstTensorView(c.terms.data(), DType::kBF16, {4}); }},
      {"SinksRank", kBad, "sinks: rank 2 is not 1",
       [](Call& c) {
         c.inputs.sinks = c.Terms({4, 1});
       }},
      {"BiasShape", kBad, "bias: seqlen_q 2 is neither 1 nor 3",
       [](Call& c) {
         c.inputs.bias = c.Terms({1, 1, 2, 5});
       }},
      {"BiasDType", kBad, "bias: dtype F64",
       [](Call& c) {
         c.inputs.bias = ConstTensorView(c.terms.data(), DType::kF64, {1, 1, 1, 5});
       }},
      {"BiasInnerStride", kBad, "bias: stride 2 of dimension 3 is neither 1 nor 0",
       [](Call& c) {
         c.inputs.bias = c.Terms({1, 1, 1, 5});
         c.inputs.bias.strides[3] = 2;
       }},
      {"MaskDType", kBad, "mask: dtype F32 is not BOOL",
       [](Call& c) {
         c.inputs.mask = c.Terms({1, 1, 3, 5});
       }},
      {"KLenTooLong", kBad, "k_len: value 6 is not within [0, 5]",
       [](Call& c) { c.params.k_len = 6; }},
      {"KLenNegative", kBad, "k_len: value -1", [](Call& c) { c.params.k_len = -1; }},
      {"KLensTooLong", kBad, "k_len: value 6 at 1 is not within [0, 5]",
       [](Call& c) {
         c.lengths = {5, 6};
         c.inputs.k_len = ConstTensorView(c.lengths.data(), DType::kI64, {2});
       }},
      {"KLenTwice", kBad, "k_len: given both",
       [](Call& c) {
         c.inputs.k_len = ConstTensorView(c.lengths.data(), DType::kI64, {2});
         c.params.k_len = 3;
       }},
      {"KLenDType", kBad, "k_len: dtype F32", [](Call& c) { c.inputs.k_len = c.Terms({2}); }},
      {"QStartTwice", kBad, "q_start: given both",
       [](Call& c) {
         c.inputs.q_start = ConstTensorView(c.lengths.data(), DType::kI64, {2});
         c.params.q_start = QStart::BottomRight();
       }},
      {"QStartKind", kBad, "q_start: kind 7 is neither",
       [](Call& c) { c.params.q_start.kind = static_cast<QStart::Kind>(7); }},
      {"QStartBoth", kBad, "q_start: value 5 given together with kBottomRight",
       [](Call& c) {
         c.params.q_start = QStart::BottomRight();
         c.params.q_start.value = 5;
       }},
      {"QStartFar", kBad, "q_start: value",
       [](Call& c) { c.params.q_start = std::numeric_limits<int64_t>::min(); }},
      {"ScaleNan", kBad, "softmax_scale", [](Call& c) { c.params.softmax_scale = kNan; }},
      {"ScaleBeyondF32", kBad, "softmax_scale", [](Call& c) { c.params.softmax_scale = 1e300; }},
      {"SoftcapZero", kBad, "softcap", [](Call& c) { c.params.softcap = 0.0; }},
      {"SoftcapNegative", kBad, "softcap", [](Call& c) { c.params.softcap = -3.0; }},
      {"SoftcapInf", kBad, "softcap", [](Call& c) { c.params.softcap = kInf; }},
      {"SoftcapNan", kBad, "softcap", [](Call& c) { c.params.softcap = kNan; }},
      {"SoftcapBelowF32", kBad, "softcap", [](Call& c) { c.params.softcap = 1e-300; }},
      {"WindowLeft", kBad, "window_size_left: value -1 is negative",
       [](Call& c) { c.params.window_size_left = -1; }},
      {"WindowRight", kBad, "window_size_right: value -9 is negative",
       [](Call& c) { c.params.window_size_right = -9; }},
      {"OutIsQ", kBad, "out: shares memory with q",
       [](Call& c) { c.outputs.out.data = c.q.data(); }},
      {"LseIsOut", kBad, "lse: shares memory with out",
       [](Call& c) { c.outputs.lse.data = c.out.data() + 100; }},
      {"LseInV", kBad, "lse: shares memory with v",
       [](Call& c) { c.outputs.lse.data = c.v.data() + 8; }},
  };
}

std::vector<Broken> OptionRules() {
  return {
      {"Threads", kBad, "num_threads: value -2 is negative",
       [](Call& c) { c.options.num_threads = -2; }},
      {"TargetUnknown", kBad, "target: 'AVX9' is not a target",
       [](Call& c) { c.options.target = "AVX9"; }},
      {"TargetEmpty", kBad, "target: '' is not a target", [](Call& c) { c.options.target = ""; }},
      {"TargetElsewhere", StatusCode::kUnsupported, "is not in this build",
       [](Call& c) { c.options.target = "RVV"; }},
      {"TargetSwitchedOff", StatusCode::kUnsupported, "is not in this build",
       [](Call& c) { c.options.target = "AVX10_2"; }},
      {"DTypeUnsupported", StatusCode::kUnsupported,
       "kernel: ? is no attention kernel for dtype F32",
       [](Call& c) { c.options.kernel = static_cast<Kernel>(77); }},
      {"AccumulatorUnknown", kBad, "accumulator: 9 is not one of",
       [](Call& c) { c.options.accumulator = static_cast<Accumulator>(9); }},
      {"Flops", StatusCode::kBudgetExceeded, "max_flops: the call needs 3360, above 3359",
       [](Call& c) { c.options.max_flops = 3359; }},
      {"Scratch", StatusCode::kBudgetExceeded, "max_scratch_bytes",
       [](Call& c) { c.options.max_scratch_bytes = 100; }},
  };
}

class ContractRuleTest : public ::testing::TestWithParam<Broken> {};

TEST_P(ContractRuleTest, IsRefusedAndNothingIsWritten) {
  Call call;
  GetParam().break_it(call);
  const std::vector<float> q = call.q, k = call.k, v = call.v;
  const Status status = call.Run();
  EXPECT_EQ(status.code(), GetParam().code) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
  EXPECT_EQ(call.out, std::vector<float>(call.out.size(), -7.0f));
  EXPECT_EQ(call.lse, std::vector<float>(call.lse.size(), -7.0f));
  EXPECT_EQ(call.q, q);
  EXPECT_EQ(call.k, k);
  EXPECT_EQ(call.v, v);
}

std::string BrokenName(const ::testing::TestParamInfo<Broken>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Shapes, ContractRuleTest, ::testing::ValuesIn(ShapeRules()), BrokenName);
INSTANTIATE_TEST_SUITE_P(Operands, ContractRuleTest, ::testing::ValuesIn(OperandRules()),
                         BrokenName);
INSTANTIATE_TEST_SUITE_P(Options, ContractRuleTest, ::testing::ValuesIn(OptionRules()), BrokenName);

TEST(ContractTest, ABudgetThatSufficesIsEnough) {
  Call call;
  call.options.max_flops = 2 * 4 * 3 * 5 * 2 * (8 + 6);
  EXPECT_TRUE(call.Run().ok());
  call.options.num_threads = 1;
  call.options.max_scratch_bytes = 2 << 20;
  EXPECT_TRUE(call.Run().ok());
}

TEST(ContractTest, StridesOfSingleElementDimensionsAreFree) {
  Call call;
  call.inputs.q = ConstTensorView(call.q.data(), DType::kF32, {1, 4, 1, 8}, {-5, 8, 1 << 30, 1});
  call.inputs.k = ConstTensorView(call.k.data(), DType::kF32, {1, 2, 5, 8});
  call.inputs.v = ConstTensorView(call.v.data(), DType::kF32, {1, 2, 5, 6});
  call.outputs.out = TensorView(call.out.data(), DType::kF32, {1, 4, 1, 6}, {0, 6, 0, 1});
  call.outputs.lse = {};
  const Status status = call.Run();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ContractTest, OutMayBeASliceOfTheTensorThatHoldsQkv) {
  // [S = 3, 4, H = 2, D = 4]: q, k, v and out interleaved row by row.
  std::vector<float> packed(3 * 4 * 2 * 4, 0.5f);
  const auto slice = [&](int which) {
    return TensorView(packed.data() + which * 8, DType::kF32, {1, 2, 3, 4}, {96, 4, 32, 1});
  };
  AttentionInputs inputs;
  inputs.q = slice(0);
  inputs.k = slice(1);
  inputs.v = slice(2);
  AttentionOutputs outputs;
  outputs.out = slice(3);
  const Status status = Attention(inputs, {}, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_FALSE(MayOverlap(slice(0), slice(3)));
  EXPECT_TRUE(MayOverlap(slice(2), slice(2)));
  TensorView shifted = slice(2);
  shifted.data = packed.data() + 17;
  EXPECT_TRUE(MayOverlap(slice(2), shifted));
}

TEST(ContractTest, ViewsFromArraysAndFromBshd) {
  const int64_t shape[] = {2, 4, 3, 8};
  const int64_t strides[] = {96, 8, 32, 1};
  const std::vector<float> data(2 * 4 * 3 * 8);
  const ConstTensorView from_array(data.data(), DType::kF32, 4, shape, strides);
  const ConstTensorView bshd = ConstTensorView::FromBshd(data.data(), DType::kF32, 2, 3, 4, 8);
  for (int d = 0; d < 4; ++d) {
    EXPECT_EQ(from_array.shape[d], bshd.shape[d]);
    EXPECT_EQ(from_array.strides[d], bshd.strides[d]);
  }
  const ConstTensorView contiguous(data.data(), DType::kF32, 4, shape);
  EXPECT_EQ(contiguous.strides[0], 96);
  EXPECT_EQ(contiguous.strides[1], 24);
}

TEST(ContractTest, ZeroSizesAreLegal) {
  for (const int64_t batch : {0, 1}) {
    for (const int64_t seqlen_q : {0, 2}) {
      Call call;
      call.inputs.q = ConstTensorView(call.q.data(), DType::kF32, {batch, 4, seqlen_q, 8});
      call.inputs.k = ConstTensorView(nullptr, DType::kF32, {batch, 2, 0, 8});
      call.inputs.v = ConstTensorView(nullptr, DType::kF32, {batch, 2, 0, 6});
      call.outputs.out = TensorView(call.out.data(), DType::kF32, {batch, 4, seqlen_q, 6});
      call.outputs.lse = TensorView(call.lse.data(), DType::kF32, {batch, 4, seqlen_q});
      const Status status = call.Run();
      ASSERT_TRUE(status.ok()) << status.message();
      const size_t rows = static_cast<size_t>(batch * 4 * seqlen_q);
      for (size_t i = 0; i < call.lse.size(); ++i) {
        EXPECT_EQ(call.lse[i], i < rows ? -std::numeric_limits<float>::infinity() : -7.0f);
      }
      for (size_t i = 0; i < call.out.size(); ++i) {
        EXPECT_EQ(call.out[i], i < rows * 6 ? 0.0f : -7.0f);
      }
    }
  }
}

TEST(StatusTest, CodesHaveNames) {
  EXPECT_STREQ(StatusCodeName(StatusCode::kOk), "OK");
  EXPECT_STREQ(StatusCodeName(StatusCode::kInvalidArgument), "InvalidArgument");
  EXPECT_STREQ(StatusCodeName(StatusCode::kBudgetExceeded), "BudgetExceeded");
}

TEST(InfoTest, TheBaselineIsSupportedAndTheChosenTargetIsTheBest) {
  ASSERT_FALSE(SupportedTargets().empty());
  std::string chosen;
  ASSERT_TRUE(ChosenTarget(&chosen).ok());
  if (std::getenv("FLASHLANE_TARGET") == nullptr) {
    EXPECT_EQ(chosen, SupportedTargets().front());
  }
  for (const std::string& name : SupportedTargets()) {
    EXPECT_THAT(CompiledTargets(), ::testing::Contains(name));
  }
}

}  // namespace
}  // namespace flashlane
