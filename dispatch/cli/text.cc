#include "dispatch/cli/text.h"

#include <charconv>
#include <cstddef>
#include <system_error>

namespace flashlane::cli {
namespace {

constexpr std::size_t kQuotedLimit = 200;

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::string Quoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string result = "'";
  for (const char c : text.substr(0, kQuotedLimit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    } else {
      result += c;
    }
  }
  if (text.size() > kQuotedLimit) result += "...";
  return result + "'";
}

std::optional<std::int64_t> ParseInt64(std::string_view text) {
  return ParseNumber<std::int64_t>(text);
}

std::optional<double> ParseDouble(std::string_view text) { return ParseNumber<double>(text); }

std::string Lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string Upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return result;
}

std::vector<std::string> SplitCommas(std::string_view text) {
  std::vector<std::string> pieces;
  for (;;) {
    const std::size_t comma = text.find(',');
    pieces.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return pieces;
    text.remove_prefix(comma + 1);
  }
}

std::string Join(const std::vector<std::string>& pieces, std::string_view separator) {
  std::string result;
  for (const std::string& piece : pieces) {
    if (!result.empty()) result += separator;
    result += piece;
  }
  return result;
}

std::string ShapeText(const std::int64_t* shape, int rank) {
  std::string result = "[";
  for (int d = 0; d < rank; ++d) {
    if (d > 0) result += ", ";
    result += std::to_string(shape[d]);
  }
  return result + "]";
}

Status WithContext(const std::string& context, const Status& status) {
  return status.ok() ? status : Status(status.code(), context + ": " + status.message());
}

}  // namespace flashlane::cli
