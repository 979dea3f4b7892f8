// Files that are written whole or not at all.
#ifndef FLASHLANE_DISPATCH_CLI_REPLACED_FILE_H_
#define FLASHLANE_DISPATCH_CLI_REPLACED_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "flashlane/status.h"

namespace flashlane::cli {

// Writes the pieces, one after the other, to a file beside `path` and renames it: on error `path`
// is as it was before. Only regular files are replaced: in the place of a link or a device, which
// the renaming would remove, is an error.
Status ReplaceFile(const std::string& path, const std::vector<std::string_view>& pieces);

// What ReplaceFile would say, for those who have long to work first.
Status CheckReplaceable(const std::string& path);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_REPLACED_FILE_H_
