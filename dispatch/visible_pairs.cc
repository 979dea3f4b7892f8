#include "dispatch/visible_pairs.h"

#include <algorithm>

namespace flashlane {
namespace {

// The sum over i in [0, count) of first + i, held within [low, high].
Int128 SumClamped(Int128 first, Int128 count, Int128 low, Int128 high) {
  const Int128 below = std::clamp<Int128>(low - first, 0, count);
  const Int128 end = std::max(below, std::clamp<Int128>(high - first, 0, count));
  const Int128 within = end - below;
  return below * low + within * (first + below) + within * (within - 1) / 2 + (count - end) * high;
}

// Pairs of `count` queries at positions first, first + 1, ... and keys [low, high).
Int128 PairsFrom(const kernels::SequenceMask& mask, Int128 first, Int128 count, Int128 low,
                 Int128 high) {
  const bool left = mask.window_left != kernels::kUnlimited;
  const bool right = mask.window_right != kernels::kUnlimited;
  const Int128 ends =
      right ? SumClamped(first + mask.window_right + 1, count, low, high) : count * high;
  const Int128 begins = left ? SumClamped(first - mask.window_left, count, low, high) : count * low;
  return ends - begins;
}

}  // namespace

Uint128 VisiblePairs(const kernels::SequenceMask& mask, int64_t i_begin, int64_t i_end,
                     const kernels::KeyRange& range) {
  const int64_t low = std::max<int64_t>(range.begin, 0);
  const int64_t high = std::min(range.end, mask.k_len);
  if (i_begin >= i_end || low >= high) return 0;
  Int128 first = Int128{mask.q_start} + i_begin;
  Int128 count = Int128{i_end} - i_begin;
  Int128 pairs = 0;
  if (mask.clamps_positions && first < 0) {
    const Int128 at_zero = std::min(-first, count);
    pairs = at_zero * PairsFrom(mask, 0, 1, low, high);
    first += at_zero;
    count -= at_zero;
  }
  return static_cast<Uint128>(pairs + PairsFrom(mask, first, count, low, high));
}

bool AlikeSequences(const kernels::ForwardArgs& args) {
  for (const kernels::SequenceValues* values :
       {&args.cu_seqlens_q, &args.cu_seqlens_k, &args.k_len, &args.q_start}) {
    if (values->data != nullptr) return false;
  }
  return true;
}

Uint128 AllVisiblePairs(const kernels::ForwardArgs& args) {
  const auto pairs_of = [&args](int64_t b) {
    const kernels::Sequence sequence = kernels::Sequence::Of(args, b);
    const kernels::SequenceMask mask = kernels::SequenceMask::Of(args, sequence);
    return VisiblePairs(mask, 0, sequence.seqlen_q, {0, sequence.k_len});
  };
  Uint128 pairs = 0;
  if (AlikeSequences(args)) {
    pairs =
        SaturatingProduct128(args.batch == 0 ? 0 : pairs_of(0), static_cast<Uint128>(args.batch));
  } else {
    for (int64_t b = 0; b < args.batch; ++b) pairs = SaturatingSum128(pairs, pairs_of(b));
  }
  return SaturatingProduct128(pairs, static_cast<Uint128>(args.num_heads));
}

}  // namespace flashlane
