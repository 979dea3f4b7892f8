#include "dispatch/backward_grid.h"

#include <algorithm>

#include "dispatch/cost.h"

namespace flashlane {
namespace {

int64_t NumKeys(const kernels::ForwardArgs& args, int64_t batch) {
  const kernels::SequenceValues& ends = args.cu_seqlens_k;
  return ends.data == nullptr ? args.seqlen_k : ends.At(batch + 1) - ends.At(batch);
}

}  // namespace

BackwardGrid::BackwardGrid(const kernels::BackwardArgs& args, const kernels::BackwardEntry& entry)
    : args_(args),
      entry_(entry),
      list_(static_cast<size_t>(args.forward.batch + 1) * sizeof(int64_t)) {
  if (!list_.ok()) return;
  pieces_before_ = static_cast<int64_t*>(list_.data());
  pieces_before_[0] = 0;
  // Without a sequence, dbias still needs scratch.
  if (args.forward.batch == 0) scratch_bytes_ = entry.plan(args, {}).scratch_bytes;
  for (int64_t b = 0; b < args.forward.batch; ++b) {
    const Cut cut = CutOf(b);
    pieces_before_[b + 1] = pieces_before_[b] + args.forward.num_kv_heads * cut.pieces();
    num_phases_ = std::max(num_phases_, cut.pieces());
    scratch_bytes_ = std::max(scratch_bytes_, cut.plan.scratch_bytes);
  }
}

int64_t BackwardGrid::Cut::pieces() const {
  return std::max<int64_t>(std::max(query_pieces, key_pieces), 1);
}

BackwardGrid::Cut BackwardGrid::CutOf(int64_t batch) const {
  Cut cut;
  cut.sequence = kernels::Sequence::Of(args_.forward, batch);
  cut.plan = entry_.plan(args_, cut.sequence);
  cut.num_keys = NumKeys(args_.forward, batch);
  cut.query_pieces = kernels::DivideUp(cut.sequence.seqlen_q, cut.plan.queries_per_piece);
  cut.key_pieces = kernels::DivideUp(cut.sequence.k_len, cut.plan.keys_per_piece);
  return cut;
}

BackwardGrid::Place BackwardGrid::PlaceOf(int64_t piece) const {
  const int64_t batch =
      std::upper_bound(pieces_before_, pieces_before_ + args_.forward.batch, piece) -
      pieces_before_ - 1;
  const Cut cut = CutOf(batch);
  piece -= pieces_before_[batch];
  return {cut, batch, piece / cut.pieces(), piece % cut.pieces()};
}

bool BackwardGrid::TileOf(const Place& place, int64_t phase, kernels::BackwardTile* tile) const {
  const Cut& cut = place.cut;
  if (phase >= cut.pieces()) return false;
  const int64_t query_piece = (place.piece + phase) % cut.pieces();
  if (place.piece >= cut.key_pieces || query_piece >= cut.query_pieces) return false;
  tile->batch = place.batch;
  tile->kv_head = place.kv_head;
  tile->q_begin = query_piece * cut.plan.queries_per_piece;
  tile->q_end = std::min(tile->q_begin + cut.plan.queries_per_piece, cut.sequence.seqlen_q);
  tile->key_begin = place.piece * cut.plan.keys_per_piece;
  tile->key_end = std::min(tile->key_begin + cut.plan.keys_per_piece, cut.sequence.k_len);
  return true;
}

kernels::Tile BackwardGrid::Rows(const Place& place) const {
  const Cut& cut = place.cut;
  const int64_t group = args_.forward.group();
  kernels::Tile tile;
  tile.batch = place.batch;
  tile.kv_head = place.kv_head;
  if (place.piece >= cut.query_pieces) return tile;
  const int64_t begin = place.piece * cut.plan.queries_per_piece;
  tile.row_begin = begin * group;
  tile.row_end = std::min(begin + cut.plan.queries_per_piece, cut.sequence.seqlen_q) * group;
  return tile;
}

// The last live piece takes the dead keys, too.
kernels::Tile BackwardGrid::Keys(const Place& place) const {
  const Cut& cut = place.cut;
  const int64_t last = std::max<int64_t>(cut.key_pieces - 1, 0);
  kernels::Tile tile;
  tile.batch = place.batch;
  tile.kv_head = place.kv_head;
  if (place.piece > last) return tile;
  tile.row_begin = place.piece * cut.plan.keys_per_piece;
  tile.row_end = place.piece == last ? cut.num_keys : tile.row_begin + cut.plan.keys_per_piece;
  return tile;
}

void BackwardGrid::PrepareAt(const Place& place) const {
  if (entry_.delta != nullptr) entry_.delta(args_, Rows(place));
  if (entry_.clear != nullptr) entry_.clear(args_, Keys(place));
}

void BackwardGrid::RunAt(const Place& place, int64_t phase, void* scratch) const {
  if (args_.dq.data == nullptr && args_.dk.data == nullptr && args_.dv.data == nullptr) return;
  kernels::BackwardTile tile;
  if (TileOf(place, phase, &tile)) entry_.run(args_, tile, scratch);
}

void BackwardGrid::FinishAt(const Place& place) const {
  if (entry_.finish_queries != nullptr) entry_.finish_queries(args_, Rows(place));
  if (entry_.finish_keys != nullptr) entry_.finish_keys(args_, Keys(place));
}

void BackwardGrid::Prepare(int64_t piece) const { PrepareAt(PlaceOf(piece)); }
void BackwardGrid::Run(int64_t piece, int64_t phase, void* scratch) const {
  RunAt(PlaceOf(piece), phase, scratch);
}
void BackwardGrid::Finish(int64_t piece) const { FinishAt(PlaceOf(piece)); }

uint64_t BackwardGrid::PrepareCost(int64_t piece) const {
  const Place place = PlaceOf(piece);
  const kernels::Tile rows = Rows(place), keys = Keys(place);
  const auto elements =
      static_cast<uint64_t>((rows.row_end - rows.row_begin + keys.row_end - keys.row_begin) *
                            (args_.forward.head_dim + args_.forward.head_dim_v));
  return SaturatingProduct(elements, kRowOverheadFlops);
}

uint64_t BackwardGrid::RunCost(int64_t piece, int64_t phase) const {
  kernels::BackwardTile tile;
  if (!TileOf(PlaceOf(piece), phase, &tile)) return 0;
  return BackwardTileCost(args_, tile);
}

int64_t BackwardGrid::num_heads() const { return args_.forward.batch * args_.forward.num_kv_heads; }

uint64_t BackwardGrid::HeadCost(int64_t head) const {
  const kernels::Sequence sequence =
      kernels::Sequence::Of(args_.forward, head / args_.forward.num_kv_heads);
  kernels::BackwardTile tile;
  tile.batch = head / args_.forward.num_kv_heads;
  tile.q_end = sequence.seqlen_q;
  tile.key_end = sequence.k_len;
  return BackwardTileCost(args_, tile);
}

void BackwardGrid::RunHead(int64_t head, void* scratch) const {
  const int64_t batch = head / args_.forward.num_kv_heads;
  Place place{CutOf(batch), batch, head % args_.forward.num_kv_heads, 0};
  const int64_t pieces = place.cut.pieces();
  for (place.piece = 0; place.piece < pieces; ++place.piece) PrepareAt(place);
  for (int64_t phase = 0; phase < pieces; ++phase) {
    for (place.piece = 0; place.piece < pieces; ++place.piece) RunAt(place, phase, scratch);
  }
  for (place.piece = 0; place.piece < pieces; ++place.piece) FinishAt(place);
}

}  // namespace flashlane
