// Working memory of one tile, carved from one aligned allocation.
#ifndef FLASHLANE_KERNELS_FLASH_SCRATCH_H_
#define FLASHLANE_KERNELS_FLASH_SCRATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/args.h"
#include "kernels/block_sizes.h"

namespace flashlane::kernels {

// Hands out consecutive, aligned pieces of `base`. With a null base it only measures.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<uint8_t*>(base)) {}

  template <typename U>
  U* Take(int64_t count) {
    U* at = base_ == nullptr ? nullptr : reinterpret_cast<U*>(base_ + offset_);
    const size_t bytes = static_cast<size_t>(count) * sizeof(U);
    offset_ += (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    return at;
  }

  size_t bytes() const { return offset_; }

 private:
  uint8_t* base_;
  size_t offset_ = 0;
};

// What the terms of one panel's scores are made in.
template <class Panel>
struct TermScratch {
  using C = typename Panel::C;

  void TakeFrom(Carver* carver, int64_t keys) {
    additive = carver->Take<C>(keys * Panel::kRows);
    lane_a = carver->Take<C>(Panel::kRows);
    lane_b = carver->Take<C>(Panel::kRows);
  }

  C* additive;  // [keys][kRows]: bias and mask
  C* lane_a;    // [kRows]: first visible key, or ALiBi slope
  C* lane_b;    // [kRows]: last visible key, or position
};

// What every unit needs: the results so far and the scores of one panel. Panels are
// [rows of the matrix][kRows query rows].
template <class Panel>
struct FlashScratch : TermScratch<Panel> {
  using C = typename Panel::C;

  // `o_rows`: head_dim_v, or more where the unit stores whole tiles.
  // `whole_blocks`: scores of a whole block instead of a chunk.
  FlashScratch(Carver* carver, const FlashBlocks& blocks, int64_t num_panels, int64_t o_rows,
               bool rounds_weights, bool whole_blocks)
      : rows(num_panels * Panel::kRows), o_count(rows * o_rows) {
    o = carver->Take<C>(o_count);
    m = carver->Take<C>(rows);
    l = carver->Take<C>(rows);
    if (rounds_weights) exact_l = carver->Take<C>(rows);
    suspect = carver->Take<uint8_t>(rows);
    scores = carver->Take<C>((whole_blocks ? blocks.block_k : blocks.chunk_k) * Panel::kRows);
    this->TakeFrom(carver, blocks.chunk_k);
    hidden = carver->Take<C>(blocks.block_k * Panel::kRows);
    scale[0] = carver->Take<C>(Panel::kRows);
    scale[1] = carver->Take<C>(Panel::kRows);
  }

  void Reset() {
    std::fill(m, m + rows, -std::numeric_limits<C>::infinity());
    std::fill(l, l + rows, C{0});
    if (exact_l != nullptr) std::fill(exact_l, exact_l + rows, C{0});
    std::fill(o, o + o_count, C{0});
  }

  int64_t rows;
  int64_t o_count;
  C* o;                  // panels of [o_rows][kRows]
  C* m;                  // [rows]
  C* l;                  // [rows]
  C* exact_l = nullptr;  // [rows], where weights are rounded
  uint8_t* suspect;      // [rows]
  C* scores;             // [chunk_k or block_k][kRows]
  C* hidden;             // [block_k][kRows]: a copy of the scores where V needs selection
  C* scale[2];           // [kRows] each: of the last two rescalings
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_FLASH_SCRATCH_H_
