// A comparison with a recording, as text and as JSON.
#ifndef FLASHLANE_DISPATCH_CLI_RECORDING_REPORT_H_
#define FLASHLANE_DISPATCH_CLI_RECORDING_REPORT_H_

#include <iosfwd>

#include <nlohmann/json_fwd.hpp>

#include "dispatch/cli/recording.h"

namespace flashlane::cli {

// One line per changed result; of what could not be compared, counts by target or kernel.
void PrintComparison(const RecordingComparison& comparison, std::ostream& out);
nlohmann::ordered_json JsonOf(const RecordingComparison& comparison);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_RECORDING_REPORT_H_
