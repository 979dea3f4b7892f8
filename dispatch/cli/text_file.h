// Text files, read and written whole.
#ifndef FLASHLANE_DISPATCH_CLI_TEXT_FILE_H_
#define FLASHLANE_DISPATCH_CLI_TEXT_FILE_H_

#include <string>

#include "flashlane/status.h"

namespace flashlane::cli {

// All or nothing: written beside it, then renamed. Messages begin with `option`.
Status WriteText(const std::string& option, const std::string& path, const std::string& text);
// What WriteText would say, for those who have long to work first.
Status CheckWritable(const std::string& option, const std::string& path);
Status ReadText(const std::string& option, const std::string& path, std::string* text);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_TEXT_FILE_H_
