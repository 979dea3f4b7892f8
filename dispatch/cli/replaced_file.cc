#include "dispatch/cli/replaced_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "dispatch/cli/text.h"

namespace flashlane::cli {
namespace {

Status NotWritten(const std::string& path, const std::string& reason) {
  return Status::InvalidArgument(Quoted(path) + ": cannot be written: " + reason);
}

// A file beside `path` that is deleted again unless it was committed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : path_(path) {
    // One that was killed may have left its file, and its number may come again.
    constexpr int kMaxAttempts = 100;
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      temporary_ = path + ".tmp" + std::to_string(::getpid()) + "." + std::to_string(attempt);
      // O_EXCL: never write through a link, nor into a file, that somebody placed there.
      fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ >= 0 || errno != EEXIST) break;
    }
    created_ = fd_ >= 0;
    struct stat old = {};
    if (created_ && ::stat(path.c_str(), &old) == 0) (void)!::fchmod(fd_, old.st_mode & 0777);
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (created_) ::unlink(temporary_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool created() const { return created_; }

  bool Write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
  }

  // Flushes to the device first: a rename must not outlive the data it names.
  bool Commit() {
    if (::fsync(fd_) != 0 && errno != EINVAL) return false;
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) return false;
    created_ = false;
    return true;
  }

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool created_ = false;
};

Status CheckKind(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return {};
  return NotWritten(path, "exists and is not a regular file");
}

}  // namespace

Status ReplaceFile(const std::string& path, const std::vector<std::string_view>& pieces) {
  if (Status s = CheckKind(path); !s.ok()) return s;
  TemporaryFile file(path);
  bool good = file.created();
  for (const std::string_view piece : pieces) good = good && file.Write(piece);
  return good && file.Commit() ? Status() : NotWritten(path, std::strerror(errno));
}

Status CheckReplaceable(const std::string& path) {
  if (Status s = CheckKind(path); !s.ok()) return s;
  const TemporaryFile file(path);
  return file.created() ? Status() : NotWritten(path, std::strerror(errno));
}

}  // namespace flashlane::cli
