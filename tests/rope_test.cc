// ApplyRope against a plain reference in F64, on every registry row and target: pairings, partial
// rotation, positions, layouts, in place; mistakes are caught; memory and threads. Refusals:
// rope_contract_test.cc.

#include "flashlane/rope.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "dispatch/contract_rope.h"
#include "tests/support/memory.h"
#include "tests/support/rope.h"

namespace flashlane::testing {
namespace {

using Flush = GuardedBuffer::Flush;

constexpr double kInf = std::numeric_limits<double>::infinity();

// [B, S, H, D] in memory.
OwnedTensor TokenMajor(const OwnedTensor& x) {
  const int64_t heads = x.view.shape[1], tokens = x.view.shape[2], dim = x.view.shape[3];
  return x.WithStrides({tokens * heads * dim, dim, heads * dim, 1});
}

// Everything further apart than it is long.
OwnedTensor Padded(const OwnedTensor& x) {
  const int64_t heads = x.view.shape[1], tokens = x.view.shape[2], dim = x.view.shape[3];
  const int64_t head = tokens * (dim + 3) + 1;
  return x.WithStrides({heads * head + 5, head, dim + 3, 1});
}

class RopeTest : public ::testing::TestWithParam<RopeRun> {
 protected:
  OwnedTensor Random(std::initializer_list<int64_t> shape, uint64_t seed = 1) const {
    return RandomTensor(GetParam().dtype, shape, seed);
  }

  // One operand, into memory that nobody wrote, of x's strides.
  OwnedTensor Turned(const OwnedTensor& x, const RopeTablesOwned& tables, const RopeParams& params,
                     const ConstTensorView& positions = {}, int threads = 0) const {
    OwnedTensor out = Poisoned(x);
    RopeInputs inputs;
    inputs.q = x.View();
    inputs.cos = tables.cos.View();
    inputs.sin = tables.sin.View();
    inputs.positions = positions;
    const Status status =
        ApplyRope(inputs, params, {WritableView(&out), {}}, GetParam().Options(threads));
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
};

RopeParams Params(bool interleaved, bool inverse = false, int64_t q_start = 0) {
  RopeParams params;
  params.interleaved = interleaved;
  params.inverse = inverse;
  params.q_start = q_start;
  return params;
}

// Pairs around the lanes of every vector; heads that turn whole and in part; an odd head size.
TEST_P(RopeTest, EqualsTheReference) {
  for (const int64_t pairs : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 64, 65}) {
    const RopeTablesOwned tables(GetParam().dtype, 9, pairs);
    for (const int64_t rest : {0, 1, 5}) {
      const OwnedTensor x = Random({2, 3, 4, 2 * pairs + rest});
      for (const OwnedTensor& q : {x, TokenMajor(x), Padded(x)}) {
        for (const bool interleaved : {false, true}) {
          for (const bool inverse : {false, true}) {
            const OwnedTensor out = Turned(q, tables, Params(interleaved, inverse, 5));
            const RopeRule rule{&tables, interleaved, inverse,
                                [](int64_t, int64_t t) { return 5 + t; }};
            ASSERT_TRUE(IsTurned(q, out, rule))
                << "pairs " << pairs << " rest " << rest << " interleaved " << interleaved;
          }
        }
      }
    }
  }
}

// [1.0, 2.0, 3.0, 4.0] at position 1, theta 10000, as the document prints it: to the eleven places
// that its own functions are good for.
TEST_P(RopeTest, TheDocumentsExample) {
  const RopeTablesOwned tables(GetParam().dtype, 2, 2);
  const OwnedTensor x = OwnedTensor::Of({1.0, 2.0, 3.0, 4.0}, GetParam().dtype, {1, 1, 1, 4});
  const double printed[] = {-1.9841106485555495, 1.959900667493101, 2.4623779024123156,
                            4.019799668336732};
  const OwnedTensor turned = Turned(x, tables, Params(false, false, 1));
  const OwnedTensor back = Turned(turned, tables, Params(false, true, 1));
  const double u = GetParam().dtype == DType::kF64    ? 1e-11
                   : GetParam().dtype == DType::kF32  ? 0x1p-22
                   : GetParam().dtype == DType::kBF16 ? 0x1p-7
                                                      : 0x1p-10;
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(turned.At({0, 0, 0, i}), printed[i], 4 * u) << i;
    EXPECT_NEAR(back.At({0, 0, 0, i}), 1.0 + static_cast<double>(i), 8 * u) << i;
  }
}

// Each way is within RopeTolerance; what the first has lost, the second turns along.
TEST_P(RopeTest, TheInverseRestores) {
  for (const bool interleaved : {false, true}) {
    const RopeTablesOwned tables(GetParam().dtype, 50, 32, 1000);
    const OwnedTensor x = Random({1, 2, 50, 64});
    const OwnedTensor turned = Turned(x, tables, Params(interleaved));
    const OwnedTensor back = Turned(turned, tables, Params(interleaved, true));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t t = 0; t < 50; ++t) {
        for (int64_t i = 0; i < 64; ++i) {
          const int64_t partner = interleaved ? i ^ 1 : (i + 32) % 64;
          const double size = std::hypot(x.At({0, h, t, i}), x.At({0, h, t, partner}));
          // A norm of two elements' errors, of which each is at most its tolerance; twice for the
          // rounded tables, whose rows are not quite of length 1.
          const double tolerance = 4 * RopeTolerance(GetParam().dtype, 1.5 * size, size);
          ASSERT_NEAR(back.At({0, h, t, i}), x.At({0, h, t, i}), tolerance);
        }
      }
    }
  }
}

