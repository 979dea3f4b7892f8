// The result of every Flashlane call: a code and, on failure, a message that names the argument,
// its value and the rule it breaks.
#ifndef FLASHLANE_STATUS_H_
#define FLASHLANE_STATUS_H_

#include <cstdint>
#include <string>
#include <utility>

namespace flashlane {

enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller broke a rule of the contract
  kUnsupported = 2,      // the request is legal, but this build or machine cannot do it
  kBudgetExceeded = 3,   // more flops or scratch than ExecOptions allows; nothing was started
  kOutOfMemory = 4,      // scratch could not be allocated
};

// Name of `code` as written in messages, e.g. "InvalidArgument". Never null.
constexpr const char* StatusCodeName(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kUnsupported:
      return "Unsupported";
    case StatusCode::kBudgetExceeded:
      return "BudgetExceeded";
    case StatusCode::kOutOfMemory:
      return "OutOfMemory";
  }
  return "Unknown";
}

// A value: cheap to return (no allocation when OK), never throws on the success path.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message) noexcept
      : code_(code), message_(std::move(message)) {}

  static Status InvalidArgument(std::string message) noexcept {
    return {StatusCode::kInvalidArgument, std::move(message)};
  }
  static Status Unsupported(std::string message) noexcept {
    return {StatusCode::kUnsupported, std::move(message)};
  }

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace flashlane

#endif  // FLASHLANE_STATUS_H_
