#include "dispatch/cli/recording.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "dispatch/cli/safetensors.h"
#include "dispatch/cli/text.h"
#include "dispatch/cli/verify_report.h"
#include "dispatch/dtype.h"
#include "flashlane/info.h"

namespace flashlane::cli {
namespace {

constexpr char kFormatKey[] = "flashlane_recording";
constexpr char kFormat[] = "1";
constexpr char kDigestPrefix[] = "digest/";
constexpr std::ptrdiff_t kSlashesInKey = 4;  // case/kernel/dtype/target/result

// FNV-1a of 64 bits.
struct Digest {
  std::uint64_t value = 14695981039346656037u;
  void Add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) value = (value ^ bytes[i]) * 1099511628211u;
  }
  void Add(std::string_view text) {
    Add(text.data(), text.size());
    Add("", 1);  // so that "ab", "c" is not "a", "bc"
  }
};

bool IsAnswer(const std::string& name) {
  static constexpr std::string_view kAnswers[] = {"out", "lse", "dq", "dk", "dv"};
  return std::find(std::begin(kAnswers), std::end(kAnswers), name) != std::end(kAnswers);
}

std::string Hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string RowKey(const VerifyRow& row) {
  return row.name + "/" + row.kernel + "/" + std::string(LowerDTypeName(row.dtype)) + "/" +
         row.target;
}

std::string RowOfKey(const std::string& key) { return key.substr(0, key.rfind('/')); }
std::string CaseOfKey(const std::string& key) { return key.substr(0, key.find('/')); }

// The bits as a number that grows with the value: neighbours differ by one.
std::int64_t Ordered(std::uint64_t bits, std::size_t size) {
  const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return (bits & sign) != 0 ? -magnitude : magnitude;
}

std::uint64_t BitsAt(const std::byte* bytes, std::int64_t index, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes + static_cast<std::size_t>(index) * size, size);  // little-endian
  return bits;
}

double ValueAt(DType dtype, const std::byte* bytes, std::int64_t index) {
  double value = 0;
  ConvertElements(bytes + static_cast<std::size_t>(index) * DTypeSize(dtype), dtype, &value,
                  DType::kF64, 1);
  return value;
}

std::vector<std::int64_t> IndexOf(std::int64_t at, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t i = shape.size(); i-- > 0; at /= shape[i]) index[i] = at % shape[i];
  return index;
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  return cli::ShapeText(shape.data(), static_cast<int>(shape.size()));
}

void Describe(ChangedResult* change) {
  char values[96];
  std::snprintf(values, sizeof(values), ": %.9g, was %.9g; ", change->is, change->was);
  change->what =
      std::to_string(change->differing) + " of " + std::to_string(change->elements) +
      " elements differ, the first at " + ShapeText(change->first) + values +
      (change->largest_ulps == std::numeric_limits<std::uint64_t>::max()
           ? "NaN on one side only"
           : "at most " + std::to_string(change->largest_ulps) + " units in the last place");
}

// False if not a bit differs.
bool FindChange(const OutputBits& now, const StoredTensor& then, ChangedResult* change) {
  if (then.dtype != DTypeName(now.dtype) || then.shape != now.shape) {
    change->what = "is " + std::string(DTypeName(now.dtype)) + " " + ShapeText(now.shape) +
                   ", was " + then.dtype + " " + ShapeText(then.shape);
    return true;
  }
  if (std::equal(now.bytes.begin(), now.bytes.end(), then.bytes.data())) return false;
  const std::size_t size = DTypeSize(now.dtype);
  change->elements = static_cast<std::int64_t>(now.bytes.size() / size);
  for (std::int64_t i = 0; i < change->elements; ++i) {
    const std::uint64_t is = BitsAt(now.bytes.data(), i, size);
    const std::uint64_t was = BitsAt(then.bytes.data(), i, size);
    if (is == was) continue;
    const double is_value = ValueAt(now.dtype, now.bytes.data(), i);
    const double was_value = ValueAt(now.dtype, then.bytes.data(), i);
    if (change->differing++ == 0) {
      change->first = IndexOf(i, now.shape);
      change->is = is_value;
      change->was = was_value;
    }
    const auto a = static_cast<std::uint64_t>(Ordered(is, size));
    const auto b = static_cast<std::uint64_t>(Ordered(was, size));
    const bool one_is_nan = (is_value != is_value) != (was_value != was_value);
    const std::uint64_t ulps = one_is_nan ? std::numeric_limits<std::uint64_t>::max()
                               : Ordered(is, size) > Ordered(was, size) ? a - b
                                                                        : b - a;
    change->largest_ulps = std::max(change->largest_ulps, ulps);
  }
  Describe(change);
  return true;
}

Status OneOfEachName(const VerifyReport& report) {
  std::map<std::string, std::string> paths;
  for (const VerifyRow& row : report.rows) {
    const auto [known, is_new] = paths.emplace(row.name, row.path);
    if (!is_new && known->second != row.path) {
      return Status::InvalidArgument("two cases are called " + Quoted(row.name) + ": " +
                                     Quoted(known->second) + " and " + Quoted(row.path));
    }
  }
  return {};
}

