#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "dispatch/cli/safetensors.h"
#include "dispatch/cli/text.h"

namespace flashlane::cli {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

std::size_t Bytes(const TensorToWrite& tensor) {
  std::size_t bytes = StoredDTypeSize(tensor.dtype);
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

std::string Header(const std::vector<const TensorToWrite*>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const TensorToWrite* tensor : tensors) {
    const std::size_t end = offset + Bytes(*tensor);
    header[tensor->name] = {
        {"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  using Handler = nlohmann::ordered_json::error_handler_t;
  std::string text = header.dump(-1, ' ', false, Handler::replace);
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');

  std::string result;
  for (std::uint64_t length = text.size(), i = 0; i < 8; ++i, length >>= 8) {
    result += static_cast<char>(length & 0xFF);
  }
  return result + text;
}

// A file that is deleted again unless it was committed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {
    // O_EXCL: never write through a link that somebody placed there.
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    created_ = fd_ >= 0;
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (created_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool created() const { return created_; }

  bool Write(const void* data, std::size_t size) const {
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(fd_, bytes, size);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      bytes += written;
      size -= static_cast<std::size_t>(written);
    }
    return true;
  }

  // Flushes to the device first: a rename must not outlive the data it names.
  bool CommitAs(const std::string& path) {
    if (::fsync(fd_) != 0 && errno != EINVAL) return false;
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0 || ::rename(path_.c_str(), path.c_str()) != 0) return false;
    created_ = false;
    return true;
  }

 private:
  std::string path_;
  int fd_ = -1;
  bool created_ = false;
};

}  // namespace

Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  const auto failed = [&path](const std::string& what) {
    return Status::InvalidArgument(Quoted(path) + ": " + what);
  };
  struct stat info = {};
  // lstat: renaming over a link would replace the link, not what it points to.
  if (::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return failed("cannot be written: exists and is not a regular file");
  }
  std::vector<const TensorToWrite*> ordered;
  ordered.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) ordered.push_back(&tensor);
  // Widest elements first keeps every tensor aligned to its own element size.
  std::sort(ordered.begin(), ordered.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    const std::size_t wa = StoredDTypeSize(a->dtype);
    const std::size_t wb = StoredDTypeSize(b->dtype);
    return wa != wb ? wa > wb : a->name < b->name;
  });
  const std::string header = Header(ordered, metadata);

  TemporaryFile file(path + ".tmp" + std::to_string(::getpid()));
  bool good = file.created() && file.Write(header.data(), header.size());
  for (const TensorToWrite* tensor : ordered)
    good = good && file.Write(tensor->data, Bytes(*tensor));
  if (!good || !file.CommitAs(path)) {
    return failed(std::string("cannot be written: ") + std::strerror(errno));
  }
  return {};
}

}  // namespace flashlane::cli