// The comparison above sees every mistake that RoPE invites.
TEST_P(RopeTest, MistakesAreCaught) {
  const RopeTablesOwned tables(GetParam().dtype, 12, 8, 3);
  const RopeTablesOwned shifted(GetParam().dtype, 12, 8, 4);
  const OwnedTensor x = Random({2, 2, 5, 18});
  for (const bool interleaved : {false, true}) {
    const OwnedTensor out = Turned(x, tables, Params(interleaved, false, 2));
    const auto row = [](int64_t, int64_t t) { return t + 2; };
    ASSERT_TRUE(IsTurned(x, out, {&tables, interleaved, false, row}));
    EXPECT_FALSE(IsTurned(x, out, {&tables, !interleaved, false, row})) << "pairing";
    EXPECT_FALSE(IsTurned(x, out, {&tables, interleaved, true, row})) << "sign";
    EXPECT_FALSE(IsTurned(x, out, {&shifted, interleaved, false, row})) << "position";
    const auto next = [](int64_t, int64_t t) { return t + 3; };
    EXPECT_FALSE(IsTurned(x, out, {&tables, interleaved, false, next})) << "row";
    const auto of_first = [](int64_t, int64_t) { return int64_t{2}; };
    EXPECT_FALSE(IsTurned(x, out, {&tables, interleaved, false, of_first})) << "one row for all";
    const auto packed = [](int64_t b, int64_t t) { return b * 5 + t + 2; };
    EXPECT_FALSE(IsTurned(x, out, {&tables, interleaved, false, packed})) << "batch";
    // Swapped: tables, and the two of a pair.
    RopeTablesOwned exchanged = tables;
    std::swap(exchanged.cos, exchanged.sin);
    EXPECT_FALSE(IsTurned(x, out, {&exchanged, interleaved, false, row})) << "cos for sin";
    const RopeTablesOwned narrow(GetParam().dtype, 12, 7, 3);
    EXPECT_FALSE(IsTurned(x, out, {&narrow, interleaved, false, row})) << "rotary_dim";
    OwnedTensor touched = out;
    touched.Set({1, 1, 4, 17}, 0.5);
    EXPECT_FALSE(IsTurned(x, touched, {&tables, interleaved, false, row})) << "the rest";
  }
}

