// Attention over flat, row-major [token][head][dim] buffers of doubles: seven modules of plain
// functions, which the kernels of flashlane/attention.h, backward.h and rope.h compute.
//
//   contract  sizes, scalars, names of statuses and backends, work budget (flat/contract.h)
//   sdpa      the reference, one row of scores at a time                 (flat/sdpa.h)
//   flash     the tiled kernel, and its agreement with the reference     (flat/flash.h)
//   mask      causal, window, padding, packed sequences, as a bias       (flat/mask.h)
//   rope      frequencies, tables, rotation and its inverse              (flat/rope.h)
//   tiled     the forward paths by name, flops, distance to the reference (flat/tiled.h)
//   backward  gradients, and their check by finite differences           (flat/backward.h)
//
//   using namespace flashlane::flat;
//   AttnStatus status = sdpa_forward_flat({q, k, v}, {n_tok_q, n_tok_k, h_q, h_kv, head_dim},
//                                         {scale, causal}, {out, lse});
//
// with q, k, v, out, lse vectors of doubles. Names are those of the modules' specification.
#ifndef FLASHLANE_FLAT_H_
#define FLASHLANE_FLAT_H_

#include "flashlane/flat/backward.h"
#include "flashlane/flat/contract.h"
#include "flashlane/flat/flash.h"
#include "flashlane/flat/mask.h"
#include "flashlane/flat/rope.h"
#include "flashlane/flat/sdpa.h"
#include "flashlane/flat/tiled.h"

#endif  // FLASHLANE_FLAT_H_
