// The units of a backward call: what BackwardPlan cuts each kv head of each sequence into.
#ifndef FLASHLANE_DISPATCH_BACKWARD_GRID_H_
#define FLASHLANE_DISPATCH_BACKWARD_GRID_H_

#include <cstddef>
#include <cstdint>

#include "kernels/backward_args.h"
#include "kernels/kernels.h"
#include "threading/scratch.h"

namespace flashlane {

// Nothing here depends on the number of threads.
class BackwardGrid {
 public:
  BackwardGrid(const kernels::BackwardArgs& args, const kernels::BackwardEntry& entry);

  // False where memory for the list ran out.
  bool ok() const { return list_.ok(); }

  size_t scratch_bytes() const { return scratch_bytes_; }  // per worker

  // Where one side of a sequence has few pieces, its sums exist several times: those beside the
  // call's own, the parts, take part_bytes of all kv heads, head_part_bytes of any one.
  size_t part_bytes() const { return parts_before_[args_.forward.batch]; }
  size_t head_part_bytes() const { return head_part_bytes_; }

  // kv heads of sequences: whole ones are independent of each other, and whoever runs them has
  // parts for one.
  int64_t num_heads() const;
  uint64_t HeadCost(int64_t head) const;
  void RunHead(int64_t head, void* scratch, void* parts) const;

  // Or in stages of pieces, each stage whole before the next begins: Prepare of all pieces, Run of
  // all for phase 0, 1, ..., Finish of all. The same bits. Memory for all parts must be set before.
  void set_parts(void* parts) { parts_ = static_cast<std::byte*>(parts); }
  int64_t num_pieces() const { return pieces_before_[args_.forward.batch]; }
  int64_t num_phases() const { return num_phases_; }
  uint64_t PrepareCost(int64_t piece) const;  // and of Finish
  uint64_t RunCost(int64_t piece, int64_t phase) const;
  void Prepare(int64_t piece, void* scratch) const;
  void Run(int64_t piece, int64_t phase, void* scratch) const;
  void Finish(int64_t piece) const;

 private:
  // How one sequence is cut.
  struct Cut {
    kernels::Sequence sequence;
    kernels::BackwardPlan plan;
    int64_t num_keys;  // of the sequence, dead ones too
    int64_t query_pieces;
    int64_t key_pieces;
    // Pieces are those of the longer side. Piece p adds to the shorter side's sums number
    // p / phases: of these there are several where the shorter side has few pieces.
    int64_t pieces;
    int64_t phases;
    int64_t num_sums() const { return kernels::DivideUp(pieces, phases); }
    bool by_keys() const { return key_pieces >= query_pieces; }
  };
  struct Place {
    Cut cut;
    int64_t batch;
    int64_t kv_head;
    int64_t piece;
    std::byte* parts;  // of this kv head
  };
  // The shorter side's sums beside the call's own, of one kv head; others are null.
  struct Part {
    kernels::RowSums dq, dk, dv;
  };
  Cut CutOf(int64_t batch) const;
  Place PlaceOf(int64_t piece) const;

  size_t HeadPartBytes(const Cut& cut) const;
  Part PartOf(const Place& place, int64_t index) const;
  void ClearParts(const Place& place) const;
  void AddParts(const Place& place) const;
  bool TileOf(const Place& place, int64_t phase, kernels::BackwardTile* tile) const;
  kernels::Tile Rows(const Place& place) const;
  kernels::Tile Keys(const Place& place) const;
  void PrepareAt(const Place& place, void* scratch) const;
  void RunAt(const Place& place, int64_t phase, void* scratch) const;
  void FinishAt(const Place& place) const;

  const kernels::BackwardArgs& args_;
  const kernels::BackwardEntry& entry_;
  threading::Scratch list_;
  int64_t* pieces_before_ = nullptr;  // [batch + 1]
  size_t* parts_before_ = nullptr;    // likewise, in bytes
  size_t head_part_bytes_ = 0;
  std::byte* parts_ = nullptr;
  int64_t num_phases_ = 0;
  size_t scratch_bytes_ = 0;
};

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_BACKWARD_GRID_H_
