// The subcommands, free of how their options are parsed. They print results to `out`; a Status that
// is not OK is bad input, one line on stderr and exit code 2.
#ifndef FLASHLANE_DISPATCH_CLI_COMMANDS_H_
#define FLASHLANE_DISPATCH_CLI_COMMANDS_H_

#include <iosfwd>
#include <string>
#include <vector>

#include "dispatch/cli/params.h"
#include "flashlane/status.h"

namespace flashlane::cli {

struct InfoOptions {
  bool json = false;
};
Status Info(const InfoOptions& options, std::ostream& out);

struct RunOptions {
  std::string input;
  std::string output;
  std::string kernel;  // empty: as the file says
  std::string dtype;   // empty: as stored
  std::string target;  // empty: the library's choice
  int threads = 0;
  ParamTexts params;
};
Status Run(const RunOptions& options);

struct ContractsOptions {
  std::string kernel;  // empty: all
  std::string folder;  // empty: print
};
Status Contracts(const ContractsOptions& options, std::ostream& out);

struct JudgeOptions {
  std::string kernels = "all";  // these three: comma-separated names, or "all"
  std::string dtypes = "all";
  std::string targets = "all";
  std::string output;  // a file for the JSON; empty: none
  std::string check;   // such a file, whose coefficients are held against new timings
  bool quick = false;
  bool json = false;
};
Status Judge(const JudgeOptions& options, std::ostream& out);

struct VerifyOptions {
  std::vector<std::string> paths;
  std::string kernels = "all";  // these three: comma-separated names, or "all"
  std::string dtypes = "all";
  std::string targets = "all";
  int threads = 0;
  bool json = false;
  bool time = false;
  bool verbose = false;
  std::string record;   // a file to write the results' bits to
  std::string against;  // a file that was so written, to compare with
};
// *failed: how many comparisons failed, and results are not as recorded.
Status Verify(const VerifyOptions& options, std::ostream& out, int* failed);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_COMMANDS_H_
