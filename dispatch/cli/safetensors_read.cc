#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "dispatch/cli/safetensors.h"
#include "dispatch/cli/text.h"

namespace flashlane::cli {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kMaxDepth = 16;  // a tensor entry needs 3; what nests deeper is hostile

struct DTypeWidth {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<DTypeWidth, 13> kWidths = {{{"F64", 8},
                                                 {"F32", 4},
                                                 {"BF16", 2},
                                                 {"F16", 2},
                                                 {"BOOL", 1},
                                                 {"U8", 1},
                                                 {"I8", 1},
                                                 {"I16", 2},
                                                 {"U16", 2},
                                                 {"I32", 4},
                                                 {"U32", 4},
                                                 {"I64", 8},
                                                 {"U64", 8}}};

// What is wrong with a header; thrown out of nlohmann's callback and caught in this file only.
struct HeaderError {
  std::string message;
};

// Watches a parse for what the finished document no longer shows: duplicate keys and depth.
class HeaderWatch {
 public:
  bool operator()(int /*depth*/, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys_.emplace_back();
        if (keys_.size() > kMaxDepth) throw HeaderError{"header: nested too deeply"};
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) {
          throw HeaderError{"header: duplicate key " + Quoted(key)};
        }
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> keys_;  // of every object that is open
};

Json ParseHeader(std::string_view text) {
  if (text.empty() || text.front() != '{') {
    throw HeaderError{"header: must be a JSON object that begins with '{'"};
  }
  try {
    HeaderWatch watch;
    return Json::parse(text, [&watch](int depth, Json::parse_event_t event, Json& value) {
      return watch(depth, event, value);
    });
  } catch (const Json::parse_error& error) {
    throw HeaderError{"header: not valid JSON at byte " + std::to_string(error.byte)};
  } catch (const Json::exception&) {
    throw HeaderError{"header: not valid JSON"};
  }
}

std::map<std::string, std::string> ParseMetadata(const Json& json) {
  if (!json.is_object()) throw HeaderError{"__metadata__: must be an object"};
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      throw HeaderError{"__metadata__: the value of " + Quoted(key) + " must be a string"};
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// One tensor's claims, checked against everything but the other tensors.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

const Json& Field(const Json& json, const std::string& where, const char* name, bool is_array) {
  const auto field = json.find(name);
  if (field == json.end()) throw HeaderError{where + "lacks '" + name + "'"};
  if (is_array ? !field->is_array() : !field->is_string()) {
    throw HeaderError{where + "'" + name + "' must be " + (is_array ? "an array" : "a string")};
  }
  return *field;
}

std::int64_t Size(const Json& json, const std::string& where, const char* what) {
  // Only non-negative integers without fraction or exponent parse as unsigned.
  if (!json.is_number_unsigned() ||
      json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    throw HeaderError{where + what + " must be integers in [0, 2^63)"};
  }
  return json.get<std::int64_t>();
}

Entry ParseEntry(const std::string& name, const Json& json, std::int64_t data_bytes) {
  const std::string where = "tensor " + Quoted(name) + ": ";
  if (!json.is_object()) throw HeaderError{where + "must be an object"};
  Entry entry;
  entry.name = name;
  entry.dtype = Field(json, where, "dtype", false).get<std::string>();

  std::int64_t elements = 1;
  for (const Json& size : Field(json, where, "shape", true)) {
    entry.shape.push_back(Size(size, where, "'shape': sizes"));
    if (__builtin_mul_overflow(elements, entry.shape.back(), &elements)) {
      throw HeaderError{where + "'shape': the number of elements exceeds 2^63"};
    }
  }
  const Json& offsets = Field(json, where, "data_offsets", true);
  if (offsets.size() != 2) throw HeaderError{where + "'data_offsets' must have two entries"};
  entry.begin = Size(offsets[0], where, "'data_offsets'");
  entry.end = Size(offsets[1], where, "'data_offsets'");
  const std::string range =
      "'data_offsets' [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin > entry.end) throw HeaderError{where + range + " are reversed"};
  if (entry.end > data_bytes) {
    throw HeaderError{where + range + " exceed the " + std::to_string(data_bytes) +
                      " bytes of data in the file"};
  }
  const auto width = static_cast<std::int64_t>(StoredDTypeSize(entry.dtype));
  std::int64_t bytes = 0;
  if (width > 0 &&
      (__builtin_mul_overflow(elements, width, &bytes) || bytes != entry.end - entry.begin)) {
    throw HeaderError{where + range + " are not the size of " +
                      ShapeText(entry.shape.data(), static_cast<int>(entry.shape.size())) + " " +
                      entry.dtype};
  }
  return entry;
}

// The format's rule: in order of their offsets the tensors cover the data without holes or overlap.
void CheckCoverage(std::vector<Entry>& entries, std::int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::int64_t covered = 0;
  const Entry* previous = nullptr;
  for (const Entry& entry : entries) {
    if (entry.begin < covered) {
      throw HeaderError{"tensor " + Quoted(entry.name) + ": overlaps tensor " +
                        Quoted(previous->name)};
    }
    if (entry.begin > covered) {
      throw HeaderError{"tensor " + Quoted(entry.name) + ": bytes [" + std::to_string(covered) +
                        ", " + std::to_string(entry.begin) + ") before it belong to no tensor"};
    }
    covered = entry.end;
    previous = &entry;
  }
  if (covered != data_bytes) {
    throw HeaderError{"bytes [" + std::to_string(covered) + ", " + std::to_string(data_bytes) +
                      ") of the data belong to no tensor"};
  }
}

SafetensorsFile Parse(std::string_view bytes) {
  if (bytes.size() < kLengthBytes) {
    throw HeaderError{"not a safetensors file: shorter than 8 bytes"};
  }
  std::uint64_t header_bytes = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(bytes[i]);
  }
  const std::uint64_t rest = bytes.size() - kLengthBytes;
  if (header_bytes > kMaxHeaderBytes) {
    throw HeaderError{"header length " + std::to_string(header_bytes) + " exceeds the limit of " +
                      std::to_string(kMaxHeaderBytes)};
  }
  if (header_bytes > rest) {
    throw HeaderError{"header length " + std::to_string(header_bytes) + " exceeds the file's " +
                      std::to_string(bytes.size()) + " bytes"};
  }
  const Json header = ParseHeader(bytes.substr(kLengthBytes, header_bytes));
  const std::string_view data = bytes.substr(kLengthBytes + header_bytes);
  const auto data_bytes = static_cast<std::int64_t>(data.size());

  SafetensorsFile file;
  std::vector<Entry> entries;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      file.metadata = ParseMetadata(value);
    } else {
      entries.push_back(ParseEntry(key, value, data_bytes));
    }
  }
  CheckCoverage(entries, data_bytes);
  for (Entry& entry : entries) {
    const auto size = static_cast<std::size_t>(entry.end - entry.begin);
    AlignedBytes copy(size);
    std::memcpy(copy.data(), data.data() + entry.begin, size);
    file.tensors.emplace(
        std::move(entry.name),
        StoredTensor{std::move(entry.dtype), std::move(entry.shape), std::move(copy)});
  }
  return file;
}

}  // namespace

std::size_t StoredDTypeSize(std::string_view dtype) noexcept {
  for (const DTypeWidth& entry : kWidths) {
    if (entry.name == dtype) return entry.bytes;
  }
  return 0;
}

Status ParseSafetensors(const std::string& name, std::string_view bytes, SafetensorsFile* file) {
  try {
    SafetensorsFile parsed = Parse(bytes);
    parsed.name = name;
    *file = std::move(parsed);
    return {};
  } catch (const HeaderError& error) {
    return Status::InvalidArgument(Quoted(name) + ": " + error.message);
  }
}

Status ReadSafetensors(const std::string& path, SafetensorsFile* file) {
  const auto failed = [&path](const char* what) {
    return Status::InvalidArgument(Quoted(path) + ": " + what +
                                   (errno != 0 ? std::string(": ") + std::strerror(errno) : ""));
  };
  errno = 0;
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return failed("cannot be read");
  // A pipe or a device has no size to check the header against.
  if (!S_ISREG(info.st_mode)) return failed("not a regular file");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return failed("cannot be read");
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::size_t>(stream.gcount()) != bytes.size()) return failed("cannot be read");
  return ParseSafetensors(path, bytes, file);
}

}  // namespace flashlane::cli