TEST_P(RopeTest, PositionsOfEveryKind) {
  const RopeTablesOwned tables(GetParam().dtype, 20, 9);
  const OwnedTensor x = Random({2, 3, 4, 18});
  const std::vector<int64_t> wide = {19, 0, 7, 7, 3, 2, 1, 0};
  const std::vector<int32_t> narrow = {19, -9, 0, -9, 7, -9, 7, -9, 3, -9, 2, -9, 1, -9, 0, -9};
  const auto of_each = [&](int64_t b, int64_t t) { return wide[static_cast<size_t>(4 * b + t)]; };
  const auto of_first = [&](int64_t, int64_t t) { return wide[static_cast<size_t>(t)]; };
  const auto of_last = [&](int64_t b, int64_t) { return wide[static_cast<size_t>(4 * b)]; };
  const RopeParams params = Params(false, false, 11);  // which positions override
  const auto expect = [&](const ConstTensorView& positions, const auto& row) {
    const OwnedTensor out = Turned(x, tables, params, positions);
    EXPECT_TRUE(IsTurned(x, out, {&tables, false, false, row}));
  };
  expect(ConstTensorView(wide.data(), DType::kI64, {2, 4}), of_each);
  expect(ConstTensorView(narrow.data(), DType::kI32, {2, 4}, {8, 2}), of_each);
  expect(ConstTensorView(wide.data(), DType::kI64, {4}), of_first);
  expect(ConstTensorView(wide.data(), DType::kI64, {2, 4}, {0, 1}), of_first);
  expect(ConstTensorView(wide.data(), DType::kI64, {2, 4}, {4, 0}), of_last);
}

// Token-major: the bits of the batch whose rows lie the same way, and of the other loop order.
TEST_P(RopeTest, TokenMajorIsABatchOfOne) {
  const RopeTablesOwned tables(GetParam().dtype, 40, 8);
  const OwnedTensor x = Random({1, 5, 37, 19});
  const OwnedTensor tokens = TokenMajor(x);
  OwnedTensor out = Poisoned(tokens);
  RopeInputs inputs;
  inputs.q = ConstTensorView(tokens.storage.data(), GetParam().dtype, {37, 5, 19});
  inputs.cos = tables.cos.View();
  inputs.sin = tables.sin.View();
  std::vector<int64_t> positions(37);
  for (size_t i = 0; i < 37; ++i) positions[i] = static_cast<int64_t>(i * 7 % 40);
  inputs.positions = ConstTensorView(positions.data(), DType::kI64, {37});
  const RopeOutputs outputs{TensorView(out.storage.data(), GetParam().dtype, {37, 5, 19}), {}};
  const Status status = ApplyRope(inputs, Params(true), outputs, GetParam().Options());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out.Values(), Turned(tokens, tables, Params(true), inputs.positions).Values());
  EXPECT_EQ(out.Values(), Turned(x, tables, Params(true), inputs.positions).Values());
}

TEST_P(RopeTest, QAndKTogetherAreEachAlone) {
  const RopeTablesOwned tables(GetParam().dtype, 33, 10);
  const OwnedTensor q = TokenMajor(Random({2, 6, 33, 27})), k = Random({2, 2, 33, 20}, 2);
  for (const bool interleaved : {false, true}) {
    OwnedTensor q_out = Poisoned(q), k_out = Poisoned(k);
    const RopeInputs inputs{q.View(), k.View(), tables.cos.View(), tables.sin.View(), {}};
    ASSERT_TRUE(ApplyRope(inputs, Params(interleaved), {WritableView(&q_out), WritableView(&k_out)},
                          GetParam().Options())
                    .ok());
    EXPECT_EQ(q_out.storage, Turned(q, tables, Params(interleaved)).storage);
    EXPECT_EQ(k_out.storage, Turned(k, tables, Params(interleaved)).storage);
    RopeInputs only_k = inputs;
    only_k.q = {};
    k_out = Poisoned(k);
    ASSERT_TRUE(
        ApplyRope(only_k, Params(interleaved), {{}, WritableView(&k_out)}, GetParam().Options())
            .ok());
    EXPECT_EQ(k_out.storage, Turned(k, tables, Params(interleaved)).storage);
  }
}

