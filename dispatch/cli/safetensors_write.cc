#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dispatch/cli/replaced_file.h"
#include "dispatch/cli/safetensors.h"

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

}  // namespace

Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata) {
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

  std::vector<std::string_view> pieces = {header};
  for (const TensorToWrite* tensor : ordered) {
    pieces.emplace_back(static_cast<const char*>(tensor->data), Bytes(*tensor));
  }
  return ReplaceFile(path, pieces);
}

}  // namespace flashlane::cli
