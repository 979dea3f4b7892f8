// Every rule of flashlane/paged.h: broken, it is refused with a message that names the argument,
// and no output byte changes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "flashlane/paged.h"

namespace flashlane {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kGarbage = 0xFFFFFFFFu;

// A legal call: B 2, Hq 4, Hkv 2, Sq 3, D 8, Dv 6, F32; 5 blocks of 4 tokens, 3 blocks at most.
struct Call {
  std::vector<float> q = std::vector<float>(2 * 4 * 3 * 8, 0.5f);
  std::vector<float> k = std::vector<float>(5 * 4 * 2 * 8, 0.25f);
  std::vector<float> v = std::vector<float>(5 * 4 * 2 * 6, 1.0f);
  std::vector<uint32_t> table = {4, 0, kGarbage, 1, kGarbage, kGarbage};
  std::vector<int64_t> lengths = {7, 4};
  std::vector<int64_t> cu = {0, 2, 6};
  std::vector<float> terms = std::vector<float>(16, 0.5f);
  std::vector<uint8_t> bools = std::vector<uint8_t>(2 * 4 * 3 * 3, 1);
  std::vector<float> out = std::vector<float>(2 * 4 * 3 * 6, -7.0f);
  std::vector<float> lse = std::vector<float>(2 * 4 * 3, -7.0f);
  PagedInputs inputs;
  AttentionParams params;
  AttentionOutputs outputs;
  ExecOptions options;

