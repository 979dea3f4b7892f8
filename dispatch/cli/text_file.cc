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

Status CheckWritable(const std::string& option, const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return FileError(option, path, "cannot be written",
                     std::make_error_code(std::errc::is_a_directory));
  }
  const std::string temporary = path + ".tmp";
  errno = 0;
  const bool good = std::ofstream(temporary, std::ios::binary | std::ios::trunc).good();
  const std::error_code error = LastError();
  fs::remove(temporary, ignored);
  return good ? Status() : FileError(option, path, "cannot be written", error);
}

Status WriteText(const std::string& option, const std::string& path, const std::string& text) {
  const fs::path temporary = path + ".tmp";
  errno = 0;
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  std::error_code error;
  if (stream.good()) {
    fs::rename(temporary, path, error);
    if (!error) return {};
  } else {
    error = LastError();
  }
  std::error_code ignored;
  fs::remove(temporary, ignored);
  return FileError(option, path, "cannot be written", error);
}

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
