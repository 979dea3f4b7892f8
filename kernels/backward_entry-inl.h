// What the registry knows of a backward kernel, from the unit that multiplies.

#if defined(FLASHLANE_KERNELS_BACKWARD_ENTRY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_ENTRY_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_ENTRY_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_ENTRY_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward-inl.h"
#include "kernels/backward_args.h"
#include "kernels/backward_bias-inl.h"
#include "kernels/backward_terms-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

template <class Unit>
BackwardPlan PlanBackward(const BackwardArgs& args, const Sequence& sequence) {
  const BackwardBlocks blocks = Unit::Blocks(args.forward);
  const BackwardBlocks bias_blocks = BiasBlocksOf<Unit>(args.forward);
  BackwardPlan plan;
  plan.queries_per_piece =
      PieceLength(sequence.seqlen_q, std::max<int64_t>(kMinPieceRows / args.forward.group(), 1), 1);
  plan.keys_per_piece = PieceLength(sequence.k_len, kMinPieceKeys, blocks.block_k);
  plan.bias_rows = bias_blocks.block_q;
  plan.bias_cols = bias_blocks.block_k;
  Carver piece(nullptr);
  PieceScratch<Unit>(args, blocks, &piece);
  plan.scratch_bytes = piece.bytes();
  if (args.dbias != nullptr) {
    Carver bias(nullptr);
    BiasScratch<Unit>(args.forward, bias_blocks, &bias);
    plan.scratch_bytes = std::max(plan.scratch_bytes, bias.bytes());
  }
  return plan;
}

template <class Unit>
BackwardEntry BackwardEntryOf() {
  using T = typename Unit::T;
  BackwardEntry entry;
  entry.plan = &PlanBackward<Unit>;
  entry.prepare = &PrepareQueries<Unit>;
  entry.clear = &ClearKeys<T>;
  entry.run = &RunBackwardPiece<Unit>;
  if constexpr (kPromotes<T>) {
    entry.finish_queries = &FinishQueries<T>;
    entry.finish_keys = &FinishKeys<T>;
  }
  entry.bias = &RunBiasGradient<Unit>;
  entry.sinks = &RunSinkGradient<Unit>;
  entry.unit = Unit::kName;
  return entry;
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_ENTRY_INL_H_