  Call() {
    inputs.q = ConstTensorView(q.data(), DType::kF32, {2, 4, 3, 8});
    inputs.k_cache = ConstTensorView(k.data(), DType::kF32, {5, 4, 2, 8});
    inputs.v_cache = ConstTensorView(v.data(), DType::kF32, {5, 4, 2, 6});
    inputs.block_table = ConstTensorView(table.data(), DType::kU32, {2, 3});
    inputs.context_lens = ConstTensorView(lengths.data(), DType::kI64, {2});
    outputs.out = TensorView(out.data(), DType::kF32, {2, 4, 3, 6});
    outputs.lse = TensorView(lse.data(), DType::kF32, {2, 4, 3});
    options.kernel = Kernel::kNaive;
  }
  // The same queries, packed: two of the first sequence and four of the second.
  void Pack() {
    inputs.q = ConstTensorView(q.data(), DType::kF32, {6, 4, 8});
    inputs.cu_seqlens_q = ConstTensorView(cu.data(), DType::kI64, {3});
    outputs.out = TensorView(out.data(), DType::kF32, {6, 4, 6});
    outputs.lse = TensorView(lse.data(), DType::kF32, {4, 6});
  }
  Status Run() const { return AttentionPaged(inputs, params, outputs, options); }
};

TEST(PagedContractTest, TheLegalCallsAreLegal) {
  Call call;
  call.inputs.alibi_slopes = ConstTensorView(call.terms.data(), DType::kF32, {4});
  call.inputs.sinks = ConstTensorView(call.terms.data(), DType::kF32, {4});
  call.inputs.mask = ConstTensorView(call.bools.data(), DType::kBool, {2, 4, 3, 3});
  call.params.causal = true;
  call.params.window_size_left = 3;
  const Status status = call.Run();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_NE(call.out.back(), -7.0f);
  EXPECT_NE(call.lse.back(), -7.0f);

  Call packed;
  packed.Pack();
  const Status packed_status = packed.Run();
  EXPECT_TRUE(packed_status.ok()) << packed_status.message();
  EXPECT_NE(packed.out.back(), -7.0f);

  Call bare;  // neither lse nor anything else that is optional
  bare.outputs.lse = {};
  EXPECT_TRUE(bare.Run().ok());
  for (const auto& shape : {std::initializer_list<int64_t>{1, 1, 3, 3}, {2, 1, 3, 3}}) {
    bare.inputs.mask = ConstTensorView(bare.bools.data(), DType::kBool, shape);
    EXPECT_TRUE(bare.Run().ok());
  }
}

TEST(PagedContractTest, AFullTableIsLegal) {
  Call call;
  call.table = {4, 0, 3, 1, 2, 4};
  call.lengths = {12, 12};
  const Status status = call.Run();
  EXPECT_TRUE(status.ok()) << status.message();
}

struct Broken {
  const char* name;
  const char* message;  // a part of it
  std::function<void(Call&)> break_it;
};

std::vector<Broken> TensorRules() {
  return {
      {"QRank", "q: rank 3 is not 4",
       [](Call& c) {
         c.inputs.q = ConstTensorView(c.q.data(), DType::kF32, {8, 3, 8});
       }},
      {"QDType", "q: dtype U32 is not one of F32, F64, BF16, F16",
       [](Call& c) { c.inputs.q.dtype = DType::kU32; }},
      {"QNull", "q: data is null", [](Call& c) { c.inputs.q.data = nullptr; }},
      {"QNoHeads", "q: number of heads 0 is below 1", [](Call& c) { c.inputs.q.shape[1] = 0; }},
      {"QNoWidth", "q: head size 0 is below 1", [](Call& c) { c.inputs.q.shape[3] = 0; }},
      {"KAbsent", "k_cache: rank 0 is not 4", [](Call& c) { c.inputs.k_cache = {}; }},
      {"VAbsent", "v_cache: rank 0 is not 4", [](Call& c) { c.inputs.v_cache = {}; }},
      {"KDType", "k_cache: dtype BF16 is not F32",
       [](Call& c) { c.inputs.k_cache.dtype = DType::kBF16; }},
      {"VDType", "v_cache: dtype F16 is not F32",
       [](Call& c) { c.inputs.v_cache.dtype = DType::kF16; }},
      {"KHeadDim", "k_cache: head_dim 7 is not 8", [](Call& c) { c.inputs.k_cache.shape[3] = 7; }},
      {"VBlocks", "v_cache: num_blocks 4 is not 5", [](Call& c) { c.inputs.v_cache.shape[0] = 4; }},
      {"VBlockSize", "v_cache: block_size 3 is not 4",
       [](Call& c) { c.inputs.v_cache.shape[1] = 3; }},
      {"VHeads", "v_cache: num_kv_heads 1 is not 2",
       [](Call& c) { c.inputs.v_cache.shape[2] = 1; }},
      {"BlockSizeZero", "k_cache: block_size 0 is below 1",
       [](Call& c) { c.inputs.k_cache.shape[1] = c.inputs.v_cache.shape[1] = 0; }},
      {"KNoHeads", "k_cache: number of heads 0 is below 1",
       [](Call& c) { c.inputs.k_cache.shape[2] = 0; }},
      {"VNoWidth", "v_cache: head size 0 is below 1",
       [](Call& c) { c.inputs.v_cache.shape[3] = 0; }},
      {"Group", "k_cache: num_heads 4 is not a multiple of num_kv_heads 3",
       [](Call& c) {
         c.inputs.k_cache = ConstTensorView(c.k.data(), DType::kF32, {5, 2, 3, 8});
         c.inputs.v_cache = ConstTensorView(c.v.data(), DType::kF32, {5, 2, 3, 6});
       }},
      {"KInnerStride", "k_cache: stride 2 of dimension 3 is not 1",
       [](Call& c) { c.inputs.k_cache.strides[3] = 2; }},
      {"VNegativeStride", "v_cache: stride -48 of dimension 0 is negative",
       [](Call& c) { c.inputs.v_cache.strides[0] = -48; }},
      {"KStridesMismatch", "k_cache: the numbers of sizes and strides differ",
       [](Call& c) {
         c.inputs.k_cache = ConstTensorView(c.k.data(), DType::kF32, {5, 4, 2, 8}, {64, 16, 8});
       }},
      {"KMisaligned", "k_cache: data is not aligned",
       [](Call& c) { c.inputs.k_cache.data = reinterpret_cast<const char*>(c.k.data()) + 2; }},
      {"OutRank", "out: rank 3 is not 4",
       [](Call& c) {
         c.outputs.out = TensorView(c.out.data(), DType::kF32, {8, 3, 6});
       }},
      {"OutDType", "out: dtype F16", [](Call& c) { c.outputs.out.dtype = DType::kF16; }},
      {"OutBatch", "out: batch 1 is not 2", [](Call& c) { c.outputs.out.shape[0] = 1; }},
      {"OutWidth", "out: head_dim_v 5 is not 6", [](Call& c) { c.outputs.out.shape[3] = 5; }},
      {"OutOverlap", "out: stride 5 makes elements of an output overlap",
       [](Call& c) { c.outputs.out.strides[2] = 5; }},
      {"LseShape", "lse: num_heads 3 is not 4", [](Call& c) { c.outputs.lse.shape[1] = 3; }},
      {"LseDType", "lse: dtype F64", [](Call& c) { c.outputs.lse.dtype = DType::kF64; }},
      {"OutIsQ", "out: shares memory with q", [](Call& c) { c.outputs.out.data = c.q.data(); }},
      {"OutInK", "out: shares memory with k_cache",
       [](Call& c) { c.outputs.out.data = c.k.data() + 20; }},
      {"OutInV", "out: shares memory with v_cache",
       [](Call& c) { c.outputs.out.data = c.v.data() + 20; }},
      {"LseIsOut", "lse: shares memory with out",
       [](Call& c) { c.outputs.lse.data = c.out.data() + 100; }},
      {"KIsOut", "out: shares memory with k_cache",
       [](Call& c) {
         c.inputs.k_cache = ConstTensorView(c.out.data(), DType::kF32, {5, 4, 2, 8}, {0, 0, 8, 1});
       }},
      {"TableInOut", "out: shares memory with block_table",
       [](Call& c) {
         c.lengths = {0, 0};
         c.inputs.block_table.data = c.out.data();
       }},
      {"LensInLse", "lse: shares memory with context_lens",
       [](Call& c) {
         c.lse.assign(c.lse.size(), 0.0f);
         c.inputs.context_lens = ConstTensorView(c.lse.data(), DType::kI32, {2});
       }},
      {"MaskInOut", "out: shares memory with mask",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.out.data(), DType::kBool, {1, 1, 3, 3});
       }},
      {"SinksInLse", "lse: shares memory with sinks",
       [](Call& c) { c.inputs.sinks = ConstTensorView(c.lse.data(), DType::kF32, {4}); }},
  };
}

