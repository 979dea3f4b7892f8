// What KvAppend, KvCopyBlocks and KvSwapBlocks refuse: the message names argument, value and rule,
// and no byte of any pool has changed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashlane/kv_cache.h"
#include "tests/support/kv_pools.h"

namespace flashlane::testing {
namespace {

using ::testing::HasSubstr;

const PoolSpec kSpec{4, 4, 2, 8, 8};

// A legal call of each kind, to be spoilt in one point.
struct Call {
  PoolMemory memory{kSpec, DType::kF32, 1};
  PoolMemory space{kSpec, DType::kF32, 2};
  std::vector<float> k = std::vector<float>(3 * 2 * 8, 1.0f);
  std::vector<float> v = std::vector<float>(3 * 2 * 8, 2.0f);
  std::vector<int64_t> slots = {0, -1, 15};
  std::vector<int64_t> pairs = {0, 1, 2, 3};
  KvAppendInputs inputs;
  KvPools pools = memory.Views();
  ConstKvPools src = space.ConstViews();
  ConstTensorView mapping{pairs.data(), DType::kI64, {2, 2}};
  ExecOptions options;

  Call() {
    inputs.k = ConstTensorView(k.data(), DType::kF32, {3, 2, 8});
    inputs.v = ConstTensorView(v.data(), DType::kF32, {3, 2, 8});
    inputs.slot_mapping = ConstTensorView(slots.data(), DType::kI64, {3});
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

Status Append(const Call& call) { return KvAppend(call.inputs, call.pools, call.options); }
Status Copy(const Call& call) { return KvCopyBlocks(call.pools, call.mapping, call.options); }
Status Swap(const Call& call) {
  return KvSwapBlocks(call.src, call.pools, call.mapping, call.options);
}

using CallFunction = Status (*)(const Call&);

struct Refusal {
  std::string message;  // a part of it
  std::function<void(Call&)> spoil;
  StatusCode code = StatusCode::kInvalidArgument;
};

void ExpectRefused(CallFunction run, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    Call call;
    refusal.spoil(call);
    const std::vector<std::byte> memory = call.memory.bytes, space = call.space.bytes;
    const Status status = run(call);
    EXPECT_EQ(status.code(), refusal.code) << refusal.message;
    EXPECT_THAT(status.message(), HasSubstr(refusal.message));
    EXPECT_TRUE(call.memory.bytes == memory && call.space.bytes == space) << refusal.message;
  }
}

std::vector<Refusal> PoolRefusals(const std::string& prefix) {
  return {
      {prefix + "k_cache: dtype I32 is not one of F32, F64, BF16, F16",
       [](Call& c) { c.pools.k_cache.dtype = DType::kI32; }},
      {prefix + "k_cache: rank 0 is not 4", [](Call& c) { c.pools.k_cache = {}; }},
      {prefix + "k_cache: data is null", [](Call& c) { c.pools.k_cache.data = nullptr; }},
      {prefix + "k_cache: shape [4, -1, 2, 8] has a negative size",
       [](Call& c) { c.pools.k_cache.shape[1] = -1; }},
      {prefix + "k_cache: block_size 0 is below 1", [](Call& c) { c.pools.k_cache.shape[1] = 0; }},
      {prefix + "k_cache: number of heads 0 is below 1",
       [](Call& c) { c.pools.k_cache.shape[2] = 0; }},
      {prefix + "v_cache: head size 0 is below 1", [](Call& c) { c.pools.v_cache.shape[3] = 0; }},
      {prefix + "k_cache: stride 2 of dimension 3 is not 1",
       [](Call& c) { c.pools.k_cache.strides[3] = 2; }},
      {prefix + "k_cache: stride -8 of dimension 2 is negative",
       [](Call& c) { c.pools.k_cache.strides[2] = -8; }},
      {prefix + "k_cache: stride 0 makes elements of an output overlap",
       [](Call& c) { c.pools.k_cache.strides[0] = 0; }},
      {prefix + "v_cache: dtype F64 is not F32, k_cache's dtype",
       [](Call& c) { c.pools.v_cache.dtype = DType::kF64; }},
      {prefix + "v_cache: shape [3, 4, 2, 8] does not match " + prefix + "k_cache's [4, 4, 2, 8]",
       [](Call& c) { c.pools.v_cache.shape[0] = 3; }},
      {prefix + "v_cache: shares memory with " + prefix + "k_cache",
       [](Call& c) { c.pools.v_cache.data = c.pools.k_cache.data; }},
      {"num_threads: value -1 is negative", [](Call& c) { c.options.num_threads = -1; }},
      {"target", [](Call& c) { c.options.target = "PDP11"; }},
  };
}

TEST(KvCacheContractTest, PoolsOfEveryCall) {
  ExpectRefused(&Append, PoolRefusals(""));
  ExpectRefused(&Copy, PoolRefusals(""));
  ExpectRefused(&Swap, PoolRefusals("dst."));
}

TEST(KvCacheContractTest, Append) {
  ExpectRefused(
      &Append,
      {
          {"slot_mapping: value 16 at 2 is not within [-1, 15]", [](Call& c) { c.slots[2] = 16; }},
          {"slot_mapping: value -2 at 1 is not within [-1, 15]", [](Call& c) { c.slots[1] = -2; }},
          {"slot_mapping: value 4294967296 at 0 is not", [](Call& c) { c.slots[0] = 1LL << 32; }},
          {"slot_mapping: value 0 at 0 is not within [-1, -1]",
           [](Call& c) { c.pools.k_cache.shape[0] = c.pools.v_cache.shape[0] = 0; }},
          {"slot_mapping: length 2 is not 3", [](Call& c) { c.inputs.slot_mapping.shape[0] = 2; }},
          {"slot_mapping: rank 0 is not 1", [](Call& c) { c.inputs.slot_mapping = {}; }},
          {"slot_mapping: dtype U32 is not one of I32, I64",
           [](Call& c) { c.inputs.slot_mapping.dtype = DType::kU32; }},
          {"slot_mapping: data is null", [](Call& c) { c.inputs.slot_mapping.data = nullptr; }},
          {"k: rank 0 is not 3", [](Call& c) { c.inputs.k = {}; }},
          {"k: data is not aligned",
           [](Call& c) { c.inputs.k.data = reinterpret_cast<const char*>(c.k.data()) + 1; }},
          {"k: dtype BF16 is not F32, k_cache's dtype",
           [](Call& c) { c.inputs.k.dtype = DType::kBF16; }},
          {"k: shape [3, 1, 8] is not [3, 2, 8]", [](Call& c) { c.inputs.k.shape[1] = 1; }},
          {"v: shape [3, 2, 7] is not [3, 2, 8]", [](Call& c) { c.inputs.v.shape[2] = 7; }},
          {"v: shape [2, 2, 8] is not [3, 2, 8]", [](Call& c) { c.inputs.v.shape[0] = 2; }},
          {"v: absent, but v_cache is given", [](Call& c) { c.inputs.v = {}; }},
          {"v: given, but v_cache is absent", [](Call& c) { c.pools.v_cache = {}; }},
          {"k_cache: shares memory with k",
           [](Call& c) { c.inputs.k.data = c.memory.bytes.data() + 64; }},
          {"v_cache: shares memory with v",
           [](Call& c) { c.inputs.v.data = c.pools.v_cache.data; }},
          {"k_cache: shares memory with slot_mapping",
           [](Call& c) {
             c.inputs.slot_mapping.data = c.memory.bytes.data();
             for (int i = 0; i < 24; ++i) c.memory.bytes[i] = std::byte{0};
           }},
      });
}

std::vector<Refusal> MappingRefusals() {
  return {
      {"block_mapping[:, 0]: value 4 at 1 is not within [0, 3]", [](Call& c) { c.pairs[2] = 4; }},
      {"block_mapping[:, 0]: value -1 at 0 is not within [0, 3]", [](Call& c) { c.pairs[0] = -1; }},
      {"block_mapping[:, 1]: value 4 at 1 is not within [0, 3]", [](Call& c) { c.pairs[3] = 4; }},
      {"block_mapping: rank 0 is not 2", [](Call& c) { c.mapping = {}; }},
      {"block_mapping: shape [2, 1] is not [n, 2]", [](Call& c) { c.mapping.shape[1] = 1; }},
      {"block_mapping[:, 0]: dtype F32 is not one of I32, I64, U32",
       [](Call& c) { c.mapping.dtype = DType::kF32; }},
      {"block_mapping: data is null", [](Call& c) { c.mapping.data = nullptr; }},
      {"k_cache: shares memory with block_mapping",
       [](Call& c) {
         c.mapping.data = c.memory.bytes.data();
         for (int i = 0; i < 32; ++i) c.memory.bytes[i] = std::byte{0};
       }},
  };
}

TEST(KvCacheContractTest, Copy) { ExpectRefused(&Copy, MappingRefusals()); }

TEST(KvCacheContractTest, Swap) {
  ExpectRefused(&Swap, MappingRefusals());
  ExpectRefused(
      &Swap,
      {
          {"dst.v_cache: given, but src.v_cache is absent", [](Call& c) { c.src.v_cache = {}; }},
          {"dst.v_cache: absent, but src.v_cache is given", [](Call& c) { c.pools.v_cache = {}; }},
          {"src.k_cache: rank 0 is not 4", [](Call& c) { c.src.k_cache = {}; }},
          {"dst.k_cache: dtype BF16 is not F32, src's dtype",
           [](Call& c) { c.pools.k_cache.dtype = c.pools.v_cache.dtype = DType::kBF16; }},
          {"dst.k_cache: shape [4, 4, 2, 7] does not match src.k_cache's [4, 4, 2, 8]",
           [](Call& c) { c.pools.k_cache.shape[3] = 7; }},
          {"dst.k_cache: shape [4, 3, 2, 8] does not match src.k_cache's [4, 4, 2, 8]",
           [](Call& c) { c.pools.k_cache.shape[1] = c.pools.v_cache.shape[1] = 3; }},
          {"dst.k_cache: shares memory with src.k_cache",
           [](Call& c) { c.src = c.memory.ConstViews(); }},
          {"dst.v_cache: shares memory with src.k_cache",
           [](Call& c) { c.src.k_cache.data = c.pools.v_cache.data; }},
          // Each pool's blocks are counted on their own side.
          {"block_mapping[:, 0]: value 2 at 1 is not within [0, 1]",
           [](Call& c) { c.src.k_cache.shape[0] = c.src.v_cache.shape[0] = 2; }},
          {"block_mapping[:, 1]: value 3 at 1 is not within [0, 1]",
           [](Call& c) { c.pools.k_cache.shape[0] = c.pools.v_cache.shape[0] = 2; }},
      });
}

// Copies are neither flops nor scratch, and empty calls are legal.
TEST(KvCacheContractTest, WhatIsNotRefused) {
  for (const CallFunction run : {&Append, &Copy, &Swap}) {
    Call call;
    call.options.max_flops = call.options.max_scratch_bytes = 0;
    EXPECT_TRUE(run(call).ok());
    call.inputs.k.shape[0] = call.inputs.v.shape[0] = call.inputs.slot_mapping.shape[0] = 0;
    call.mapping.shape[0] = 0;
    call.pools.k_cache.shape[0] = call.pools.v_cache.shape[0] = 0;
    const Status status = run(call);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Call call;
  call.pools.k_cache.shape[0] = call.pools.v_cache.shape[0] = 0;
  call.slots = {-1, -1, -1};
  call.inputs.slot_mapping.data = call.slots.data();
  EXPECT_TRUE(Append(call).ok());
}

}  // namespace
}  // namespace flashlane::testing
