// One attention call as a safetensors file describes it: tensors, parameters and, perhaps,
// answers.
#ifndef FLASHLANE_DISPATCH_CLI_CASE_H_
#define FLASHLANE_DISPATCH_CLI_CASE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "dispatch/cli/params.h"
#include "dispatch/cli/safetensors.h"
#include "flashlane/attention.h"
#include "flashlane/status.h"

namespace flashlane::cli {

inline constexpr char kFlashName[] = "attention_flash";
inline constexpr char kNaiveName[] = "attention_naive";

struct Case {
  std::string path;
  std::string name;     // the file's name without folder and extension
  std::string kernel;   // the metadata's "kernel"; kFlashName if it has none
  ParamTexts metadata;  // with the flags applied
  AttentionParams params;
  std::optional<std::int64_t> block_size;  // that the metadata or a flag states
  SafetensorsFile file;
};

// Reads the file and its parameters; flags override. Messages name the file.
Status LoadCase(const std::string& path, const ParamTexts& flags, Case* loaded);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_CASE_H_
