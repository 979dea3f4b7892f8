// Small text helpers of the program: numbers, names in messages, lists.
#ifndef FLASHLANE_DISPATCH_CLI_TEXT_H_
#define FLASHLANE_DISPATCH_CLI_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlane/status.h"

namespace flashlane::cli {

// 'text' in single quotes, on one line whatever it holds: control characters escaped, long text
// cut.
std::string Quoted(std::string_view text);

// The whole text as a number; nothing if anything else stands in it.
std::optional<std::int64_t> ParseInt64(std::string_view text);
std::optional<double> ParseDouble(std::string_view text);

std::string Lower(std::string_view text);
std::string Upper(std::string_view text);

// "a,b" -> {"a", "b"}; empty pieces are kept, so that the caller can refuse them.
std::vector<std::string> SplitCommas(std::string_view text);
std::string Join(const std::vector<std::string>& pieces, std::string_view separator);

// "[1, 2, 3]"
std::string ShapeText(const std::int64_t* shape, int rank);

// The same status with "context: " before its message.
Status WithContext(const std::string& context, const Status& status);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_TEXT_H_
