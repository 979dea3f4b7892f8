// The tiles of a forward call, numbered so that tiles of one kv head are neighbours.
#ifndef FLASHLANE_DISPATCH_TILE_GRID_H_
#define FLASHLANE_DISPATCH_TILE_GRID_H_

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/kernels.h"
#include "kernels/key_splits.h"
#include "threading/scratch.h"

namespace flashlane {

// How many tiles there are may depend on the number of threads; what a row's bits depend on (key
// splits, and whether it streams) does not.
class TileGrid {
 public:
  TileGrid(const kernels::ForwardArgs& args, const kernels::ForwardEntry& entry, int threads);

  // False where memory for the lists ran out.
  bool ok() const { return lists_.ok(); }

  int64_t size() const { return tiles_before_[args_.batch]; }
  kernels::Tile operator[](int64_t unit) const;

  const kernels::TilePlan& plan() const { return plan_; }
  size_t scratch_bytes() const { return scratch_bytes_; }  // per worker

  // Of the sequences whose keys are split; `partials` must be set before tiles are asked for.
  size_t partial_bytes() const;
  void set_partials(void* partials) { partials_ = static_cast<uint8_t*>(partials); }

  // Merges the splits of kv head unit % num_kv_heads of sequence unit / num_kv_heads, if it has
  // any, once all tiles have run.
  int64_t num_merges() const;
  void Merge(int64_t unit) const;

 private:
  // How one sequence is cut.
  struct Cut {
    kernels::KeySplits splits;
    int64_t rows;  // of a kv head
    int64_t rows_per_tile;
    int64_t heads_per_tile;
    int64_t row_tiles() const { return (rows + rows_per_tile - 1) / rows_per_tile; }
  };
  Cut CutOf(int64_t batch) const;
  kernels::KeySplits SplitsOf(const kernels::Sequence& sequence) const;
  int64_t StreamHeads(int64_t num_splits, int threads) const;
  uint8_t* PartialsOf(int64_t batch) const;

  const kernels::ForwardArgs& args_;
  const kernels::ForwardEntry& entry_;
  kernels::TilePlan plan_;
  int64_t rows_per_tile_ = 1;
  int64_t stream_heads_ = 1;
  size_t scratch_bytes_ = 0;
  threading::Scratch lists_;
  int64_t* tiles_before_ = nullptr;     // [batch + 1]
  int64_t* partials_before_ = nullptr;  // [batch + 1], in elements
  uint8_t* partials_ = nullptr;
};

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_TILE_GRID_H_