std::string MetadataOf(const SafetensorsFile& file, const char* key) {
  const auto value = file.metadata.find(key);
  return value == file.metadata.end() ? "" : value->second;
}

// Cases of both whose digests differ.
std::set<std::string> OtherCases(const SafetensorsFile& file, const VerifyReport& report) {
  std::set<std::string> others;
  for (const auto& [name, digest] : report.digests) {
    const auto known = file.metadata.find(kDigestPrefix + name);
    if (known != file.metadata.end() && known->second != Hex(digest)) others.insert(name);
  }
  return others;
}

}  // namespace

std::uint64_t DigestOf(const Case& from) {
  Digest digest;
  for (const auto& [key, value] : from.metadata) {
    digest.Add(key);
    digest.Add(value);
  }
  for (const auto& [name, tensor] : from.file.tensors) {
    if (IsAnswer(name)) continue;
    digest.Add(name);
    digest.Add(tensor.dtype + ShapeText(tensor.shape));
    digest.Add(tensor.bytes.data(), tensor.bytes.size());
  }
  return digest.value;
}

Status WriteRecording(const std::string& path, const VerifyReport& report) {
  if (Status s = OneOfEachName(report); !s.ok()) return WithContext("--record", s);
  std::map<std::string, std::string> metadata = {{kFormatKey, kFormat},
                                                 {"version", Version()},
                                                 {"cpu", CpuName()},
                                                 {"targets", Join(SupportedTargets(), " ")}};
  for (const auto& [name, digest] : report.digests) metadata[kDigestPrefix + name] = Hex(digest);
  std::vector<TensorToWrite> tensors;
  for (const VerifyRow& row : report.rows) {
    for (const OutputBits& output : row.bits) {
      tensors.push_back({RowKey(row) + "/" + output.name, DTypeName(output.dtype), output.shape,
                         output.bytes.data()});
    }
  }
  return WithContext("--record", WriteSafetensors(path, tensors, metadata));
}

Status ReadRecording(const std::string& path, SafetensorsFile* recording) {
  const auto refused = [&path](const std::string& why) {
    return Status::InvalidArgument("--against: " + Quoted(path) + ": " + why);
  };
  if (Status s = ReadSafetensors(path, recording); !s.ok()) return WithContext("--against", s);
  const auto format = recording->metadata.find(kFormatKey);
  if (format == recording->metadata.end()) {
    return refused("is no recording of flashlane verify --record");
  }
  if (format->second != kFormat) {
    return Status::Unsupported("--against: " + Quoted(path) + ": is a recording of format " +
                               Quoted(format->second) + "; this program reads " + kFormat);
  }
  for (const auto& [key, tensor] : recording->tensors) {
    const bool printable =
        std::none_of(key.begin(), key.end(), [](unsigned char c) { return std::iscntrl(c) != 0; });
    if (!printable || std::count(key.begin(), key.end(), '/') != kSlashesInKey) {
      return refused("tensor " + Quoted(key) + " is not called case/kernel/dtype/target/result");
    }
    if (recording->metadata.count(kDigestPrefix + CaseOfKey(key)) == 0) {
      return refused("has no digest of case " + Quoted(CaseOfKey(key)));
    }
  }
  return {};
}

Status CompareRecording(const std::string& path, const SafetensorsFile& recording,
                        const VerifyReport& report, RecordingComparison* comparison) {
  if (Status s = OneOfEachName(report); !s.ok()) return WithContext("--against", s);
  RecordingComparison result;
  result.path = path;
  result.version = MetadataOf(recording, "version");
  result.cpu = MetadataOf(recording, "cpu");
  result.targets = MetadataOf(recording, "targets");
  const std::set<std::string> others = OtherCases(recording, report);
  result.other_cases.assign(others.begin(), others.end());
  std::map<std::string, std::string> errors;  // of rows that fail now
  std::set<std::string> met;
  for (const VerifyRow& row : report.rows) {
    if (!row.error.empty()) errors[RowKey(row)] = row.error;
    for (const OutputBits& output : row.bits) {
      ChangedResult change;
      change.key = RowKey(row) + "/" + output.name;
      const auto then = recording.tensors.find(change.key);
      if (then == recording.tensors.end()) {
        result.added.push_back(change.key);
        continue;
      }
      met.insert(change.key);
      if (others.count(row.name) > 0) continue;
      if (FindChange(output, then->second, &change)) {
        result.changed.push_back(std::move(change));
      } else {
        ++result.identical;
      }
    }
  }
  for (const auto& [key, tensor] : recording.tensors) {
    if (met.count(key) > 0) continue;
    const auto error = errors.find(RowOfKey(key));
    if (error == errors.end()) {
      result.not_run.push_back(key);
    } else if (others.count(CaseOfKey(key)) == 0) {
      result.changed.push_back({key, "the call fails now: " + error->second, 0, 0, {}, 0, 0, 0});
    }
  }
  if (result.identical == 0 && result.changed.empty() && others.empty()) {
    return Status::InvalidArgument("--against: " + Quoted(path) +
                                   ": has no result in common with this run");
  }
  *comparison = std::move(result);
  return {};
}

}  // namespace flashlane::cli
