#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "dispatch/cli/case.h"
#include "dispatch/cli/commands.h"
#include "dispatch/cli/kernel_names.h"
#include "dispatch/cli/operands.h"
#include "dispatch/cli/results.h"
#include "dispatch/cli/text.h"
#include "dispatch/dtype.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "flashlane/attention.h"

namespace flashlane::cli {
namespace {

// The kernel to run: the flag, else the file's; "naive" is the oracle of whatever the case is.
Status ChooseKernel(const Case& loaded, const std::string& flag, std::string* name) {
  *name = loaded.kernel;
  if (!flag.empty()) {
    const std::string full = FullKernelName(flag);
    if (full.empty()) {
      return Status::InvalidArgument("--kernel: " + Quoted(flag) +
                                     " is not one of naive, flash, paged, backward");
    }
    const std::optional<RegisteredKernel> of_case = KernelByName(loaded.kernel);
    if (full != kNaiveName) {
      *name = full;
    } else if (of_case.has_value()) {  // else the oracle does not exist either
      *name = KernelName(Kernel::kNaive, of_case->operation);
    }
  }
  if (!IsRegistered(*name)) return WithContext(Quoted(loaded.path), NotRegistered(*name));
  return {};
}

std::vector<std::int64_t> ShapeVector(const ConstTensorView& view) {
  return {view.shape, view.shape + view.rank};
}

Status Write(const RunOptions& options, const Results& results, const ParamTexts& metadata) {
  std::vector<TensorToWrite> tensors;
  for (const Output& output : results) {
    tensors.push_back(
        {output.name, DTypeName(output.view.dtype), ShapeVector(output.view), output.view.data});
  }
  return WriteSafetensors(options.output, tensors, metadata);
}

Status CheckOptions(const RunOptions& options, std::optional<DType>* dtype, Target* target) {
  if (!options.dtype.empty()) {
    *dtype = ParseDType(options.dtype);
    if (!dtype->has_value() || !IsAttentionDType(**dtype)) {
      return Status::InvalidArgument("--dtype: " + Quoted(options.dtype) +
                                     " is not one of f32, f64, bf16, f16");
    }
  }
  const char* name = options.target.empty() ? nullptr : options.target.c_str();
  const Status status = ResolveTarget(name, target);
  if (!status.ok()) {
    // "target: ..." becomes the name of the flag.
    return name != nullptr ? Status(status.code(), "--" + status.message()) : status;
  }
  std::error_code error;
  if (std::filesystem::equivalent(options.input, options.output, error)) {
    return Status::InvalidArgument("--out: " + Quoted(options.output) + " is the input file");
  }
  return {};
}

}  // namespace

Status Run(const RunOptions& options) {
  std::optional<DType> dtype;
  Target target;
  if (Status s = CheckOptions(options, &dtype, &target); !s.ok()) return s;
  Case loaded;
  if (Status s = LoadCase(options.input, options.params, &loaded); !s.ok()) return s;
  std::string kernel;
  if (Status s = ChooseKernel(loaded, options.kernel, &kernel); !s.ok()) return s;
  const RegisteredKernel chosen = *KernelByName(kernel);
  Operands operands;
  if (Status s = MakeOperands(loaded, chosen.operation, dtype, &operands); !s.ok()) return s;
  Results results;
  const std::string file = Quoted(options.input);
  if (Status s = MakeResults(operands, &results); !s.ok()) return WithContext(file, s);

  ExecOptions exec;
  exec.kernel = chosen.kernel;
  exec.num_threads = options.threads;
  exec.target = target.name;
  const Status status = RunCase(operands, loaded.params, results, exec);
  if (!status.ok()) return WithContext(file, status);

  const DType ran_in = operands.q().dtype;
  const KernelRow* row = FindKernel(chosen.kernel, ran_in, chosen.operation);
  ParamTexts metadata = loaded.metadata;
  metadata["kernel"] = kernel;
  metadata["target"] = row != nullptr && row->vectorised ? target.name : "scalar";
  metadata["dtype"] = LowerDTypeName(ran_in);
  return Write(options, results, metadata);
}

}  // namespace flashlane::cli
