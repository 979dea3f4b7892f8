#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>
#include <system_error>
#include <vector>

#include "dispatch/cli/commands.h"
#include "dispatch/cli/kernel_names.h"
#include "dispatch/cli/replaced_file.h"
#include "dispatch/cli/text.h"
#include "flashlane/fkc.h"

namespace flashlane::cli {
namespace {

namespace fs = std::filesystem;

Status SelectDocuments(const std::string& kernel, std::vector<std::string>* names) {
  *names = fkc::Documents();
  if (kernel.empty()) return {};
  std::string name = FullKernelName(kernel);
  if (name.empty()) name = kernel;
  if (std::find(names->begin(), names->end(), name) == names->end()) {
    return Status::InvalidArgument("--kernel: " + Quoted(kernel) + " has no contract (" +
                                   Join(*names, ", ") + ")");
  }
  *names = {name};
  return {};
}

}  // namespace

Status Contracts(const ContractsOptions& options, std::ostream& out) {
  std::vector<std::string> names;
  if (Status status = SelectDocuments(options.kernel, &names); !status.ok()) return status;
  if (!options.folder.empty()) {
    std::error_code error;
    fs::create_directories(options.folder, error);
    if (error) {
      return Status::InvalidArgument("--out: " + Quoted(options.folder) +
                                     " is no folder: " + error.message());
    }
  }
  for (const std::string& name : names) {
    std::string text;
    if (Status status = fkc::Document(name, &text); !status.ok()) return status;
    if (options.folder.empty()) {
      out << (name == names.front() ? "" : "\n") << text;
      continue;
    }
    const Status status =
        ReplaceFile((fs::path(options.folder) / (name + ".fkc.md")).string(), {text});
    if (!status.ok()) return WithContext("--out", status);
  }
  return {};
}

}  // namespace flashlane::cli
