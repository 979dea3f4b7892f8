// The entries of kernels/: per kernel a {plan, run} pair for one element type and one target. They
// are called through the registry in dispatch/ only.
#ifndef FLASHLANE_KERNELS_KERNELS_H_
#define FLASHLANE_KERNELS_KERNELS_H_

#include <cstdint>

#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/kv_args.h"
#include "kernels/rope_args.h"

namespace flashlane::kernels {

// For sequences of few rows (KeySplits). scratch_bytes: of a tile of that many kv heads. run: as
// ForwardEntry's, for tiles with all rows of one or more kv heads. merge: out and lse from the
// partial results of all splits, the same bits whoever calls it.
struct StreamEntry {
  size_t (*scratch_bytes)(const ForwardArgs& args, int64_t num_kv_heads) = nullptr;
  void (*run)(const ForwardArgs& args, const Tile& tile, void* scratch) = nullptr;
  void (*merge)(const ForwardArgs& args, const SplitResults& splits) = nullptr;
  size_t element_bytes = 0;  // of partial results
};

// plan: block sizes and scratch for these shapes. run: computes the tile's rows of out and lse;
// writes nothing else, allocates nothing, is safe to call from several threads at once with
// separate scratch.
struct ForwardEntry {
  TilePlan (*plan)(const ForwardArgs& args) = nullptr;
  void (*run)(const ForwardArgs& args, const Tile& tile, void* scratch) = nullptr;
  const char* unit = "";  // what multiplies: "fma", "bf16 dot", "amx"; "scalar"
  StreamEntry streams;    // nulls where the kernel neither streams nor splits keys
};

// In this order, each whole before the next begins: prepare for all rows (where the plan needs the
// forward's results) and clear for all keys, run for all tiles phase by phase (BackwardPlan),
// finish for all rows and keys. bias and sinks need prepare only. All write only what their unit
// owns and allocate nothing.
struct BackwardEntry {
  // For one sequence: lengths differ from sequence to sequence.
  BackwardPlan (*plan)(const BackwardArgs& args, const Sequence& sequence) = nullptr;
  // row_terms of the tile's rows (as ForwardEntry's tiles: of one kv head) where the plan needs
  // them, and zeros in their dq_sum.
  void (*prepare)(const BackwardArgs& args, const Tile& tile, void* scratch) = nullptr;
  // Zeros in dk_sum and dv_sum of keys [row_begin, row_end) of one kv head: of all the sequence
  // has, dead ones too.
  void (*clear)(const BackwardArgs& args, const Tile& tile) = nullptr;
  void (*run)(const BackwardArgs& args, const BackwardTile& tile, void* scratch) = nullptr;
  // Sums to gradients where the types differ: of the tile's rows, and of keys
  // [row_begin, row_end). Null where they do not.
  void (*finish_queries)(const BackwardArgs& args, const Tile& tile) = nullptr;
  void (*finish_keys)(const BackwardArgs& args, const Tile& tile) = nullptr;
  // The tile's elements of dbias, summed over all that bias broadcasts, in a fixed order.
  void (*bias)(const BackwardArgs& args, const BiasTile& tile, void* scratch) = nullptr;
  // dsinks of one query head, summed over all sequences.
  void (*sinks)(const BackwardArgs& args, int64_t head) = nullptr;
  const char* unit = "";
};

// Merges rows [row_begin, row_end).
struct MergeEntry {
  void (*run)(const MergeArgs& args, int64_t row_begin, int64_t row_end) = nullptr;
};

// Elements [begin, end) of every token, or of every block: k's item_size, then v's; where k is
// turned, its heads that begin there. Ranges that do not meet may run at the same time, whatever
// the destinations.
struct KvAppendEntry {
  void (*run)(const KvAppendArgs& args, int64_t begin, int64_t end) = nullptr;
};
struct KvBlocksEntry {
  void (*run)(const KvBlocksArgs& args, int64_t begin, int64_t end) = nullptr;
};

// run: items [begin, end) of the call. rotate: of one head of one token, for KvAppendArgs.
struct RopeEntry {
  void (*run)(const RopeArgs& args, int64_t begin, int64_t end) = nullptr;
  RotateFunction rotate = nullptr;
};

// Highway target bits that the vector kernels are compiled for, best (lowest) bit first in order
// of preference; and those of them that can work with AMX tiles, as target | kAmxBit.
int64_t CompiledTargets();
int64_t AmxTargets();

// Tiled online softmax; T is float, double, hwy::bfloat16_t or hwy::float16_t. `target` is one bit
// of CompiledTargets(), or one of AmxTargets() with kAmxBit: bf16 then multiplies by tiles, and the
// other types as without.
template <typename T>
ForwardEntry AttentionFlash(int64_t target);
ForwardEntry AttentionFlashAmx(int64_t target);  // of bf16

// The streams of AttentionFlash.
template <typename T>
StreamEntry AttentionStream(int64_t target);

// The scalar oracle; T is float, double, hwy::bfloat16_t or hwy::float16_t. Same on every target.
template <typename T>
ForwardEntry AttentionNaive();

// Gradients by recompute; T and target as for AttentionFlash.
template <typename T>
BackwardEntry AttentionFlashBackward(int64_t target);
BackwardEntry AttentionFlashBackwardAmx(int64_t target);  // of bf16
// Its scalar oracle: one tile per kv head.
template <typename T>
BackwardEntry AttentionNaiveBackward();

// Union of two partial results; T as for AttentionFlash.
template <typename T>
MergeEntry MergeStates(int64_t target);

// Rotary position embedding; T as for AttentionFlash.
template <typename T>
RopeEntry Rope(int64_t target);

// Copies into a paged cache; T as for AttentionNaive. Same on every target.
template <typename T>
KvAppendEntry KvAppend();
template <typename T>
KvBlocksEntry KvBlocks();

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_KERNELS_H_
