// What `verify` prints.
#ifndef FLASHLANE_DISPATCH_CLI_VERIFY_REPORT_H_
#define FLASHLANE_DISPATCH_CLI_VERIFY_REPORT_H_

#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "dispatch/cli/verify_case.h"

namespace flashlane::cli {

struct VerifyReport {
  int threads = 1;  // that a call may use
  std::vector<VerifyRow> rows;
  std::map<std::string, std::vector<std::string>> skipped;  // kernel -> names of its cases

  int passed() const;
  int failed() const;
  int num_skipped() const;
};

// Every row of every case, with times where there are any.
void PrintRows(const VerifyReport& report, std::ostream& out);

// One line per kernel, dtype and target.
void PrintSummary(const VerifyReport& report, std::ostream& out);

// Every failure and every kernel that was skipped, then the last line: "N passed, N failed".
void PrintOutcome(const VerifyReport& report, std::ostream& out);

// All of it as one JSON object. A number that is not finite is null.
void PrintJson(const VerifyReport& report, std::ostream& out);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_VERIFY_REPORT_H_
