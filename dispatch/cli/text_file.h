// Text files, read whole.
#ifndef FLASHLANE_DISPATCH_CLI_TEXT_FILE_H_
#define FLASHLANE_DISPATCH_CLI_TEXT_FILE_H_

#include <string>

#include "flashlane/status.h"

namespace flashlane::cli {

// Messages begin with `option`.
Status ReadText(const std::string& option, const std::string& path, std::string* text);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_TEXT_FILE_H_
