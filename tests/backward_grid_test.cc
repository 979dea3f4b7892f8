// How a backward call is cut: every pair of queries and keys once, no two units of a phase on one
// sum, enough of them at once whatever the lengths are, and nothing from threads or other
// sequences.

#include "dispatch/backward_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "dispatch/bias_tiles.h"

namespace flashlane {
namespace {

constexpr int64_t kDim = 2, kGroup = 2;
constexpr int64_t kQueriesPerPiece = 4, kKeysPerPiece = 8;

// What a unit was called with: the tile, and where its sums go.
struct Call {
  kernels::BackwardTile tile;
  const void* dq;
  const void* dk;
};
std::vector<Call>* calls = nullptr;

kernels::BackwardPlan Plan(const kernels::BackwardArgs&, const kernels::Sequence&) {
  kernels::BackwardPlan plan;
  plan.queries_per_piece = kQueriesPerPiece;
  plan.keys_per_piece = kKeysPerPiece;
  plan.bias_rows = 64;
  plan.bias_cols = 96;
  plan.bias_sum_bytes = 64 * 96 * 4;
  return plan;
}

float* Row(const kernels::RowSums& sums, int64_t batch, int64_t head, int64_t row) {
  return static_cast<float*>(sums.data) + batch * sums.strides.batch + head * sums.strides.head +
         row * sums.strides.row;
}

// Counts in every element of dq how many keys its query has met, in dk and dv how many queries.
void Run(const kernels::BackwardArgs& args, const kernels::BackwardTile& tile, void*) {
  calls->push_back({tile, args.dq_sum.data, args.dk_sum.data});
  const kernels::Sequence sequence = kernels::Sequence::Of(args.forward, tile.batch);
  for (int64_t g = 0; g < kGroup; ++g) {
    for (int64_t i = tile.q_begin; i < tile.q_end; ++i) {
      float* row = Row(args.dq_sum, tile.batch, tile.kv_head * kGroup + g, sequence.q_begin + i);
      for (int64_t d = 0; d < kDim; ++d)
        row[d] += static_cast<float>(tile.key_end - tile.key_begin);
    }
  }
  for (int64_t j = tile.key_begin; j < tile.key_end; ++j) {
    for (const kernels::RowSums* sums : {&args.dk_sum, &args.dv_sum}) {
      float* row = Row(*sums, tile.batch, tile.kv_head, sequence.k_begin + j);
      for (int64_t d = 0; d < kDim; ++d) row[d] += static_cast<float>(tile.q_end - tile.q_begin);
    }
  }
}

void Add(const kernels::BackwardArgs& args, const kernels::BackwardArgs& part,
         const kernels::BackwardTile& tile) {
  const kernels::Sequence sequence = kernels::Sequence::Of(args.forward, tile.batch);
  const auto add = [&](const kernels::RowSums& from, const kernels::RowSums& to, int64_t head,
                       int64_t row) {
    if (from.data == nullptr) return;
    for (int64_t d = 0; d < kDim; ++d) {
      Row(to, tile.batch, head, row)[d] += Row(from, tile.batch, head, row)[d];
    }
  };
  for (int64_t g = 0; g < kGroup; ++g) {
    for (int64_t i = tile.q_begin; i < tile.q_end; ++i) {
      add(part.dq_sum, args.dq_sum, tile.kv_head * kGroup + g, sequence.q_begin + i);
    }
  }
  for (int64_t j = tile.key_begin; j < tile.key_end; ++j) {
    add(part.dk_sum, args.dk_sum, tile.kv_head, sequence.k_begin + j);
    add(part.dv_sum, args.dv_sum, tile.kv_head, sequence.k_begin + j);
  }
}

// A packed call of these lengths, with two kv heads of two query heads each.
struct Packed {
  std::vector<int64_t> ends_q = {0}, ends_k = {0};
  std::vector<float> dq, dk, dv;
  kernels::BackwardArgs args;
  kernels::BackwardEntry entry;