std::vector<Broken> TableRules() {
  return {
      {"TableAbsent", "block_table: rank 0 is not 2", [](Call& c) { c.inputs.block_table = {}; }},
      {"TableRank", "block_table: rank 1 is not 2",
       [](Call& c) { c.inputs.block_table = ConstTensorView(c.table.data(), DType::kU32, {6}); }},
      {"TableDType", "block_table: dtype I64 is not U32, nor I32",
       [](Call& c) {
         c.inputs.block_table = ConstTensorView(c.lengths.data(), DType::kI64, {2, 1});
       }},
      {"TableBatch", "block_table: batch 3 is not 2",
       [](Call& c) {
         c.inputs.block_table = ConstTensorView(c.table.data(), DType::kU32, {3, 2});
       }},
      {"TableNull", "block_table: data is null",
       [](Call& c) { c.inputs.block_table.data = nullptr; }},
      {"TableNegativeStride", "block_table: stride -1 of dimension 1 is negative",
       [](Call& c) { c.inputs.block_table.strides[1] = -1; }},
      {"EntryBeyondPool", "block_table: value 5 at [0, 1] is not below num_blocks 5",
       [](Call& c) { c.table[1] = 5; }},
      {"EntryOfTheSecond", "block_table: value 4294967295 at [1, 0] is not below num_blocks 5",
       [](Call& c) { c.table[3] = kGarbage; }},
      {"EntryOfAPartialBlock", "block_table: value 4294967295 at [1, 1] is not below",
       [](Call& c) { c.lengths[1] = 5; }},
      {"EntryNegative", "block_table: value -1 at [1, 0] is negative",
       [](Call& c) {
         c.inputs.block_table.dtype = DType::kI32;
         c.table[3] = kGarbage;
       }},
      {"EntryStrided", "block_table: value 9 at [1, 1] is not below num_blocks 5",
       [](Call& c) {
         c.table = {4, 1, 0, 9, kGarbage, kGarbage};
         c.lengths[1] = 8;
         c.inputs.block_table.strides[0] = 1;
         c.inputs.block_table.strides[1] = 2;
       }},
      {"NoBlocks", "block_table: value 4 at [0, 0] is not below num_blocks 0",
       [](Call& c) { c.inputs.k_cache.shape[0] = c.inputs.v_cache.shape[0] = 0; }},
      {"LensAbsent", "context_lens: rank 0 is not 1", [](Call& c) { c.inputs.context_lens = {}; }},
      {"LensLength", "context_lens: length 1 is not 2",
       [](Call& c) { c.inputs.context_lens.shape[0] = 1; }},
      {"LensDType", "context_lens: dtype F32 is not one of I32, I64, U32",
       [](Call& c) { c.inputs.context_lens = ConstTensorView(c.terms.data(), DType::kF32, {2}); }},
      {"LensNegative", "context_lens: value -1 at 1 is not within [0, 12]",
       [](Call& c) { c.lengths[1] = -1; }},
      {"LensBeyondTable",
       "context_lens: value 13 at 0 is not within [0, 12], the tokens block_table has room for",
       [](Call& c) { c.lengths[0] = 13; }},
      {"LensHuge", "context_lens: value 9223372036854775807 at 1 is not within",
       [](Call& c) { c.lengths[1] = std::numeric_limits<int64_t>::max(); }},
      {"CuQRank", "q: rank 4 is not 3",
       [](Call& c) { c.inputs.cu_seqlens_q = ConstTensorView(c.cu.data(), DType::kI64, {3}); }},
      {"CuOutRank", "out: rank 4 is not 3",
       [](Call& c) {
         c.Pack();
         c.outputs.out = TensorView(c.out.data(), DType::kF32, {6, 4, 1, 6});
       }},
      {"CuLseRank", "lse: rank 3 is not 2",
       [](Call& c) {
         c.Pack();
         c.outputs.lse = TensorView(c.lse.data(), DType::kF32, {1, 4, 6});
       }},
      {"CuLseShape", "lse: num_heads 6 is not 4",
       [](Call& c) {
         c.Pack();
         c.outputs.lse = TensorView(c.lse.data(), DType::kF32, {6, 4});
       }},
      {"CuRank", "cu_seqlens_q: rank 2 is not 1",
       [](Call& c) {
         c.Pack();
         c.inputs.cu_seqlens_q.rank = 2;
       }},
      {"CuEmpty", "cu_seqlens_q: length 0 is below 1",
       [](Call& c) {
         c.Pack();
         c.inputs.cu_seqlens_q.shape[0] = 0;
       }},
      {"CuDType", "cu_seqlens_q: dtype F32",
       [](Call& c) {
         c.Pack();
         c.inputs.cu_seqlens_q = ConstTensorView(c.terms.data(), DType::kF32, {3});
       }},
      {"CuFirst", "cu_seqlens_q: value 1 at 0 is not 0",
       [](Call& c) {
         c.Pack();
         c.cu[0] = 1;
       }},
      {"CuDescends", "cu_seqlens_q: value 1 at 2 is below the one before it, 2",
       [](Call& c) {
         c.Pack();
         c.cu[2] = 1;
       }},
      {"CuBeyond", "cu_seqlens_q: value 7 at 2 is not within [0, 6]",
       [](Call& c) {
         c.Pack();
         c.cu[2] = 7;
       }},
      {"CuTableBatch", "block_table: batch 2 is not 1",
       [](Call& c) {
         c.Pack();
         c.inputs.cu_seqlens_q.shape[0] = 2;
       }},
      {"CuWithMask", "mask: given together with cu_seqlens_q",
       [](Call& c) {
         c.Pack();
         c.inputs.mask = ConstTensorView(c.bools.data(), DType::kBool, {1, 1, 3, 3});
       }},
      {"OutIsCu", "out: shares memory with cu_seqlens_q",
       [](Call& c) {
         c.Pack();
         c.out.assign(c.out.size(), 0.0f);
         c.inputs.cu_seqlens_q.data = c.out.data();
       }},
  };
}

