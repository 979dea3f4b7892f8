#include "dispatch/cost.h"

#include <algorithm>
#include <limits>

#include "kernels/mask.h"

namespace flashlane {
namespace {

uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

uint64_t FlopsPerPair(const kernels::ForwardArgs& args) {
  return SaturatingProduct(
      2, static_cast<uint64_t>(args.head_dim) + static_cast<uint64_t>(args.head_dim_v));
}

// Visible pairs of queries [i_begin, i_end) of one head. O(1) without windows, else O(queries).
uint64_t VisiblePairs(const kernels::SequenceMask& mask, int64_t i_begin, int64_t i_end) {
  if (mask.window_left == kernels::kUnlimited && mask.window_right == kernels::kUnlimited) {
    return SaturatingProduct(static_cast<uint64_t>(i_end - i_begin),
                             static_cast<uint64_t>(mask.k_len));
  }
  uint64_t pairs = 0;
  for (int64_t i = i_begin; i < i_end; ++i) {
    pairs = SaturatingSum(pairs, static_cast<uint64_t>(mask.Visible(i).size()));
  }
  return pairs;
}

}  // namespace

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

uint64_t TileFlops(const kernels::ForwardArgs& args, const kernels::Tile& tile) {
  const int64_t group = args.group();
  const kernels::SequenceMask mask =
      kernels::SequenceMask::Of(args, kernels::Sequence::Of(args, tile.batch));
  const int64_t i_begin = tile.row_begin / group;
  const int64_t i_end = (tile.row_end - 1) / group + 1;
  // A tile may cut through the heads of a query; counting whole queries errs by less than one
  // query.
  return SaturatingProduct(
      SaturatingProduct(VisiblePairs(mask, i_begin, i_end), static_cast<uint64_t>(group)),
      FlopsPerPair(args));
}

uint64_t TileCost(const kernels::ForwardArgs& args, const kernels::Tile& tile) {
  const uint64_t elements = SaturatingProduct(
      static_cast<uint64_t>(tile.row_end - tile.row_begin),
      static_cast<uint64_t>(args.head_dim) + static_cast<uint64_t>(args.head_dim_v));
  return SaturatingSum(TileFlops(args, tile), SaturatingProduct(elements, kRowOverheadFlops));
}

uint64_t ForwardFlops(const kernels::ForwardArgs& args) {
  uint64_t pairs = 0;
  for (int64_t b = 0; b < args.batch; ++b) {
    const kernels::Sequence sequence = kernels::Sequence::Of(args, b);
    const kernels::SequenceMask mask = kernels::SequenceMask::Of(args, sequence);
    pairs = SaturatingSum(pairs, VisiblePairs(mask, 0, sequence.seqlen_q));
  }
  return SaturatingProduct(SaturatingProduct(pairs, static_cast<uint64_t>(args.num_heads)),
                           FlopsPerPair(args));
}

uint64_t MergeFlops(const kernels::MergeArgs& args, int64_t batch) {
  const uint64_t rows = SaturatingProduct(static_cast<uint64_t>(batch * args.num_heads),
                                          static_cast<uint64_t>(args.seqlen_q));
  return SaturatingProduct(rows, 3 * static_cast<uint64_t>(args.head_dim_v));
}

}  // namespace flashlane
