#include "dispatch/cli/params.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "dispatch/cli/text.h"

namespace flashlane::cli {
namespace {

// Looks keys up in the flags first, and remembers the first value that did not parse.
class ParamReader {
 public:
  ParamReader(const ParamTexts& metadata, const ParamTexts& flags)
      : metadata_(metadata), flags_(flags) {}

  std::optional<double> Number(const std::string& key) {
    const std::string* text = Find(key);
    if (text == nullptr) return std::nullopt;
    const std::optional<double> value = ParseDouble(*text);
    if (!value.has_value()) Fail(key, *text, "is not a number");
    return value;
  }

  std::optional<std::int64_t> Integer(const std::string& key) {
    const std::string* text = Find(key);
    if (text == nullptr) return std::nullopt;
    const std::optional<std::int64_t> value = ParseInt64(*text);
    if (!value.has_value()) Fail(key, *text, "is not a 64-bit integer");
    return value;
  }

  bool Boolean(const std::string& key) {
    const std::string* text = Find(key);
    if (text == nullptr) return false;
    const std::string lower = Lower(*text);
    const bool yes = lower == "true" || lower == "1";
    if (!yes && lower != "false" && lower != "0") Fail(key, *text, "is neither true nor false");
    return yes;
  }

  QStart Position(const std::string& key) {
    const std::string* text = Find(key);
    if (text == nullptr) return {};
    if (*text == "bottom_right") return QStart::BottomRight();
    const std::optional<std::int64_t> value = ParseInt64(*text);
    if (!value.has_value()) Fail(key, *text, "is neither a 64-bit integer nor bottom_right");
    return value.value_or(0);
  }

  Status status() const { return status_; }

 private:
  const std::string* Find(const std::string& key) const {
    if (const auto flag = flags_.find(key); flag != flags_.end()) {
      return flag->second == kNone ? nullptr : &flag->second;
    }
    const auto entry = metadata_.find(key);
    return entry == metadata_.end() ? nullptr : &entry->second;
  }

  void Fail(const std::string& key, const std::string& text, const char* rule) {
    if (!status_.ok()) return;
    const std::string where = flags_.count(key) > 0 ? FlagName(key) : "metadata '" + key + "'";
    status_ = Status::InvalidArgument(where + ": " + Quoted(text) + " " + rule);
  }

  const ParamTexts& metadata_;
  const ParamTexts& flags_;
  Status status_;
};

}  // namespace

std::string FlagName(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

Status ParseParams(const ParamTexts& metadata, const ParamTexts& flags, AttentionParams* params) {
  ParamReader reader(metadata, flags);
  AttentionParams parsed;
  parsed.softmax_scale = reader.Number("softmax_scale");
  parsed.causal = reader.Boolean("causal");
  parsed.window_size_left = reader.Integer("window_size_left");
  parsed.window_size_right = reader.Integer("window_size_right");
  parsed.softcap = reader.Number("softcap");
  parsed.k_len = reader.Integer("k_len");
  parsed.q_start = reader.Position("q_start");
  if (reader.status().ok()) *params = parsed;
  return reader.status();
}

Status ParseBlockSize(const ParamTexts& metadata, const ParamTexts& flags,
                      std::optional<std::int64_t>* block_size) {
  ParamReader reader(metadata, flags);
  *block_size = reader.Integer("block_size");
  return reader.status();
}

ParamTexts ApplyFlags(ParamTexts metadata, const ParamTexts& flags) {
  for (const auto& [key, text] : flags) {
    if (text == kNone) {
      metadata.erase(key);
    } else {
      metadata[key] = text;
    }
  }
  return metadata;
}

}  // namespace flashlane::cli