std::vector<Broken> TermRules() {
  return {
      {"AlibiHeads", "alibi_slopes: num_heads 2 is not 4",
       [](Call& c) { c.inputs.alibi_slopes = ConstTensorView(c.terms.data(), DType::kF32, {2}); }},
      {"SinksDType", "sinks: dtype F64",
       [](Call& c) { c.inputs.sinks = ConstTensorView(c.terms.data(), DType::kF64, {4}); }},
      {"MaskDType", "mask: dtype F32 is not BOOL",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.terms.data(), DType::kF32, {1, 1, 3, 3});
       }},
      {"MaskQueries", "mask: seqlen_q 1 is not 3",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.bools.data(), DType::kBool, {1, 1, 1, 3});
       }},
      {"MaskKeys", "mask: seqlen_q 7 is not 3",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.bools.data(), DType::kBool, {1, 1, 3, 7});
       }},
      {"MaskBatch", "mask: batch 3 is not 2",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.bools.data(), DType::kBool, {3, 1, 3, 3});
       }},
      {"MaskHeads", "mask: num_heads 2 is not 4",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.bools.data(), DType::kBool, {1, 2, 3, 3});
       }},
      {"MaskInnerStride", "mask: stride 2 of dimension 3 is neither 1 nor 0",
       [](Call& c) {
         c.inputs.mask = ConstTensorView(c.bools.data(), DType::kBool, {1, 1, 3, 3});
         c.inputs.mask.strides[3] = 2;
       }},
      {"KLen", "k_len: value 3 given, but context_lens says it",
       [](Call& c) { c.params.k_len = 3; }},
      {"QStart", "q_start: given, but context_lens says", [](Call& c) { c.params.q_start = 3; }},
      {"QStartNamed", "q_start: given, but context_lens says",
       [](Call& c) { c.params.q_start = QStart::BottomRight(); }},
      {"Scale", "softmax_scale",
       [](Call& c) { c.params.softmax_scale = std::numeric_limits<double>::quiet_NaN(); }},
      {"Softcap", "softcap: value", [](Call& c) { c.params.softcap = 0.0; }},
      {"WindowLeft", "window_size_left: value -1 is negative",
       [](Call& c) { c.params.window_size_left = -1; }},
      {"WindowRight", "window_size_right: value -1 is negative",
       [](Call& c) { c.params.window_size_right = -1; }},
      {"Threads", "num_threads: value -2 is negative", [](Call& c) { c.options.num_threads = -2; }},
  };
}

