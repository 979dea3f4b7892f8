// A resolved backward call and one unit of its work, with the conventions of args.h.
#ifndef FLASHLANE_KERNELS_BACKWARD_ARGS_H_
#define FLASHLANE_KERNELS_BACKWARD_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"

namespace flashlane::kernels {

// A gradient, as the caller laid it out (T) or as it is summed in the compute type (C): the same
// memory where the two types are one. Null data: not asked for.
struct RowSums {
  void* data = nullptr;
  RowStrides strides;
};

// What the gradients of a query row need of it, in the compute type: P = factor * exp(s - shift),
// in the unit of the kernel's scores. shift is -inf where the row sees no key.
template <typename C>
struct RowTerms {
  C shift;
  C factor;
  C delta;  // sum(dout * out)
};

// forward.out and forward.lse are inputs: kept by the caller or computed for this call. They and
// row_terms may be null for a kernel whose plan does not need them (the oracle's).
struct BackwardArgs {
  ForwardArgs forward;
  const void* dout = nullptr;  // of q's dtype, [B, Hq, Sq, Dv]
  RowStrides dout_strides;

  RowSums dq, dk, dv;              // of q's dtype
  RowSums dq_sum, dk_sum, dv_sum;  // in the compute type, same shapes; null where not asked for
  RowSums row_terms;               // RowTerms, [B, Hq, Sq]

  // Gradients of bias and sinks, each of its operand's dtype. A dimension whose dbias stride is 0
  // has size 1 there: what bias broadcasts over it is summed. Elements never overlap.
  void* dbias = nullptr;
  int64_t dbias_batch = 0;
  int64_t dbias_head = 0;
  int64_t dbias_row = 0;
  int64_t dbias_col = 0;
  void* dsinks = nullptr;
  int64_t dsinks_stride = 1;
};

// One unit of work: queries [q_begin, q_end) of all query heads of one kv head of one sequence,
// against keys [key_begin, key_end); multiples of the plan's sizes, or the sequence's end. Adds to
// dq_sum of the queries and to dk_sum and dv_sum of the keys.
struct BackwardTile {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t key_begin = 0;
  int64_t key_end = 0;
};

// One unit of work on dbias: rows [row_begin, row_end) and columns [col_begin, col_end) of one of
// its matrices. Multiples of the plan's sizes, or the end; a dimension that is summed is [0, 1).
struct BiasTile {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
  // Of the strips of query rows that are summed, strip by strip of head by head of batch by batch,
  // those of this unit: all (then sums is null), or some, whose sums go to `sums`.
  int64_t strip_begin = 0;
  int64_t strip_end = 0;
  void* sums = nullptr;
};

// How a sequence is cut; from its lengths and the head sizes alone. With n pieces (the larger
// number of the two cuts) the tiles of phase p, for p < n in order, are those of key piece j and
// query piece (j + p) % n: no two of one phase share a sum, so they may run at once, and every sum
// sees its terms in the same order whatever the threads do. All pieces but the last are as long.
// Where one side has few pieces, its sums exist several times and n is divided by their number;
// BackwardEntry::add makes one of them.
struct BackwardPlan {
  int64_t queries_per_piece = 1;
  int64_t keys_per_piece = 1;
  int64_t bias_rows = 1;  // of a BiasTile, and of a strip; from the head sizes alone
  int64_t bias_cols = 1;
  size_t bias_sum_bytes = 0;  // of BiasTile::sums, aligned as scratch; 0: takes all strips at once
  size_t scratch_bytes = 0;   // per worker, aligned to kScratchAlignment; of run and of bias
  bool needs_forward = true;  // reads forward.out, forward.lse and row_terms
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_BACKWARD_ARGS_H_
