#include "dispatch/cli/selection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dispatch/cli/case.h"
#include "dispatch/cli/kernel_names.h"
#include "dispatch/cli/text.h"
#include "dispatch/dtype.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "flashlane/info.h"

namespace flashlane::cli {
namespace {

constexpr char kAll[] = "all";

template <typename T>
void AddOnce(T value, std::vector<T>* list) {
  if (std::find(list->begin(), list->end(), value) == list->end())
    list->push_back(std::move(value));
}

}  // namespace

Status SelectKernels(const std::string& text, std::vector<std::string>* kernels) {
  if (text == kAll) {
    *kernels = RegisteredKernels();
    return {};
  }
  for (const std::string& piece : SplitCommas(text)) {
    const std::string name = FullKernelName(piece);
    if (name.empty()) {
      return Status::InvalidArgument("--kernel: " + Quoted(piece) +
                                     " is not one of all, naive, flash, paged, backward");
    }
    if (!IsRegistered(name)) return WithContext("--kernel", NotRegistered(name));
    AddOnce(name, kernels);
    if (name == kNaiveName) {  // of whatever a case is
      for (const Operation operation : {Operation::kPaged, Operation::kBackward}) {
        AddOnce(std::string(KernelName(Kernel::kNaive, operation)), kernels);
      }
    }
  }
  return {};
}

Status SelectDTypes(const std::string& text, std::vector<DType>* dtypes) {
  if (text == kAll) {
    *dtypes = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
    return {};
  }
  for (const std::string& piece : SplitCommas(text)) {
    const std::optional<DType> dtype = ParseDType(piece);
    if (!dtype.has_value() || !IsAttentionDType(*dtype)) {
      return Status::InvalidArgument("--dtype: " + Quoted(piece) +
                                     " is not one of all, f32, f64, bf16, f16");
    }
    AddOnce(*dtype, dtypes);
  }
  return {};
}

Status SelectTargets(const std::string& text, std::vector<std::string>* targets) {
  if (text == kAll) {
    *targets = SupportedTargets();
    return {};
  }
  for (const std::string& piece : SplitCommas(text)) {
    Target target;
    const Status status = ResolveTarget(piece.c_str(), &target);
    if (!status.ok()) return {status.code(), "--" + status.message()};
    AddOnce(std::string(target.name), targets);
  }
  return {};
}

}  // namespace flashlane::cli
