#include "dispatch/cli/text_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "dispatch/cli/text.h"

namespace flashlane::cli {
namespace {

namespace fs = std::filesystem;

Status FileError(const std::string& option, const std::string& path, const char* rule,
                 const std::error_code& error) {
  return Status::InvalidArgument(option + ": " + Quoted(path) + " " + rule + ": " +
                                 error.message());
}

std::error_code LastError() { return {errno, std::generic_category()}; }

}  // namespace

Status ReadText(const std::string& option, const std::string& path, std::string* text) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {  // reading one would throw
    return FileError(option, path, "cannot be read",
                     std::make_error_code(std::errc::is_a_directory));
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream.good()) return FileError(option, path, "cannot be read", LastError());
  text->assign(std::istreambuf_iterator<char>(stream), {});
  return {};
}

}  // namespace flashlane::cli
