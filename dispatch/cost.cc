#include "dispatch/cost.h"

#include <algorithm>
#include <limits>

#include "dispatch/visible_pairs.h"
#include "dispatch/wide.h"
#include "kernels/mask.h"

namespace flashlane {
namespace {

uint64_t FlopsPerPair(const kernels::ForwardArgs& args) {
  return SaturatingProduct(
      2, static_cast<uint64_t>(args.head_dim) + static_cast<uint64_t>(args.head_dim_v));
}

// Keys of `keys` within [begin, end).
uint64_t SizeWithin(const kernels::KeyRange& keys, const kernels::KeyRange& range) {
  return static_cast<uint64_t>(
      kernels::KeyRange{std::max(keys.begin, range.begin), std::min(keys.end, range.end)}.size());
}

uint64_t BackwardFlopsPerPair(const kernels::BackwardArgs& args) {
  const auto width = static_cast<uint64_t>(args.forward.head_dim);
  const auto width_v = static_cast<uint64_t>(args.forward.head_dim_v);
  const bool dq = args.dq.data != nullptr, dk = args.dk.data != nullptr;
  const uint64_t scores = SaturatingSum(width, dq || dk ? width_v : 0);
  const uint64_t sums = SaturatingSum(SaturatingProduct(width, uint64_t{dq} + uint64_t{dk}),
                                      args.dv.data != nullptr ? width_v : 0);
  // dbias computes S and dP once more.
  const uint64_t bias = args.dbias != nullptr ? SaturatingSum(width, width_v) : 0;
  return SaturatingProduct(2, SaturatingSum(SaturatingSum(scores, sums), bias));
}

// The kv heads of a tile, the queries of its rows, the keys that it may read. A tile may cut
// through the heads of a query; counting whole queries errs by less than one query.
struct TileExtent {
  TileExtent(const kernels::ForwardArgs& args, const kernels::Tile& tile)
      : mask(kernels::SequenceMask::Of(args, kernels::Sequence::Of(args, tile.batch))),
        i_begin(tile.row_begin / args.group()),
        i_end((tile.row_end - 1) / args.group() + 1),
        keys{tile.key_begin, tile.key_end} {}

  kernels::SequenceMask mask;
  int64_t i_begin, i_end;
  kernels::KeyRange keys;
};

}  // namespace

uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

uint64_t TileFlops(const kernels::ForwardArgs& args, const kernels::Tile& tile) {
  const TileExtent extent(args, tile);
  const uint64_t pairs =
      Saturated64(VisiblePairs(extent.mask, extent.i_begin, extent.i_end, extent.keys));
  return SaturatingProduct(
      SaturatingProduct(pairs, static_cast<uint64_t>(args.group() * tile.num_kv_heads)),
      FlopsPerPair(args));
}

uint64_t TileCost(const kernels::ForwardArgs& args, const kernels::Tile& tile) {
  const TileExtent extent(args, tile);
  const uint64_t width =
      static_cast<uint64_t>(args.head_dim) + static_cast<uint64_t>(args.head_dim_v);
  const uint64_t rows = static_cast<uint64_t>((tile.row_end - tile.row_begin) * tile.num_kv_heads);
  const uint64_t keys =
      SizeWithin(extent.mask.VisibleToAny(extent.i_begin, extent.i_end), extent.keys) *
      static_cast<uint64_t>(tile.num_kv_heads);
  const uint64_t moved =
      SaturatingProduct(width, SaturatingSum(SaturatingProduct(rows, kRowOverheadFlops),
                                             SaturatingProduct(keys, kKeyElementFlops)));
  return SaturatingSum(TileFlops(args, tile), moved);
}

Uint128 WideForwardFlops(const kernels::ForwardArgs& args) {
  return SaturatingProduct128(AllVisiblePairs(args), FlopsPerPair(args));
}

uint64_t ForwardFlops(const kernels::ForwardArgs& args) {
  return Saturated64(WideForwardFlops(args));
}

Uint128 WideBackwardFlops(const kernels::BackwardArgs& args) {
  return SaturatingProduct128(AllVisiblePairs(args.forward), BackwardFlopsPerPair(args));
}

uint64_t BackwardFlops(const kernels::BackwardArgs& args) {
  return Saturated64(WideBackwardFlops(args));
}

uint64_t BackwardTileCost(const kernels::BackwardArgs& args, const kernels::BackwardTile& tile) {
  const kernels::ForwardArgs& forward = args.forward;
  const auto mask = kernels::SequenceMask::Of(forward, kernels::Sequence::Of(forward, tile.batch));
  const uint64_t pairs =
      Saturated64(VisiblePairs(mask, tile.q_begin, tile.q_end, {tile.key_begin, tile.key_end}));
  const auto group = static_cast<uint64_t>(forward.group());
  const uint64_t moved = SaturatingProduct(
      static_cast<uint64_t>(forward.head_dim) + static_cast<uint64_t>(forward.head_dim_v),
      SaturatingProduct(static_cast<uint64_t>(tile.q_end - tile.q_begin),
                        group * kRowOverheadFlops));
  return SaturatingSum(
      SaturatingProduct(SaturatingProduct(pairs, group), BackwardFlopsPerPair(args)),
      pairs == 0 ? 0 : moved);
}

uint64_t MergeFlops(const kernels::MergeArgs& args, int64_t batch) {
  const uint64_t rows = SaturatingProduct(static_cast<uint64_t>(batch * args.num_heads),
                                          static_cast<uint64_t>(args.seqlen_q));
  return SaturatingProduct(rows, 3 * static_cast<uint64_t>(args.head_dim_v));
}

}  // namespace flashlane
