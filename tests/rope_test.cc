// ApplyRope against a plain reference in F64, on every registry row and target: pairings, partial
// rotation, positions, layouts, in place; mistakes are caught. Memory and threads:
// rope_memory_test.cc. Refusals: rope_contract_test.cc.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "flashlane/rope.h"
#include "tests/support/rope.h"

namespace flashlane::testing {
namespace {

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

INSTANTIATE_TEST_SUITE_P(All, RopeTest, ::testing::ValuesIn(RopeRuns()), RopeRunName);

TEST(RopeRegistryTest, EveryAttentionDTypeHasItsRow) {
  std::vector<DType> dtypes;
  for (const KernelRow& row : KernelsOf(Operation::kRope)) dtypes.push_back(row.dtype);
  EXPECT_EQ(dtypes, (std::vector<DType>{DType::kF32, DType::kF64, DType::kBF16, DType::kF16}));
}

}  // namespace
}  // namespace flashlane::testing
