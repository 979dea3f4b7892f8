// The units of dbias.
#ifndef FLASHLANE_DISPATCH_BIAS_TILES_H_
#define FLASHLANE_DISPATCH_BIAS_TILES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bias_strips.h"
#include "kernels/kernels.h"

namespace flashlane {

// The tiles of dbias, numbered column blocks first; none where it is not asked for. Where they are
// few but sum over much, a tile is several units: equal parts of its strips, whose sums are added
// in their order. From the sizes alone.
class BiasTiles {
 public:
  BiasTiles(const kernels::BackwardEntry& entry, const kernels::BackwardArgs& args) {
    if (args.dbias == nullptr || entry.bias == nullptr) return;
    const kernels::ForwardArgs& forward = args.forward;
    const kernels::BackwardPlan plan = entry.plan(args, {});
    heads_ = args.dbias_head == 0 ? 1 : forward.num_heads;
    rows_ = args.dbias_row == 0 ? 1 : forward.seqlen_q;
    cols_ = args.dbias_col == 0 ? 1 : forward.seqlen_k;
    rows_per_tile_ = plan.bias_rows;
    cols_per_tile_ = plan.bias_cols;
    row_tiles_ = kernels::DivideUp(rows_, rows_per_tile_);
    col_tiles_ = kernels::DivideUp(cols_, cols_per_tile_);
    size_ = (args.dbias_batch == 0 ? 1 : forward.batch) * heads_ * row_tiles_ * col_tiles_;
    strips_ = kernels::BiasStrips(args, plan.bias_rows).all;
    sum_bytes_ = plan.bias_sum_bytes;
    if (size_ == 0 || sum_bytes_ == 0) return;
    const int64_t most = std::max<int64_t>(strips_ / kMinStrips, 1);
    parts_ = std::clamp<int64_t>(kUnits / size_, 1, most);
  }

  int64_t size() const { return size_; }
  int64_t units() const { return size_ * parts_; }
  int64_t parts() const { return parts_; }  // of each tile
  size_t sum_bytes() const { return parts_ == 1 ? 0 : static_cast<size_t>(units()) * sum_bytes_; }

  // Tile `index` with all its strips; its sums, if any, at those of its first part.
  kernels::BiasTile Tile(int64_t index, std::byte* sums) const {
    kernels::BiasTile tile;
    const int64_t matrix = index / (row_tiles_ * col_tiles_);
    tile.batch = matrix / heads_;
    tile.head = matrix % heads_;
    tile.row_begin = index / col_tiles_ % row_tiles_ * rows_per_tile_;
    tile.row_end = std::min(tile.row_begin + rows_per_tile_, rows_);
    tile.col_begin = index % col_tiles_ * cols_per_tile_;
    tile.col_end = std::min(tile.col_begin + cols_per_tile_, cols_);
    tile.strip_end = strips_;
    if (parts_ > 1) tile.sums = sums + static_cast<size_t>(index * parts_) * sum_bytes_;
    return tile;
  }

  kernels::BiasTile Unit(int64_t unit, std::byte* sums) const {
    kernels::BiasTile tile = Tile(unit / parts_, sums);
    if (parts_ == 1) return tile;
    const int64_t part = unit % parts_;
    tile.strip_begin = strips_ * part / parts_;
    tile.strip_end = strips_ * (part + 1) / parts_;
    tile.sums = sums + static_cast<size_t>(unit) * sum_bytes_;
    return tile;
  }

 private:
  static constexpr int64_t kUnits = 64;     // as many threads find work, and 2 MiB hold the sums
  static constexpr int64_t kMinStrips = 4;  // then adding sums costs little beside making them

  int64_t heads_ = 1, rows_ = 0, cols_ = 0, rows_per_tile_ = 1, cols_per_tile_ = 1;
  int64_t row_tiles_ = 0, col_tiles_ = 0, size_ = 0, strips_ = 0, parts_ = 1;
  size_t sum_bytes_ = 0;
};

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_BIAS_TILES_H_
