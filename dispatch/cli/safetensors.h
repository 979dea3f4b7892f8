// Reading and writing .safetensors files: 8 bytes of little-endian header length, a JSON header,
// then the tensors' bytes. Source: the format's description in github.com/huggingface/safetensors.
#ifndef FLASHLANE_DISPATCH_CLI_SAFETENSORS_H_
#define FLASHLANE_DISPATCH_CLI_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "flashlane/status.h"

namespace flashlane::cli {

// Owned bytes on a 64-byte boundary; never null, so that empty tensors have an address too.
class AlignedBytes {
 public:
  AlignedBytes() : AlignedBytes(0) {}
  explicit AlignedBytes(std::size_t size)
      : data_(static_cast<std::byte*>(::operator new(size + kAlignment, kAlign))), size_(size) {}

  std::byte* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::align_val_t kAlign{kAlignment};
  struct Delete {
    void operator()(std::byte* p) const noexcept { ::operator delete(p, kAlign); }
  };
  std::unique_ptr<std::byte, Delete> data_;
  std::size_t size_;
};

struct StoredTensor {
  std::string dtype;  // as the file spells it: "F32", "BF16", "U8", ...
  std::vector<std::int64_t> shape;
  AlignedBytes bytes;
};

struct SafetensorsFile {
  std::string name;  // for messages: the path it was read from
  std::map<std::string, std::string> metadata;
  std::map<std::string, StoredTensor> tensors;
};

// Bytes of one element of a dtype this program can use; 0 for any other name, such as "F8_E4M3".
// A file may hold other dtypes: only using such a tensor is an error.
std::size_t StoredDTypeSize(std::string_view dtype) noexcept;

// Reads a whole file, or parses its bytes. Every departure from the format is an error that names
// the file, the tensor and the rule; *file is then unchanged.
Status ReadSafetensors(const std::string& path, SafetensorsFile* file);
Status ParseSafetensors(const std::string& name, std::string_view bytes, SafetensorsFile* file);

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

// Writes to a temporary file beside `path` and renames it: on error `path` is as it was before.
// The bytes depend on the contents only. `path` must not exist or be a regular file.
Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_SAFETENSORS_H_
