// How the keys of a sequence are cut, and whether its rows are few enough to stream K and V past
// them. Functions of that sequence's own lengths and of the head counts only: they decide bits.
#ifndef FLASHLANE_KERNELS_KEY_SPLITS_H_
#define FLASHLANE_KERNELS_KEY_SPLITS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/mask.h"

namespace flashlane::kernels {

// Rows that are worked on together where rows stream: eight of them and two keys are the 16 sums
// that one transposed reduction takes (stream_shape-inl.h).
inline constexpr int64_t kBundleRows = 8;
// Rows of a kv head that stream: so few that a panel of the tiled kernel would be mostly empty.
// With all four bundles a stream still has 1.6 (F32) to 1.9 (BF16) times its speed (Zen 5, 4096
// keys).
inline constexpr int64_t kStreamRows = 4 * kBundleRows;
// Keys from which on streaming pays; below, a call is all overhead either way.
inline constexpr int64_t kMinStreamKeys = 64;

// Rows of a kv head up to which keys are split: more give every thread rows of its own, and their
// partial results would be many.
inline constexpr int64_t kSplitRows = 128;
// Splits are multiples of it: a whole number of the key blocks of every kernel (192, 256, 16). One
// takes K and V of 0.75 MiB to 1.5 MiB per kv head (D 128), which is some 50 us, and its partial
// result a two-hundredth of that at most where rows stream.
inline constexpr int64_t kSplitGranule = 768;
// Enough for as many threads as share a memory controller or two; bounds the partial results.
inline constexpr int64_t kMaxSplits = 32;

struct KeySplits {
  bool streams = false;
  int64_t first_key = 0;  // a multiple of size
  int64_t size = kUnlimited;
  int64_t count = 1;

  static KeySplits Of(const ForwardArgs& args, const Sequence& sequence) {
    KeySplits splits;
    const int64_t rows = sequence.seqlen_q * args.group();
    if (sequence.seqlen_q == 0 || rows > kSplitRows) return splits;
    const KeyRange keys = SequenceMask::Of(args, sequence).VisibleToAny(0, sequence.seqlen_q);
    splits.streams = rows <= kStreamRows && keys.size() >= kMinStreamKeys;
    if (keys.size() <= kSplitGranule) return splits;
    const int64_t granules = (keys.size() + kSplitGranule - 1) / kSplitGranule;
    splits.size = (granules + kMaxSplits - 1) / kMaxSplits * kSplitGranule;
    splits.first_key = keys.begin / splits.size * splits.size;
    splits.count = (keys.end - splits.first_key + splits.size - 1) / splits.size;
    return splits;
  }

  // Keys [begin, end) of one split.
  KeyRange Keys(int64_t split) const {
    if (count == 1) return {0, kUnlimited};
    return {first_key + split * size, first_key + (split + 1) * size};
  }
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_KEY_SPLITS_H_
