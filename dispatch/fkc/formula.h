// Cost formulas as the documents state them: sums and products of whole numbers and symbols. The
// cost query evaluates the very text that a document shows, so the two cannot disagree.
#ifndef FLASHLANE_DISPATCH_FKC_FORMULA_H_
#define FLASHLANE_DISPATCH_FKC_FORMULA_H_

#include <functional>
#include <string_view>

#include "dispatch/wide.h"

namespace flashlane::fkc {

// False for a symbol that has no value. Symbols: "sq", "k_cache.dim[1]", "sum(context_lens)".
using SymbolValue = std::function<bool(std::string_view symbol, Uint128* value)>;

// False where `text` is no formula or a symbol has no value; saturates at 2^128 - 1.
bool EvaluateFormula(std::string_view text, const SymbolValue& symbols, Uint128* value);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_FORMULA_H_
