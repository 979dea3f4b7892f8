// What ApplyRope touches, and in which pieces, on every registry row and target: gaps and guard
// pages, offsets past 2^32, threads and items, numbers that are not finite, empty calls.

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "dispatch/contract_rope.h"
#include "flashlane/rope.h"
#include "tests/support/memory.h"
#include "tests/support/numbers.h"
#include "tests/support/rope.h"

namespace flashlane::testing {
namespace {

using Flush = GuardedBuffer::Flush;

class RopeMemoryTest : public RopeTest {};

// Nothing between the rows of an output is touched.
TEST_P(RopeMemoryTest, GapsKeepTheirBytes) {
  const RopeTablesOwned tables(GetParam().dtype, 8, 3);
  const OwnedTensor x = Padded(Random({2, 2, 7, 9}));
  const OwnedTensor out = Turned(x, tables, Params(true));
  OwnedTensor filled = out;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t t = 0; t < 7; ++t) {
        const auto at = static_cast<size_t>(b * x.view.strides[0] + h * x.view.strides[1] +
                                            t * x.view.strides[2]);
        const size_t size = DTypeSize(GetParam().dtype);
        std::memset(filled.storage.data() + at * size, 0xA5, 9 * size);
      }
    }
  }
  EXPECT_TRUE(filled.storage == Poisoned(x).storage);
}

TEST_P(RopeMemoryTest, ThreadsChangeNoByte) {
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, 8);
  const RopeTablesOwned tables(GetParam().dtype, 203, 33);
  const OwnedTensor x = Random({3, 7, 203, 71});
  for (const OwnedTensor& q : {x, TokenMajor(x)}) {
    for (const bool interleaved : {false, true}) {
      const OwnedTensor expected = Turned(q, tables, Params(interleaved), {}, 1);
      for (const int threads : {2, 3, 8}) {
        tbb::task_arena arena(threads);
        arena.execute([&] {
          const OwnedTensor out = Turned(q, tables, Params(interleaved), {}, threads);
          EXPECT_TRUE(out.storage == expected.storage) << threads;
        });
      }
    }
  }
}

// Sequences of several blocks of tokens, the last not full, and every item by itself: what the
// tasks of a call stand on.
TEST_P(RopeMemoryTest, BlocksAndItems) {
  const int64_t tokens = 2 * kernels::kRopeBlockTokens + 3;
  const RopeTablesOwned tables(GetParam().dtype, tokens, 2);
  Target target;
  ASSERT_TRUE(ResolveTarget(GetParam().target.c_str(), &target).ok());
  const auto entry = FindKernel("rope", GetParam().dtype)->rope(target.bit);
  const OwnedTensor q = Random({2, 3, tokens, 5}), k = Random({2, 2, tokens, 4}, 2);
  const auto row = [](int64_t, int64_t t) { return t; };
  for (const bool heads_first : {false, true}) {
    const OwnedTensor x = heads_first ? q : TokenMajor(q);
    const OwnedTensor y = heads_first ? k : TokenMajor(k);
    OwnedTensor x_out = Poisoned(x), y_out = Poisoned(y);
    const RopeInputs inputs{x.View(), y.View(), tables.cos.View(), tables.sin.View(), {}};
    const RopeOutputs outputs{WritableView(&x_out), WritableView(&y_out)};
    ASSERT_TRUE(ApplyRope(inputs, {}, outputs, GetParam().Options()).ok());
    EXPECT_TRUE(IsTurned(x, x_out, {&tables, false, false, row}));
    EXPECT_TRUE(IsTurned(y, y_out, {&tables, false, false, row}));
    const OwnedTensor x_whole = x_out, y_whole = y_out;
    x_out = Poisoned(x);
    y_out = Poisoned(y);
    const kernels::RopeArgs args =
        ResolveRope(inputs, {}, {WritableView(&x_out), WritableView(&y_out)});
    EXPECT_EQ(args.num_items(), 2 * 5 * (heads_first ? 3 : tokens));
    for (int64_t i = args.num_items(); i-- > 0;) entry.run(args, i, i + 1);
    EXPECT_TRUE(x_out.storage == x_whole.storage && y_out.storage == y_whole.storage);
  }
}

// A row's bits do not depend on its neighbours.
TEST_P(RopeMemoryTest, ARowAloneHasTheSameBits) {
  const RopeTablesOwned tables(GetParam().dtype, 40, 5);
  const OwnedTensor q = Random({2, 3, 37, 13});
  const OwnedTensor expected = Turned(q, tables, Params(false));
  for (int64_t t = 0; t < 37; ++t) {
    ConstTensorView one = q.View();
    OwnedTensor out = Poisoned(q);
    TensorView to = WritableView(&out);
    one.shape[2] = to.shape[2] = 1;
    const int64_t offset = t * q.view.strides[2] * static_cast<int64_t>(DTypeSize(one.dtype));
    one.data = static_cast<const char*>(one.data) + offset;
    to.data = static_cast<char*>(to.data) + offset;
    const RopeInputs inputs{one, {}, tables.cos.View(), tables.sin.View(), {}};
    ASSERT_TRUE(ApplyRope(inputs, Params(false, false, t), {to, {}}, GetParam().Options()).ok());
    for (int64_t i = 0; i < 13; ++i) {
      ASSERT_EQ(out.At({1, 2, t, i}), expected.At({1, 2, t, i}));
    }
  }
}

