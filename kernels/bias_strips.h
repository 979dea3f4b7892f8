// What an element of dbias sums over: strips of query rows of heads of sequences.
#ifndef FLASHLANE_KERNELS_BIAS_STRIPS_H_
#define FLASHLANE_KERNELS_BIAS_STRIPS_H_

#include <cstdint>

#include "kernels/backward_args.h"

namespace flashlane::kernels {

// A dimension that dbias has is one index here, that of the tile; row by row its strip is one.
struct BiasStrips {
  BiasStrips(const BackwardArgs& args, int64_t rows_per_strip)
      : per_head(args.dbias_row == 0 ? DivideUp(args.forward.seqlen_q, rows_per_strip) : 1),
        per_batch(args.dbias_head == 0 ? per_head * args.forward.num_heads : per_head),
        all(args.dbias_batch == 0 ? per_batch * args.forward.batch : per_batch) {}

  int64_t per_head;
  int64_t per_batch;
  int64_t all;
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_BIAS_STRIPS_H_
