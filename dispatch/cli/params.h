// Attention parameters as text: from a file's metadata, or from flags that override it.
#ifndef FLASHLANE_DISPATCH_CLI_PARAMS_H_
#define FLASHLANE_DISPATCH_CLI_PARAMS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "flashlane/attention.h"
#include "flashlane/status.h"

namespace flashlane::cli {

// Keys and values as in a file's metadata: softmax_scale causal window_size_left window_size_right
// softcap k_len q_start (an integer or "bottom_right").
using ParamTexts = std::map<std::string, std::string>;

// "none" as the value of a flag takes the parameter away, as if the metadata did not have it.
inline constexpr char kNone[] = "none";

// Parses metadata with the flags on top. Unknown metadata keys are ignored; a value that does not
// parse is an error that names the key or the flag. Ranges are the library's to check.
Status ParseParams(const ParamTexts& metadata, const ParamTexts& flags, AttentionParams* params);

// block_size, which paged cases may state: what k_cache must have. In the same way.
Status ParseBlockSize(const ParamTexts& metadata, const ParamTexts& flags,
                      std::optional<std::int64_t>* block_size);

// The metadata that describes a call with these flags.
ParamTexts ApplyFlags(ParamTexts metadata, const ParamTexts& flags);

// "--softmax-scale" for "softmax_scale".
std::string FlagName(std::string key);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_PARAMS_H_
