// The forward pass over tiles of keys, all checked.
#ifndef FLASHLANE_DISPATCH_FLAT_TILES_H_
#define FLASHLANE_DISPATCH_FLAT_TILES_H_

#include <cstdint>

#include "dispatch/flat/call.h"

namespace flashlane::flat {

// What it allocates.
uint64_t TilesBytes(const FlatDims& dims, bool causal, int64_t tile);
AttnStatus RunTiles(const FlatInputs& inputs, const FlatDims& dims, const FlatParams& params,
                    int64_t tile, const FlatOutputs& outputs, const FlatOptions& options);

}  // namespace flashlane::flat

#endif  // FLASHLANE_DISPATCH_FLAT_TILES_H_