  Packed(const std::vector<int64_t>& lengths_q, const std::vector<int64_t>& lengths_k) {
    for (const int64_t length : lengths_q) ends_q.push_back(ends_q.back() + length);
    for (const int64_t length : lengths_k) ends_k.push_back(ends_k.back() + length);
    kernels::ForwardArgs& forward = args.forward;
    forward.batch = static_cast<int64_t>(lengths_q.size());
    forward.num_heads = 2 * kGroup;
    forward.num_kv_heads = 2;
    forward.head_dim = forward.head_dim_v = kDim;
    forward.cu_seqlens_q.data = ends_q.data();
    forward.cu_seqlens_k.data = ends_k.data();
    dq.resize(static_cast<size_t>(ends_q.back() * forward.num_heads * kDim) + 1);
    dk.resize(static_cast<size_t>(ends_k.back() * forward.num_kv_heads * kDim) + 1);
    dv.resize(dk.size());
    args.dq = args.dq_sum = {dq.data(), {0, ends_q.back() * kDim, kDim}};
    args.dk = args.dk_sum = {dk.data(), {0, ends_k.back() * kDim, kDim}};
    args.dv = args.dv_sum = {dv.data(), {0, ends_k.back() * kDim, kDim}};
    entry.plan = &Plan;
    entry.run = &Run;
    entry.add = &Add;
    entry.sum_bytes = sizeof(float);
  }

