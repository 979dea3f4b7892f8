// Upkeep of a paged key/value cache (flashlane/paged.h): new tokens in, blocks copied within a
// cache and moved between caches.
//
//   Status status = flashlane::KvAppend(
//       {.k = k, .v = v, .slot_mapping = slot_mapping}, {.k_cache = k_cache, .v_cache = v_cache});
#ifndef FLASHLANE_KV_CACHE_H_
#define FLASHLANE_KV_CACHE_H_

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane {

// The pools of one layer, of one dtype: F32, F64, BF16 or F16. Any strides with an innermost stride
// of 1: K and V interleaved in one pool, heads before slots, blocks further apart than they are
// long. The two share no element; where V is a slice of K (MLA), leave v_cache (and v) absent, for
// k_cache holds both.
struct KvPools {
  TensorView k_cache = {};  // [num_blocks, block_size, Hkv, D]
  TensorView v_cache = {};  // [num_blocks, block_size, Hkv, Dv]; may be absent
};

struct ConstKvPools {
  ConstTensorView k_cache = {};
  ConstTensorView v_cache = {};
};

// Turns k on its way into the cache (flashlane/rope.h): the bits of ApplyRope and then KvAppend,
// and k itself stays as it is. The rotated dimensions are the first rotary_dim of each head.
struct KvRope {
  ConstTensorView cos =
      {};  // [num_positions, rotary_dim / 2], F32 (F64 for F64); absent: no rotation
  ConstTensorView sin = {};  // the same
  // [num_tokens], I32 or I64: the tables' row for each token, within [0, num_positions). Those of
  // skipped tokens may be anything.
  ConstTensorView positions = {};
  bool interleaved = false;  // as in RopeParams
};

// New tokens, in the pools' dtype; a stride of 0 broadcasts.
struct KvAppendInputs {
  ConstTensorView k = {};  // [num_tokens, Hkv, D]
  ConstTensorView v = {};  // [num_tokens, Hkv, Dv]; absent where v_cache is
  // [num_tokens], I64 or I32: token i goes to slot s = slot_mapping[i], which is slot
  // s % block_size of block s / block_size. -1 skips the token (padding); every other value must
  // lie within [0, num_blocks * block_size).
  ConstTensorView slot_mapping = {};
  KvRope rope = {};
};

// All three calls copy bits, without arithmetic: no flops, no scratch, so no work budget refuses
// them (a rotation of k has 3 flops per element of it); of ExecOptions, kernel and accumulator are
// ignored. Everything is checked before anything
// is written: on any error no byte of a pool has changed. Their effect is that of copying item by
// item in the order given, for any number of threads. Pools share no memory with an input.
// Errors: kInvalidArgument, kUnsupported (target), with a rotation also kBudgetExceeded.

// Writes k and v into the pools at slot_mapping: vLLM's reshape_and_cache. Where a slot is named
// more than once, the last token that names it stays. Slots that are not named keep their bytes.
FLASHLANE_API Status KvAppend(const KvAppendInputs& inputs, const KvPools& pools,
                              const ExecOptions& options = {}) noexcept;

// block_mapping, [n, 2] of I64, I32 or U32: pairs (source block, destination block).
//
// Copies blocks within the pools: vLLM's copy_blocks, for one layer (forks of a shared prefix, beam
// search). Pairs take effect in order: a pair reads what the pairs before it wrote, so
// (a, b), (b, c) also brings a to c, and the last pair that names a destination stays. vLLM leaves
// both open; in order, the mappings of several scheduling steps may be strung together. A block
// onto itself does nothing.
FLASHLANE_API Status KvCopyBlocks(const KvPools& pools, const ConstTensorView& block_mapping,
                                  const ExecOptions& options = {}) noexcept;

// Copies blocks of the pools `src` to blocks of other pools `dst`: vLLM's swap_blocks, out to a
// swap space and back. src and dst agree in everything but strides and num_blocks, and share no
// memory. The last pair that names a destination stays.
FLASHLANE_API Status KvSwapBlocks(const ConstKvPools& src, const KvPools& dst,
                                  const ConstTensorView& block_mapping,
                                  const ExecOptions& options = {}) noexcept;

}  // namespace flashlane

#endif  // FLASHLANE_KV_CACHE_H_
