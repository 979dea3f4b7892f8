// One attention call as a safetensors file describes it: operands, parameters and, perhaps,
// answers.
#ifndef FLASHLANE_DISPATCH_CLI_CASE_H_
#define FLASHLANE_DISPATCH_CLI_CASE_H_

#include <optional>
#include <string>
#include <vector>

#include "dispatch/cli/params.h"
#include "dispatch/cli/safetensors.h"
#include "flashlane/attention.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::cli {

inline constexpr char kFlashName[] = "attention_flash";
inline constexpr char kNaiveName[] = "attention_naive";

struct Case {
  std::string path;
  std::string name;     // the file's name without folder and extension
  std::string kernel;   // the metadata's "kernel"; kFlashName if it has none
  ParamTexts metadata;  // with the flags applied
  AttentionParams params;
  SafetensorsFile file;

  // q, k, v -> out, lse, by whatever kernel.
  bool is_forward() const { return kernel == kFlashName || kernel == kNaiveName; }
};

// Reads the file and its parameters; flags override. Messages name the file.
Status LoadCase(const std::string& path, const ParamTexts& flags, Case* loaded);

// The operands of a forward call. Views point into the case or into `converted`.
struct Operands {
  AttentionInputs inputs;
  std::vector<AlignedBytes> converted;
  bool exact = true;  // no conversion has changed a value
};

// As stored, or converted to `dtype`. An operand that is F32 beside a q of another dtype stays F32,
// as the library allows. Required: q, k, v with four dimensions. Messages name file and tensor.
Status MakeOperands(const Case& from, std::optional<DType> dtype, Operands* operands);

// Shapes and memory for out and lse of a forward call.
struct Results {
  AlignedBytes out_bytes;
  AlignedBytes lse_bytes;
  AttentionOutputs outputs;
};
Status MakeResults(const AttentionInputs& inputs, Results* results);

// The file's answers: absent views where it has none. They must have the shapes of `outputs` and an
// attention dtype.
Status AnswersOf(const Case& from, const AttentionOutputs& outputs, AttentionOutputs* answers);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_CASE_H_
