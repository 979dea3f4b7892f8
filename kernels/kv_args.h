// A resolved call of flashlane/kv_cache.h: plain data, checked, strides in elements.
#ifndef FLASHLANE_KERNELS_KV_ARGS_H_
#define FLASHLANE_KERNELS_KV_ARGS_H_

#include <cstdint>

#include "kernels/args.h"
#include "kernels/rope_args.h"

namespace flashlane::kernels {

struct KvStrides {
  int64_t item = 0;  // from one token of the input to the next; in pools from block to block
  int64_t slot = 0;
  int64_t head = 0;
};

// One of the two caches: what an item (a token, or a block) is made of, [slots, heads, width]
// elements, the width dense on both sides. All 0 where the cache is absent.
struct KvPart {
  const void* src = nullptr;
  void* dst = nullptr;
  KvStrides src_strides, dst_strides;
  int64_t slots = 0;  // 1 for tokens
  int64_t heads = 0;
  int64_t width = 0;

  int64_t size() const { return slots * heads * width; }
};

// Turns k on its way: token i by row positions.At(i). Without rotate there is no rotation; with it
// the rows of k are its heads.
struct KvRotation {
  RotateFunction rotate = nullptr;
  RopeTables tables;
  SequenceValues positions;
};

// Token i of both parts goes to the slot slots.At(i) of the pool; -1 skips it.
struct KvAppendArgs {
  KvPart k, v;
  SequenceValues slots;
  KvRotation rotation;
  int64_t num_tokens = 0;
  int64_t block_size = 1;

  int64_t num_items() const { return num_tokens; }
  int64_t item_size() const { return k.size() + v.size(); }
};

// Block src_blocks.At(i) goes to block dst_blocks.At(i), for i = 0, 1, ... in order.
struct KvBlocksArgs {
  KvPart k, v;
  SequenceValues src_blocks, dst_blocks;
  int64_t num_pairs = 0;

  int64_t num_items() const { return num_pairs; }
  int64_t item_size() const { return k.size() + v.size(); }
};

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_KV_ARGS_H_
