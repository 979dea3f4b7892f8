#include "dispatch/backward_grid.h"

#include <algorithm>
#include <cstring>

#include "dispatch/cost.h"

namespace flashlane {
namespace {

// From how many times as many pieces on a side the other one's sums may exist several times. Adding
// them up costs a thread alone some hundredths where both have 2048 rows.
constexpr int64_t kUneven = 4;

// Tiles of one kv head that can run at once then, if it has as many pieces.
constexpr int64_t kTilesAtOnce = 8;

int64_t NumKeys(const kernels::ForwardArgs& args, int64_t batch) {
  const kernels::SequenceValues& ends = args.cu_seqlens_k;
  return ends.data == nullptr ? args.seqlen_k : ends.At(batch + 1) - ends.At(batch);
}

}  // namespace

BackwardGrid::BackwardGrid(const kernels::BackwardArgs& args, const kernels::BackwardEntry& entry)
    : args_(args),
      entry_(entry),
      list_(static_cast<size_t>(args.forward.batch + 1) * (sizeof(int64_t) + sizeof(size_t))) {
  if (!list_.ok()) return;
  pieces_before_ = static_cast<int64_t*>(list_.data());
  parts_before_ = reinterpret_cast<size_t*>(pieces_before_ + args.forward.batch + 1);
  pieces_before_[0] = 0;
  parts_before_[0] = 0;
  // Without a sequence, dbias still needs scratch.
  if (args.forward.batch == 0) scratch_bytes_ = entry.plan(args, {}).scratch_bytes;
  for (int64_t b = 0; b < args.forward.batch; ++b) {
    const Cut cut = CutOf(b);
    pieces_before_[b + 1] = pieces_before_[b] + args.forward.num_kv_heads * cut.pieces;
    const size_t head_part_bytes = HeadPartBytes(cut);
    parts_before_[b + 1] =
        parts_before_[b] + head_part_bytes * static_cast<size_t>(args.forward.num_kv_heads);
    head_part_bytes_ = std::max(head_part_bytes_, head_part_bytes);
    num_phases_ = std::max(num_phases_, cut.phases);
    scratch_bytes_ = std::max(scratch_bytes_, cut.plan.scratch_bytes);
  }
}

BackwardGrid::Cut BackwardGrid::CutOf(int64_t batch) const {
  Cut cut;
  cut.sequence = kernels::Sequence::Of(args_.forward, batch);
  cut.plan = entry_.plan(args_, cut.sequence);
  cut.num_keys = NumKeys(args_.forward, batch);
  cut.query_pieces = kernels::DivideUp(cut.sequence.seqlen_q, cut.plan.queries_per_piece);
  cut.key_pieces = kernels::DivideUp(cut.sequence.k_len, cut.plan.keys_per_piece);
  cut.pieces = std::max<int64_t>(std::max(cut.query_pieces, cut.key_pieces), 1);
  cut.phases = cut.pieces;
  const int64_t fewer = std::min(cut.query_pieces, cut.key_pieces);
  if (fewer > 0 && cut.pieces >= kUneven * fewer) {
    // What is added to the shorter side's sums takes at most as much memory as the longer side's.
    // By all gradients, for the cut must not depend on which are asked for.
    const kernels::ForwardArgs& forward = args_.forward;
    const int64_t queries = forward.group() * cut.sequence.seqlen_q * forward.head_dim;
    const int64_t keys = cut.sequence.k_len * (forward.head_dim + forward.head_dim_v);
    const int64_t affordable = 1 + (cut.by_keys() ? keys / queries : queries / keys);
    const int64_t sums =
        std::clamp<int64_t>(std::min(kTilesAtOnce / fewer, affordable), 1, cut.pieces / fewer);
    cut.phases = kernels::DivideUp(cut.pieces, sums);
  }
  return cut;
}

BackwardGrid::Place BackwardGrid::PlaceOf(int64_t piece) const {
  const int64_t batch =
      std::upper_bound(pieces_before_, pieces_before_ + args_.forward.batch, piece) -
      pieces_before_ - 1;
  const Cut cut = CutOf(batch);
  piece -= pieces_before_[batch];
  const int64_t kv_head = piece / cut.pieces;
  std::byte* parts = parts_ == nullptr ? nullptr
                                       : parts_ + parts_before_[batch] +
                                             static_cast<size_t>(kv_head) * HeadPartBytes(cut);
  return {cut, batch, kv_head, piece % cut.pieces, parts};
}

bool BackwardGrid::TileOf(const Place& place, int64_t phase, kernels::BackwardTile* tile) const {
  const Cut& cut = place.cut;
  if (phase >= cut.phases) return false;
  const int64_t other = (place.piece + phase) % cut.phases;
  const int64_t query_piece = cut.by_keys() ? other : place.piece;
  const int64_t key_piece = cut.by_keys() ? place.piece : other;
  if (key_piece >= cut.key_pieces || query_piece >= cut.query_pieces) return false;
  tile->batch = place.batch;
  tile->kv_head = place.kv_head;
  tile->q_begin = query_piece * cut.plan.queries_per_piece;
  tile->q_end = std::min(tile->q_begin + cut.plan.queries_per_piece, cut.sequence.seqlen_q);
  tile->key_begin = key_piece * cut.plan.keys_per_piece;
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

size_t BackwardGrid::HeadPartBytes(const Cut& cut) const {
  const kernels::ForwardArgs& forward = args_.forward;
  int64_t elements = 0;
  if (cut.by_keys()) {
    if (args_.dq.data != nullptr) {
      elements = forward.group() * cut.sequence.seqlen_q * forward.head_dim;
    }
  } else {
    const int64_t width = (args_.dk.data != nullptr ? forward.head_dim : 0) +
                          (args_.dv.data != nullptr ? forward.head_dim_v : 0);
    elements = cut.sequence.k_len * width;
  }
  return static_cast<size_t>((cut.num_sums() - 1) * elements) * entry_.sum_bytes;
}

// Number `index` of the others, laid out [index][dq, or dk, then dv].
BackwardGrid::Part BackwardGrid::PartOf(const Place& place, int64_t index) const {
  const Cut& cut = place.cut;
  const kernels::ForwardArgs& forward = args_.forward;
  const size_t bytes = HeadPartBytes(cut) / static_cast<size_t>(cut.num_sums() - 1);
  std::byte* at = place.parts + static_cast<size_t>(index) * bytes;
  // As if rows of all heads and sequences lay there: kernels count from the first.
  const auto take = [&](int64_t first_head, int64_t heads, int64_t first_row, int64_t rows,
                        int64_t width) {
    const int64_t skipped = (first_head * rows + first_row) * width;
    const kernels::RowSums sums{at - skipped * static_cast<int64_t>(entry_.sum_bytes),
                                {0, rows * width, width}};
    at += static_cast<size_t>(heads * rows * width) * entry_.sum_bytes;
    return sums;
  };
  Part part;
  if (cut.by_keys()) {
    if (args_.dq.data != nullptr) {
      part.dq = take(place.kv_head * forward.group(), forward.group(), cut.sequence.q_begin,
                     cut.sequence.seqlen_q, forward.head_dim);
    }
    return part;
  }
  const int64_t first = cut.sequence.k_begin, keys = cut.sequence.k_len;
  if (args_.dk.data != nullptr) part.dk = take(place.kv_head, 1, first, keys, forward.head_dim);
  if (args_.dv.data != nullptr) part.dv = take(place.kv_head, 1, first, keys, forward.head_dim_v);
  return part;
}

// Each piece clears its share of the kv head's.
void BackwardGrid::ClearParts(const Place& place) const {
  const Cut& cut = place.cut;
  if (cut.num_sums() == 1) return;
  const size_t bytes = HeadPartBytes(cut);
  const auto share = [&](int64_t piece) {
    return bytes * static_cast<size_t>(piece) / static_cast<size_t>(cut.pieces);
  };
  const size_t begin = share(place.piece), end = share(place.piece + 1);
  if (begin < end) std::memset(place.parts + begin, 0, end - begin);
}

void BackwardGrid::AddParts(const Place& place) const {
  const Cut& cut = place.cut;
  if (entry_.add == nullptr || cut.num_sums() == 1) return;
  const kernels::Tile rows = Rows(place), keys = Keys(place);
  const int64_t group = args_.forward.group();
  const kernels::BackwardTile tile{
      place.batch,          place.kv_head,  rows.row_begin / group,
      rows.row_end / group, keys.row_begin, std::min(keys.row_end, cut.sequence.k_len)};
  kernels::BackwardArgs part = args_;
  for (int64_t index = 0; index + 1 < cut.num_sums(); ++index) {
    const Part sums = PartOf(place, index);
    part.dq_sum = sums.dq;
    part.dk_sum = sums.dk;
    part.dv_sum = sums.dv;
    entry_.add(args_, part, tile);
  }
}

void BackwardGrid::PrepareAt(const Place& place, void* scratch) const {
  if (entry_.prepare != nullptr) entry_.prepare(args_, Rows(place), scratch);
  if (entry_.clear != nullptr) entry_.clear(args_, Keys(place));
  ClearParts(place);
}

void BackwardGrid::RunAt(const Place& place, int64_t phase, void* scratch) const {
  if (args_.dq.data == nullptr && args_.dk.data == nullptr && args_.dv.data == nullptr) return;
  kernels::BackwardTile tile;
  if (!TileOf(place, phase, &tile)) return;
  const int64_t sums = place.piece / place.cut.phases;
  if (sums == 0) return entry_.run(args_, tile, scratch);
  const Part part = PartOf(place, sums - 1);
  kernels::BackwardArgs args = args_;
  if (part.dq.data != nullptr) args.dq_sum = part.dq;
  if (part.dk.data != nullptr) args.dk_sum = part.dk;
  if (part.dv.data != nullptr) args.dv_sum = part.dv;
  entry_.run(args, tile, scratch);
}

void BackwardGrid::FinishAt(const Place& place) const {
  AddParts(place);
  if (entry_.finish_queries != nullptr) entry_.finish_queries(args_, Rows(place));
  if (entry_.finish_keys != nullptr) entry_.finish_keys(args_, Keys(place));
}

void BackwardGrid::Prepare(int64_t piece, void* scratch) const {
  PrepareAt(PlaceOf(piece), scratch);
}
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

void BackwardGrid::RunHead(int64_t head, void* scratch, void* parts) const {
  const int64_t batch = head / args_.forward.num_kv_heads;
  Place place{CutOf(batch), batch, head % args_.forward.num_kv_heads, 0,
              static_cast<std::byte*>(parts)};
  const int64_t pieces = place.cut.pieces;
  for (place.piece = 0; place.piece < pieces; ++place.piece) PrepareAt(place, scratch);
  for (int64_t phase = 0; phase < place.cut.phases; ++phase) {
    for (place.piece = 0; place.piece < pieces; ++place.piece) RunAt(place, phase, scratch);
  }
  for (place.piece = 0; place.piece < pieces; ++place.piece) FinishAt(place);
}

}  // namespace flashlane
