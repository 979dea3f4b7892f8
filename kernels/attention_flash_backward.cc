// Gradients of attention on every vector target: backward-inl.h, dispatched.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/kernels.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_flash_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"
#include "kernels/amx_config.h"
#include "kernels/backward-inl.h"
#include "kernels/backward_bias-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

template <typename T>
BackwardPlan PlanBackward(const BackwardArgs& args, const Sequence& sequence) {
  const BackwardBlocks blocks = BlocksOf<T>(args.forward);
  const BackwardBlocks bias_blocks = BiasBlocksOf<T>(args.forward);
  BackwardPlan plan;
  plan.queries_per_piece = PieceLength(sequence.seqlen_q, 1);
  plan.keys_per_piece = PieceLength(sequence.k_len, blocks.block_k);
  plan.bias_rows = bias_blocks.block_q;
  plan.bias_cols = bias_blocks.block_k;
  Carver piece(nullptr);
  PieceScratch<T>(args, blocks, &piece);
  plan.scratch_bytes = piece.bytes();
  if (args.dbias != nullptr) {
    Carver bias(nullptr);
    BiasScratch<T>(args.forward, bias_blocks, &bias);
    plan.scratch_bytes = std::max(plan.scratch_bytes, bias.bytes());
  }
  return plan;
}

template <typename T>
BackwardEntry EntryOf() {
  BackwardEntry entry;
  entry.plan = &PlanBackward<T>;
  entry.delta = &PrepareQueries<T>;
  entry.clear = &ClearKeys<T>;
  entry.run = &RunBackwardPiece<T>;
  if constexpr (kPromotes<T>) {
    entry.finish_queries = &FinishQueries<T>;
    entry.finish_keys = &FinishKeys<T>;
  }
  entry.bias = &RunBiasGradient<T>;
  entry.sinks = &RunSinkGradient<T>;
  entry.unit = "fma";
  return entry;
}

BackwardEntry BackwardF32() { return EntryOf<float>(); }
BackwardEntry BackwardF64() { return EntryOf<double>(); }
BackwardEntry BackwardBF16() { return EntryOf<hwy::bfloat16_t>(); }
BackwardEntry BackwardF16() { return EntryOf<hwy::float16_t>(); }

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::kernels {

HWY_EXPORT(BackwardF32);
HWY_EXPORT(BackwardF64);
HWY_EXPORT(BackwardBF16);
HWY_EXPORT(BackwardF16);

template <>
BackwardEntry AttentionFlashBackward<float>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF32, target)();
}
template <>
BackwardEntry AttentionFlashBackward<double>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF64, target)();
}
template <>
BackwardEntry AttentionFlashBackward<hwy::bfloat16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardBF16, target)();
}
template <>
BackwardEntry AttentionFlashBackward<hwy::float16_t>(int64_t target) {
  return FLASHLANE_DISPATCH(BackwardF16, target)();
}

}  // namespace flashlane::kernels
#endif  // HWY_ONCE