  void ExpectEveryPairOnce() const {
    const auto expect = [](const std::vector<float>& sums, const std::vector<int64_t>& ends,
                           const std::vector<int64_t>& others, int64_t heads) {
      size_t at = 0;
      for (int64_t head = 0; head < heads; ++head) {
        for (size_t b = 0; b + 1 < ends.size(); ++b) {
          for (int64_t i = 0; i < (ends[b + 1] - ends[b]) * kDim; ++i, ++at) {
            ASSERT_EQ(sums[at], static_cast<float>(others[b + 1] - others[b])) << b;
          }
        }
      }
    };
    expect(dq, ends_q, ends_k, 2 * kGroup);
    expect(dk, ends_k, ends_q, 2);
    expect(dv, ends_k, ends_q, 2);
  }
};

const std::vector<std::vector<int64_t>> kLengths[] = {
    {{4}, {8}},
    {{1}, {200}},
    {{100}, {3}},
    {{9}, {128}},
    {{64}, {17}},
    {{33}, {90}},
    {{64}, {128}},
    {{0}, {80}},
    {{80}, {0}},
    {{21}, {61}},
    {{3, 50, 0, 7, 41}, {100, 9, 5, 0, 83}},
};

TEST(BackwardGridTest, StagesMeetEveryPairOnceAndNoPhaseSharesASum) {
  for (const auto& lengths : kLengths) {
    Packed call(lengths[0], lengths[1]);
    BackwardGrid grid(call.args, call.entry);
    ASSERT_TRUE(grid.ok());
    std::vector<std::byte> parts(grid.part_bytes() + 1, std::byte{0xFF});  // NaN
    grid.set_parts(parts.data());
    std::vector<Call> seen;
    calls = &seen;
    for (int64_t piece = 0; piece < grid.num_pieces(); ++piece) grid.Prepare(piece, nullptr);
    for (int64_t phase = 0; phase < grid.num_phases(); ++phase) {
      seen.clear();
      for (int64_t piece = 0; piece < grid.num_pieces(); ++piece) grid.Run(piece, phase, nullptr);
      std::set<std::tuple<int64_t, int64_t, const void*, int64_t>> queries, keys;
      for (const auto& [tile, dq, dk] : seen) {
        EXPECT_TRUE(queries.insert({tile.batch, tile.kv_head, dq, tile.q_begin}).second);
        EXPECT_TRUE(keys.insert({tile.batch, tile.kv_head, dk, tile.key_begin}).second);
      }
    }
    for (int64_t piece = 0; piece < grid.num_pieces(); ++piece) grid.Finish(piece);
    call.ExpectEveryPairOnce();
    EXPECT_EQ(parts.back(), std::byte{0xFF});
  }
}

TEST(BackwardGridTest, HeadsMeetEveryPairOnceInTheOrderOfStages) {
  for (const auto& lengths : kLengths) {
    Packed call(lengths[0], lengths[1]);
    BackwardGrid grid(call.args, call.entry);
    std::vector<std::byte> parts(grid.head_part_bytes() + 1, std::byte{0xFF});
    std::vector<Call> seen;
    calls = &seen;
    for (int64_t head = grid.num_heads() - 1; head >= 0; --head) {
      grid.RunHead(head, nullptr, parts.data());
    }
    call.ExpectEveryPairOnce();
    EXPECT_EQ(parts.back(), std::byte{0xFF});
  }
}

// Tiles of each phase.
std::vector<size_t> TilesAtOnce(int64_t queries, int64_t keys) {
  Packed call({queries}, {keys});
  BackwardGrid grid(call.args, call.entry);
  std::vector<std::byte> parts(grid.part_bytes() + 1);
  grid.set_parts(parts.data());
  std::vector<Call> seen;
  calls = &seen;
  std::vector<size_t> counts;
  for (int64_t phase = 0; phase < grid.num_phases(); ++phase) {
    seen.clear();
    for (int64_t piece = 0; piece < grid.num_pieces(); ++piece) grid.Run(piece, phase, nullptr);
    counts.push_back(seen.size() / 2);  // of one kv head
  }
  return counts;
}

// One side with few pieces, as 128 queries of 32768 keys have: the pieces of the other side are not
// done one after the other.
TEST(BackwardGridTest, AShortSideKeepsManyAtWork) {
  EXPECT_EQ(TilesAtOnce(4, 16 * 8), std::vector<size_t>(2, 8));
  EXPECT_EQ(TilesAtOnce(16 * 4, 8), std::vector<size_t>(2, 8));
  EXPECT_EQ(TilesAtOnce(2 * 4, 16 * 8), std::vector<size_t>(4, 8));
  EXPECT_EQ(TilesAtOnce(16 * 4, 4 * 8), std::vector<size_t>(8, 8));
  EXPECT_EQ(TilesAtOnce(16 * 4, 8 * 8), std::vector<size_t>(16, 8));
  EXPECT_EQ(TilesAtOnce(16 * 4, 16 * 8), std::vector<size_t>(16, 16));
  EXPECT_EQ(TilesAtOnce(4, 8), std::vector<size_t>(1, 1));
}

// At most as large as the longer side's own.
TEST(BackwardGridTest, PartsStaySmall) {
  for (int64_t queries = 1; queries <= 16; ++queries) {
    for (int64_t keys = 1; keys <= 16; ++keys) {
      Packed call({queries * kQueriesPerPiece}, {keys * kKeysPerPiece});
      const BackwardGrid grid(call.args, call.entry);
      const size_t dq = call.dq.size(), dk = call.dk.size() * 2;
      EXPECT_EQ(grid.part_bytes(), 2 * grid.head_part_bytes());
      EXPECT_LE(grid.part_bytes(), sizeof(float) * std::max(dq, dk)) << queries << " " << keys;
    }
  }
}

kernels::BackwardArgs BiasArgs(bool batch, bool head, bool row, bool col) {
  static float element;
  kernels::BackwardArgs args;
  args.forward.batch = 3;
  args.forward.num_heads = args.forward.num_kv_heads = 5;
  args.forward.seqlen_q = 200;
  args.forward.seqlen_k = 130;
  args.dbias = &element;
  args.dbias_batch = batch ? 1 : 0;
  args.dbias_head = head ? 1 : 0;
  args.dbias_row = row ? 1 : 0;
  args.dbias_col = col ? 1 : 0;
  return args;
}

// Few elements of dbias that sum over much are many units, each strip in one of them, in order.
TEST(BackwardGridTest, UnitsOfDbiasTakeEveryStripOnce) {
  kernels::BackwardEntry entry;
  entry.plan = &Plan;
  entry.bias = [](const kernels::BackwardArgs&, const kernels::BiasTile&, void*) {};
  for (int dims = 0; dims < 16; ++dims) {
    const bool batch = dims & 1, head = dims & 2, row = dims & 4, col = dims & 8;
    const kernels::BackwardArgs args = BiasArgs(batch, head, row, col);
    const BiasTiles tiles(entry, args);
    const int64_t strips = (batch ? 1 : 3) * (head ? 1 : 5) * (row ? 1 : 4);
    EXPECT_EQ(tiles.size(), (batch ? 3 : 1) * (head ? 5 : 1) * (row ? 4 : 1) * (col ? 2 : 1));
    std::vector<std::byte> sums(tiles.sum_bytes());
    for (int64_t tile = 0; tile < tiles.size(); ++tile) {
      int64_t next = 0;
      for (int64_t part = 0; part < tiles.parts(); ++part) {
        const kernels::BiasTile unit = tiles.Unit(tile * tiles.parts() + part, sums.data());
        EXPECT_EQ(unit.strip_begin, next);
        EXPECT_EQ(unit.sums != nullptr, tiles.parts() > 1);
        next = unit.strip_end;
      }
      EXPECT_EQ(next, strips);
    }
  }
  EXPECT_EQ(BiasTiles(entry, BiasArgs(false, false, false, false)).units(), 15);
  EXPECT_EQ(BiasTiles(entry, BiasArgs(true, true, true, true)).units(), 120);
}

}  // namespace
}  // namespace flashlane
