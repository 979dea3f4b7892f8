// The rules and the resolution of flashlane/kv_cache.h. Resolve only what was checked.
#ifndef FLASHLANE_DISPATCH_CONTRACT_KV_CACHE_H_
#define FLASHLANE_DISPATCH_CONTRACT_KV_CACHE_H_

#include "flashlane/kv_cache.h"
#include "kernels/kv_args.h"

namespace flashlane {

Status CheckKvAppend(const KvAppendInputs& inputs, const KvPools& pools);
// All but rotation.rotate, which depends on the target.
kernels::KvAppendArgs ResolveKvAppend(const KvAppendInputs& inputs, const KvPools& pools);

Status CheckKvCopyBlocks(const KvPools& pools, const ConstTensorView& block_mapping);
Status CheckKvSwapBlocks(const ConstKvPools& src, const KvPools& dst,
                         const ConstTensorView& block_mapping);
// Of both: KvCopyBlocks has one and the same pools for src and dst.
kernels::KvBlocksArgs ResolveKvBlocks(const ConstKvPools& src, const KvPools& dst,
                                      const ConstTensorView& block_mapping);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_CONTRACT_KV_CACHE_H_
