// What `verify` prints.
#ifndef FLASHLANE_DISPATCH_CLI_VERIFY_REPORT_H_
#define FLASHLANE_DISPATCH_CLI_VERIFY_REPORT_H_

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/cli/recording.h"
#include "dispatch/cli/verify_case.h"

namespace flashlane::cli {

struct VerifyReport {
  int threads = 1;  // that a call may use
  std::vector<VerifyRow> rows;
  std::map<std::string, std::vector<std::string>> skipped;  // kernel -> names of its cases

  std::map<std::string, std::uint64_t> digests;  // of cases, by name
  std::optional<RecordingComparison> against;

  int passed() const;
  int failed() const;
  int num_skipped() const;
  int changed() const;  // results and cases that are not as recorded
};

// Every row of every case, with times where there are any.
void PrintRows(const VerifyReport& report, std::ostream& out);

// One line per kernel, dtype and target.
void PrintSummary(const VerifyReport& report, std::ostream& out);

// What changed since the recording, if there was one to compare with; every failure and every
// kernel that was skipped, then the last line: "N passed, N failed".
void PrintOutcome(const VerifyReport& report, std::ostream& out);

// All of it as one JSON object. A number that is not finite is null.
void PrintJson(const VerifyReport& report, std::ostream& out);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_VERIFY_REPORT_H_
