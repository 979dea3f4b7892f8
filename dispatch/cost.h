// What a call costs, from its resolved arguments: for the work budget and for cutting work into
// tasks.
#ifndef FLASHLANE_DISPATCH_COST_H_
#define FLASHLANE_DISPATCH_COST_H_

#include <cstdint>

#include "dispatch/wide.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "threading/parallel_for.h"

namespace flashlane {

uint64_t SaturatingSum(uint64_t a, uint64_t b);
uint64_t SaturatingProduct(uint64_t a, uint64_t b);

// Floating-point operations of the two products over visible pairs, 2 (D + Dv) each; the boolean
// mask and -inf biases are not looked at. Saturates at the largest uint64.
uint64_t TileFlops(const kernels::ForwardArgs& args, const kernels::Tile& tile);
uint64_t ForwardFlops(const kernels::ForwardArgs& args);
Uint128 WideForwardFlops(const kernels::ForwardArgs& args);  // the same, of any lengths

// Of MergeStates over `batch` sequences: three per element. What it costs is memory:
// kMergeElementCost in the unit of TileCost, from 0.5 ns per element (two loads and a store of four
// bytes each).
uint64_t MergeFlops(const kernels::MergeArgs& args, int64_t batch);
inline constexpr uint64_t kMergeElementCost = 25;

// What cutting balances: the flops; for every row the packing of q and the store of out, which
// cost about as much as kRowOverheadFlops flops per element.
inline constexpr uint64_t kRowOverheadFlops = 16;
// And for every element of K and V that a tile reads, what its way from memory costs where few rows
// use it: four bytes at 25 bytes per ns.
inline constexpr uint64_t kKeyElementFlops = 8;
uint64_t TileCost(const kernels::ForwardArgs& args, const kernels::Tile& tile);

// Of the five products of the backward over visible pairs, without those that nobody asked for;
// and as TileCost, for a tile of it.
uint64_t BackwardFlops(const kernels::BackwardArgs& args);
Uint128 WideBackwardFlops(const kernels::BackwardArgs& args);
uint64_t BackwardTileCost(const kernels::BackwardArgs& args, const kernels::BackwardTile& tile);

// A task is worth spawning from here on: threading::kMinTaskNanoseconds at 50 flop/ns, about what
// one core of this decade does in f32. Where a kernel has been judged, MinTaskCost (judged.h) knows
// better.
inline constexpr uint64_t kFlopsPerNanosecond = 50;
inline constexpr uint64_t kMinTaskCost = threading::kMinTaskNanoseconds * kFlopsPerNanosecond;

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_COST_H_