// A NaN or an infinity reaches its own pair only; the NaN is the quiet one without a sign.
TEST_P(RopeMemoryTest, WhatIsNotFinite) {
  const RopeTablesOwned tables(GetParam().dtype, 2, 19);
  for (const bool interleaved : {false, true}) {
    for (const double bad : {kInf, -kInf, std::nan("")}) {
      for (const int64_t place : {0, 16, 18}) {
        OwnedTensor x = Random({1, 1, 1, 40});
        const OwnedTensor expected = Turned(x, tables, Params(interleaved, false, 1));
        x.Set({0, 0, 0, place}, bad);
        const OwnedTensor out = Turned(x, tables, Params(interleaved, false, 1));
        const int64_t partner = interleaved ? place ^ 1 : place + 19;
        for (int64_t i = 0; i < 40; ++i) {
          const double got = out.At({0, 0, 0, i});
          if (i != place && i != partner) {
            ASSERT_EQ(got, expected.At({0, 0, 0, i})) << place << " " << i;
          } else {
            ASSERT_FALSE(std::isfinite(got)) << place << " " << i;
            ASSERT_EQ(std::isnan(got), std::isnan(bad));
            ASSERT_FALSE(std::isnan(got) && std::signbit(got));
          }
        }
      }
    }
  }
}

// Every buffer ends (begins) where memory does.
TEST_P(RopeMemoryTest, NothingOutsideTheViewsIsTouched) {
  const size_t size = DTypeSize(GetParam().dtype);
  const DType table_type = GetParam().dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  for (const int64_t pairs : {1, 3, 8, 13, 16, 17, 33}) {
    for (const int64_t rest : {0, 1}) {
      for (const Flush flush : {Flush::kBegin, Flush::kEnd}) {
        const int64_t dim = 2 * pairs + rest;
        GuardedBuffer q(2 * 3 * static_cast<size_t>(dim) * size, flush);
        GuardedBuffer out(2 * 3 * static_cast<size_t>(dim) * size, flush);
        GuardedBuffer cos(4 * static_cast<size_t>(pairs) * DTypeSize(table_type), flush);
        GuardedBuffer sin(4 * static_cast<size_t>(pairs) * DTypeSize(table_type), flush);
        GuardedBuffer positions(2 * sizeof(int64_t), flush);
        const int64_t rows[] = {3, 0};
        std::memcpy(positions.data(), rows, sizeof rows);
        RopeInputs inputs;
        inputs.q = ConstTensorView(q.data(), GetParam().dtype, {2, 3, dim});
        inputs.cos = ConstTensorView(cos.data(), table_type, {4, pairs});
        inputs.sin = ConstTensorView(sin.data(), table_type, {4, pairs});
        inputs.positions = ConstTensorView(positions.data(), DType::kI64, {2});
        const TensorView to(out.data(), GetParam().dtype, {2, 3, dim});
        const TensorView in_place(q.data(), GetParam().dtype, {2, 3, dim});
        for (const bool interleaved : {false, true}) {
          for (const TensorView& target : {to, in_place}) {
            const Status status =
                ApplyRope(inputs, Params(interleaved), {target, {}}, GetParam().Options());
            ASSERT_TRUE(status.ok()) << status.message();
          }
        }
      }
    }
  }
}

// Offsets past 2^32 elements, in memory that is not there, and rows of a table that is one row.
TEST_P(RopeMemoryTest, Beyond32Bits) {
  constexpr int64_t kFar = int64_t{1} << 33;
  const size_t size = DTypeSize(GetParam().dtype);
  SparseBuffer memory((static_cast<size_t>(kFar) + 64) * size);
  if (!memory.ok()) GTEST_SKIP() << "no address space for the mapping";
  const RopeTablesOwned tables(GetParam().dtype, 1, 4, 9);
  const OwnedTensor x = Random({1, 1, 2, 8});
  TensorView far(memory.data(), GetParam().dtype, {2, 1, 8}, {kFar, 8, 1});
  for (int64_t t = 0; t < 2; ++t) {
    std::memcpy(memory.data() + static_cast<size_t>(t * kFar) * size,
                x.storage.data() + static_cast<size_t>(t) * 8 * size, 8 * size);
  }
  RopeInputs inputs;
  inputs.q = far;
  inputs.cos = tables.cos.View();
  inputs.sin = tables.sin.View();
  inputs.cos.shape[0] = inputs.sin.shape[0] = kFar;
  inputs.cos.strides[0] = inputs.sin.strides[0] = 0;
  const int64_t rows[] = {kFar - 1, 5};
  inputs.positions = ConstTensorView(rows, DType::kI64, {2});
  const Status status = ApplyRope(inputs, {}, {far, {}}, GetParam().Options());
  ASSERT_TRUE(status.ok()) << status.message();
  OwnedTensor out = Poisoned(x);
  for (int64_t t = 0; t < 2; ++t) {
    std::memcpy(out.storage.data() + static_cast<size_t>(t) * 8 * size,
                memory.data() + static_cast<size_t>(t * kFar) * size, 8 * size);
  }
  const auto row = [](int64_t, int64_t) { return int64_t{0}; };
  EXPECT_TRUE(IsTurned(x, out, {&tables, false, false, row}));
}

TEST_P(RopeMemoryTest, EmptyIsLegal) {
  const RopeTablesOwned tables(GetParam().dtype, 3, 2);
  for (const int empty : {0, 1, 2}) {
    RopeInputs inputs;
    inputs.q = ConstTensorView(nullptr, GetParam().dtype, {2, 2, 2, 4});
    inputs.q.shape[empty] = 0;
    inputs.cos = tables.cos.View();
    inputs.sin = tables.sin.View();
    TensorView out(nullptr, GetParam().dtype, {2, 2, 2, 4});
    out.shape[empty] = 0;
    const Status status = ApplyRope(inputs, {}, {out, {}}, GetParam().Options());
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(All, RopeMemoryTest, ::testing::ValuesIn(RopeRuns()), RopeRunName);

}  // namespace
}  // namespace flashlane::testing
