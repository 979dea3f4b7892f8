// The bits of all results of a verify run in a file, and how those of a later run differ: the same
// machine and target must give the same bits until a kernel is changed on purpose.
#ifndef FLASHLANE_DISPATCH_CLI_RECORDING_H_
#define FLASHLANE_DISPATCH_CLI_RECORDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/cli/case.h"
#include "dispatch/cli/safetensors.h"
#include "dispatch/cli/verify_case.h"
#include "flashlane/status.h"

namespace flashlane::cli {

struct VerifyReport;

// A number over the inputs and the metadata of a case, which another case has by chance only.
std::uint64_t DigestOf(const Case& from);

// A file of safetensors: a tensor "case/kernel/dtype/target/result" for each result, and in the
// metadata who recorded it and the digests of the cases. Cases of one name are an error.
Status WriteRecording(const std::string& path, const VerifyReport& report);

struct ChangedResult {
  std::string key;   // "case/kernel/dtype/target/result"
  std::string what;  // what changed, for people
  std::int64_t elements = 0;
  std::int64_t differing = 0;
  std::vector<std::int64_t> first;  // index of the first that differs; empty if the shape does
  double was = 0, is = 0;           // there
  std::uint64_t largest_ulps = 0;   // distance in units in the last place; NaN counts as far away
};

struct RecordingComparison {
  std::string path;
  std::string version, cpu, targets;     // of who recorded it
  std::int64_t identical = 0;            // results
  std::vector<ChangedResult> changed;    // also results of calls that fail now
  std::vector<std::string> other_cases;  // cases whose inputs or parameters are others now
  std::vector<std::string> added;        // keys that the recording does not have
  std::vector<std::string> not_run;      // keys that this run does not have
};

// An error is a file that is no recording.
Status ReadRecording(const std::string& path, SafetensorsFile* recording);

// An error is a recording that has nothing in common with the report. `path`: of the recording.
Status CompareRecording(const std::string& path, const SafetensorsFile& recording,
                        const VerifyReport& report, RecordingComparison* comparison);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_RECORDING_H_
