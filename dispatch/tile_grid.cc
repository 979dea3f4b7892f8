#include "dispatch/tile_grid.h"

#include <algorithm>

#include "threading/partition.h"

namespace flashlane {
namespace {

// Queries of all sequences.
int64_t NumQueries(const kernels::ForwardArgs& args) {
  return args.cu_seqlens_q.data != nullptr ? args.cu_seqlens_q.At(args.batch)
                                           : args.batch * args.seqlen_q;
}

// q, o and the sums of the kv heads of a tile that streams: half of a 1 MiB L2, beside K and V.
constexpr size_t kMaxStreamBytes = 512 * 1024;

// Tiles per thread that keep all busy until the end.
constexpr int64_t kTilesPerThread = 3;

}  // namespace

TileGrid::TileGrid(const kernels::ForwardArgs& args, const kernels::ForwardEntry& entry,
                   int threads)
    : args_(args),
      entry_(entry),
      plan_(entry.plan(args)),
      lists_(2 * static_cast<size_t>(args.batch + 1) * sizeof(int64_t)) {
  if (!lists_.ok()) return;
  tiles_before_ = static_cast<int64_t*>(lists_.data());
  partials_before_ = tiles_before_ + args.batch + 1;
  // Of unequal sequences, as many as there would be if all were as long as the longest.
  const int64_t sequences = NumQueries(args) / std::max<int64_t>(args.seqlen_q, 1);
  rows_per_tile_ =
      threading::RowsPerTile({args.seqlen_q * args.group(), plan_.block_rows, plan_.row_granule,
                              std::max<int64_t>(sequences, 1) * args.num_kv_heads},
                             threads);
  int64_t stream_splits = 0;
  bool any_tiled = false;
  for (int64_t b = 0; b < args.batch; ++b) {
    const auto splits = SplitsOf(kernels::Sequence::Of(args, b));
    stream_splits += splits.streams ? splits.count : 0;
    any_tiled = any_tiled || !splits.streams;
  }
  if (any_tiled) scratch_bytes_ = plan_.scratch_bytes;
  if (stream_splits > 0) {
    stream_heads_ = StreamHeads(stream_splits, threads);
    scratch_bytes_ = std::max(scratch_bytes_, entry.streams.scratch_bytes(args, stream_heads_));
  }
  tiles_before_[0] = partials_before_[0] = 0;
  for (int64_t b = 0; b < args.batch; ++b) {
    const Cut cut = CutOf(b);
    const int64_t heads = kernels::DivideUp(args.num_kv_heads, cut.heads_per_tile);
    tiles_before_[b + 1] = tiles_before_[b] + heads * cut.splits.count * cut.row_tiles();
    const int64_t partials = cut.splits.count == 1 ? 0 : cut.splits.count;
    partials_before_[b + 1] = partials_before_[b] + partials * kernels::Partial::NumElements(
                                                                   args, cut.rows / args.group());
  }
}

kernels::KeySplits TileGrid::SplitsOf(const kernels::Sequence& sequence) const {
  if (entry_.streams.run == nullptr) return {};
  return kernels::KeySplits::Of(args_, sequence);
}

// All heads where a token's lie together in memory, as many as fit and leave work for every thread.
int64_t TileGrid::StreamHeads(int64_t num_splits, int threads) const {
  const bool together = args_.k_strides.head <= args_.k_strides.row;
  if (!together || args_.num_kv_heads == 1) return 1;
  const int64_t tiles = threads == 1 ? 1 : kernels::DivideUp(threads * kTilesPerThread, num_splits);
  int64_t heads = std::max<int64_t>(args_.num_kv_heads / std::min(tiles, args_.num_kv_heads), 1);
  while (heads > 1 && entry_.streams.scratch_bytes(args_, heads) > kMaxStreamBytes) {
    heads = kernels::DivideUp(heads, 2);
  }
  return heads;
}

TileGrid::Cut TileGrid::CutOf(int64_t batch) const {
  const auto sequence = kernels::Sequence::Of(args_, batch);
  Cut cut{SplitsOf(sequence), sequence.seqlen_q * args_.group(), rows_per_tile_, 1};
  if (cut.splits.streams) {
    cut.rows_per_tile = cut.rows;
    cut.heads_per_tile = stream_heads_;
  }
  return cut;
}

uint8_t* TileGrid::PartialsOf(int64_t batch) const {
  return partials_ + static_cast<size_t>(partials_before_[batch]) * entry_.streams.element_bytes;
}

size_t TileGrid::partial_bytes() const {
  return static_cast<size_t>(partials_before_[args_.batch]) * entry_.streams.element_bytes;
}

kernels::Tile TileGrid::operator[](int64_t unit) const {
  const int64_t batch =
      std::upper_bound(tiles_before_, tiles_before_ + args_.batch, unit) - tiles_before_ - 1;
  const Cut cut = CutOf(batch);
  unit -= tiles_before_[batch];
  const int64_t row_tiles = cut.row_tiles();  // not 0: an empty sequence has no units
  const int64_t split = unit / row_tiles % cut.splits.count;
  kernels::Tile tile;
  tile.batch = batch;
  tile.row_begin = unit % row_tiles * cut.rows_per_tile;
  tile.row_end = std::min(cut.rows, tile.row_begin + cut.rows_per_tile);
  tile.kv_head = unit / row_tiles / cut.splits.count * cut.heads_per_tile;
  tile.num_kv_heads = std::min(cut.heads_per_tile, args_.num_kv_heads - tile.kv_head);
  tile.streams = cut.splits.streams;
  if (cut.splits.count == 1) return tile;
  const kernels::KeyRange keys = cut.splits.Keys(split);
  tile.key_begin = keys.begin;
  tile.key_end = keys.end;
  const int64_t elements = split * kernels::Partial::NumElements(args_, cut.rows / args_.group());
  tile.partial = PartialsOf(batch) + static_cast<size_t>(elements) * entry_.streams.element_bytes;
  return tile;
}

int64_t TileGrid::num_merges() const {
  return partials_before_[args_.batch] == 0 ? 0 : args_.batch * args_.num_kv_heads;
}

void TileGrid::Merge(int64_t unit) const {
  const int64_t batch = unit / args_.num_kv_heads;
  if (partials_before_[batch] == partials_before_[batch + 1]) return;
  const int64_t head = unit % args_.num_kv_heads * args_.group();
  entry_.streams.merge(
      args_, {PartialsOf(batch), CutOf(batch).splits.count, batch, head, head + args_.group()});
}

}  // namespace flashlane