class PagedRuleTest : public ::testing::TestWithParam<Broken> {};

TEST_P(PagedRuleTest, IsRefusedAndNothingIsWritten) {
  Call call;
  GetParam().break_it(call);
  const Call before = call;
  const Status status = call.Run();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
  EXPECT_EQ(call.out, before.out);
  EXPECT_EQ(call.lse, before.lse);
  EXPECT_EQ(call.q, before.q);
  EXPECT_EQ(call.k, before.k);
  EXPECT_EQ(call.v, before.v);
}

std::string BrokenName(const ::testing::TestParamInfo<Broken>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Tensors, PagedRuleTest, ::testing::ValuesIn(TensorRules()), BrokenName);
INSTANTIATE_TEST_SUITE_P(Tables, PagedRuleTest, ::testing::ValuesIn(TableRules()), BrokenName);
INSTANTIATE_TEST_SUITE_P(Terms, PagedRuleTest, ::testing::ValuesIn(TermRules()), BrokenName);

TEST(PagedContractTest, UnknownKernelsAndBudgets) {
  Call call;
  call.options.kernel = static_cast<Kernel>(77);
  EXPECT_EQ(call.Run().code(), StatusCode::kUnsupported);
  call.options.kernel = Kernel::kNaive;
  call.options.max_flops = 100;
  EXPECT_EQ(call.Run().code(), StatusCode::kBudgetExceeded);
  EXPECT_EQ(call.out, std::vector<float>(call.out.size(), -7.0f));
}

}  // namespace
}  // namespace flashlane
