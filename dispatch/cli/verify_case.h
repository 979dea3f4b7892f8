// One case on every selected kernel, dtype and target.
#ifndef FLASHLANE_DISPATCH_CLI_VERIFY_CASE_H_
#define FLASHLANE_DISPATCH_CLI_VERIFY_CASE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/cli/case.h"
#include "dispatch/tolerance.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::cli {

struct Selection {
  std::vector<std::string> kernels;  // full names, all in the registry
  std::vector<std::string> targets;  // for kernels that have targets
  std::vector<DType> dtypes;
  int threads = 0;
  bool time = false;
  bool keep_bits = false;  // of the results, in the rows
};

struct Timing {
  double best_us = 0;
  double median_us = 0;
  double gflops = 0;   // of the best; 0 where a boolean mask hides how much was to be done
  double speedup = 0;  // over the oracle's best in the same dtype
};

// The file's own answers, where they are not f64 and so no truth: a result like any other.
inline constexpr char kFileRow[] = "(file)";

struct NamedComparison {
  std::string name;  // of the result: "out", "dq"
  Comparison comparison;
};

// The bits of one result.
struct OutputBits {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

struct VerifyRow {
  std::string path;
  std::string name;
  std::string kernel;  // "flash"; kFileRow
  std::string target;  // "AVX2"; "scalar" for kernels without targets
  DType dtype = DType::kF32;
  bool recomputed = false;  // compared with the oracle's f64 evaluation, not with the file
  std::vector<NamedComparison> comparisons;  // one per result of the call, or answer of the file
  std::string error;                         // the call's own error, if it made one
  std::optional<Timing> timing;
  std::vector<OutputBits> bits;  // where they are asked for

  bool passed() const;
  double fraction() const;   // of the worst of them
  double max_error() const;  // of out, or of all gradients
};

// Appends one row per kernel that computes what the case asks for, target and dtype. The case's own
// kernel is in the registry. An error is bad input.
// The oracle accumulates in f32 where its dtype is BF16 or F16: its arithmetic in those, which the
// contract asks for, is not held to any tolerance.
Status VerifyCase(const Case& from, const Selection& selection, std::vector<VerifyRow>* rows);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_VERIFY_CASE_H_
