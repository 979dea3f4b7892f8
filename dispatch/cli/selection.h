// --kernel, --dtype and --target where they take "all", or names with commas between them.
#ifndef FLASHLANE_DISPATCH_CLI_SELECTION_H_
#define FLASHLANE_DISPATCH_CLI_SELECTION_H_

#include <string>
#include <vector>

#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::cli {

// Full names, each once; "naive" stands for all oracles.
Status SelectKernels(const std::string& text, std::vector<std::string>* kernels);
Status SelectDTypes(const std::string& text, std::vector<DType>* dtypes);
Status SelectTargets(const std::string& text, std::vector<std::string>* targets);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_SELECTION_H_
