// How many pairs of a query and a key a mask leaves visible, in closed form.
#ifndef FLASHLANE_DISPATCH_VISIBLE_PAIRS_H_
#define FLASHLANE_DISPATCH_VISIBLE_PAIRS_H_

#include <cstdint>

#include "dispatch/wide.h"
#include "kernels/args.h"
#include "kernels/mask.h"

namespace flashlane {

// Of queries [i_begin, i_end) of one head and keys of `range`; O(1), whatever the lengths.
Uint128 VisiblePairs(const kernels::SequenceMask& mask, int64_t i_begin, int64_t i_end,
                     const kernels::KeyRange& range);

// Whether nothing differs from sequence to sequence.
bool AlikeSequences(const kernels::ForwardArgs& args);

// Of all query heads of all sequences.
Uint128 AllVisiblePairs(const kernels::ForwardArgs& args);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_VISIBLE_PAIRS_H_