// Both in place, one of them, and as slices of one packed [B, S, Hq + 2 Hkv, D].
TEST_P(RopeTest, InPlace) {
  const RopeTablesOwned tables(GetParam().dtype, 21, 11);
  const OwnedTensor packed = Random({2, 7, 21, 29});
  const OwnedTensor all = TokenMajor(packed);
  for (const bool interleaved : {false, true}) {
    const OwnedTensor expected = Turned(all, tables, Params(interleaved));
    OwnedTensor memory = all;
    const TensorView whole = WritableView(&memory);
    TensorView q = whole, k = whole;
    q.shape[1] = 4;
    k.shape[1] = 2;
    k.data = memory.storage.data() + 4 * 29 * DTypeSize(GetParam().dtype);
    const RopeInputs inputs{q, k, tables.cos.View(), tables.sin.View(), {}};
    ASSERT_TRUE(ApplyRope(inputs, Params(interleaved), {q, k}, GetParam().Options()).ok());
    for (int64_t h = 0; h < 7; ++h) {
      const OwnedTensor& want = h < 6 ? expected : all;  // the last head is v's
      for (int64_t t = 0; t < 21; ++t) {
        for (int64_t i = 0; i < 29; ++i) {
          ASSERT_EQ(memory.At({1, h, t, i}), want.At({1, h, t, i})) << h << " " << t << " " << i;
        }
      }
    }
  }
}

TEST_P(RopeTest, BroadcastInputs) {
  const RopeTablesOwned tables(GetParam().dtype, 6, 4);
  const OwnedTensor x = Random({1, 1, 1, 8});
  ConstTensorView q = x.View();
  q.shape[1] = 3;
  q.shape[2] = 5;
  for (int d = 0; d < 3; ++d) q.strides[d] = 0;
  OwnedTensor out = Poisoned(Random({1, 3, 5, 8})), wide = out;
  const RopeInputs inputs{q, {}, tables.cos.View(), tables.sin.View(), {}};
  ASSERT_TRUE(
      ApplyRope(inputs, Params(false, false, 1), {WritableView(&out), {}}, GetParam().Options())
          .ok());
  for (int64_t h = 0; h < 3; ++h) {
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t i = 0; i < 8; ++i) wide.Set({0, h, t, i}, x.At({0, 0, 0, i}));
    }
  }
  const auto row = [](int64_t, int64_t t) { return 1 + t; };
  EXPECT_TRUE(IsTurned(wide, out, {&tables, false, false, row}));
}

// Nothing between the rows of an output is touched.
TEST_P(RopeTest, GapsKeepTheirBytes) {
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

TEST_P(RopeTest, ThreadsChangeNoByte) {
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
TEST_P(RopeTest, BlocksAndItems) {
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
TEST_P(RopeTest, ARowAloneHasTheSameBits) {
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
TEST_P(RopeTest, WhatIsNotFinite) {
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
TEST_P(RopeTest, NothingOutsideTheViewsIsTouched) {
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
TEST_P(RopeTest, Beyond32Bits) {
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

TEST_P(RopeTest, EmptyIsLegal) {
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

INSTANTIATE_TEST_SUITE_P(All, RopeTest, ::testing::ValuesIn(RopeRuns()), RopeRunName);

TEST(RopeRegistryTest, EveryAttentionDTypeHasItsRow) {
  std::vector<DType> dtypes;
  for (const KernelRow& row : KernelsOf(Operation::kRope)) dtypes.push_back(row.dtype);
  EXPECT_EQ(dtypes, (std::vector<DType>{DType::kF32, DType::kF64, DType::kBF16, DType::kF16}));
}

}  // namespace
}  // namespace flashlane::testing
