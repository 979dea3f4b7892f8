#include "dispatch/cli/case.h"

#include <filesystem>
#include <utility>

#include "dispatch/cli/text.h"

namespace flashlane::cli {

Status LoadCase(const std::string& path, const ParamTexts& flags, Case* loaded) {
  Case result;
  Status status = ReadSafetensors(path, &result.file);
  if (!status.ok()) return status;
  result.path = path;
  result.name = std::filesystem::path(path).stem().string();
  const auto kernel = result.file.metadata.find("kernel");
  result.kernel = kernel == result.file.metadata.end() ? kFlashName : kernel->second;
  status = ParseParams(result.file.metadata, flags, &result.params);
  if (!status.ok()) return WithContext(Quoted(path), status);
  status = ParseBlockSize(result.file.metadata, flags, &result.block_size);
  if (!status.ok()) return WithContext(Quoted(path), status);
  result.metadata = ApplyFlags(result.file.metadata, flags);
  // A flag holds for all sequences, whatever the file has for each.
  for (const char* name : {"k_len", "q_start"}) {
    if (flags.count(name) > 0) result.file.tensors.erase(name);
  }
  *loaded = std::move(result);
  return {};
}

}  // namespace flashlane::cli
