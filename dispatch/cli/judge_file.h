// Judgements as JSON files: what `flashlane judge` found on a machine.
#ifndef FLASHLANE_DISPATCH_CLI_JUDGE_FILE_H_
#define FLASHLANE_DISPATCH_CLI_JUDGE_FILE_H_

#include <string>
#include <vector>

#include "dispatch/cli/judge_fit.h"
#include "flashlane/fkc.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::cli {

// For target: of scalar code, which is the same on all.
inline constexpr char kEveryTarget[] = "all";

struct JudgedRow {
  std::string kernel;  // the registry's name
  DType dtype = DType::kF32;
  std::string target;
  std::string revision;  // kernel_revision_hash
  fkc::Coefficients coefficients;
  std::vector<TimedShape> fitted, held_out;  // not read back
};

struct Judgement {
  std::string version;  // of the library
  std::string cpu;
  bool quick = false;
  std::vector<JudgedRow> rows;
};

std::string EntryPointOf(const std::string& kernel);
// kernel_revision_hash of a kernel of the registry; empty where it has no contract.
std::string RevisionOfKernel(const std::string& kernel);

// Errors of the predictions of held-out shapes, of one row and of all.
ErrorSummary HeldOutError(const JudgedRow& row);
ErrorSummary HeldOutError(const Judgement& judgement);

std::string WriteJudgement(const Judgement& judgement);
// Refuses what is malformed, of another machine or of other kernels than this library's; messages
// name `source`, the field and the rule.
Status ReadJudgement(const std::string& source, const std::string& text, Judgement* judgement);

// Sets the coefficients of all rows, for the whole process.
Status ApplyJudgement(const Judgement& judgement);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_JUDGE_FILE_H_
