#include <algorithm>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dispatch/cli/case.h"
#include "dispatch/cli/commands.h"
#include "dispatch/cli/kernel_names.h"
#include "dispatch/cli/recording.h"
#include "dispatch/cli/replaced_file.h"
#include "dispatch/cli/safetensors.h"
#include "dispatch/cli/selection.h"
#include "dispatch/cli/text.h"
#include "dispatch/cli/verify_report.h"
#include "dispatch/dtype.h"
#include "dispatch/exec_options.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "flashlane/info.h"

namespace flashlane::cli {
namespace {

namespace fs = std::filesystem;

Status Select(const VerifyOptions& options, Selection* selection) {
  if (Status s = SelectKernels(options.kernels, &selection->kernels); !s.ok()) return s;
  if (Status s = SelectDTypes(options.dtypes, &selection->dtypes); !s.ok()) return s;
  if (Status s = SelectTargets(options.targets, &selection->targets); !s.ok()) return s;
  selection->threads = options.threads;
  selection->time = options.time;
  selection->keep_bits = !options.record.empty() || !options.against.empty();
  for (const KernelRow& row : Registry()) {
    const auto& kernels = selection->kernels;
    const auto& dtypes = selection->dtypes;
    if (std::find(kernels.begin(), kernels.end(), row.name) != kernels.end() &&
        std::find(dtypes.begin(), dtypes.end(), row.dtype) != dtypes.end()) {
      return {};
    }
  }
  return Status::Unsupported("--kernel " + options.kernels + " --dtype " + options.dtypes +
                             ": no such kernel in the registry");
}

// A file stands for itself, a folder for its *.safetensors in order of their names.
Status Expand(const std::string& path, std::vector<std::string>* files) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    files->push_back(path);
    return {};
  }
  std::vector<std::string> found;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") found.push_back(it->path().string());
  }
  if (error) return Status::InvalidArgument(Quoted(path) + ": " + error.message());
  if (found.empty()) {
    return Status::InvalidArgument(Quoted(path) + ": holds no *.safetensors file");
  }
  std::sort(found.begin(), found.end());
  std::move(found.begin(), found.end(), std::back_inserter(*files));
  return {};
}

// Each file once, however often it is named.
void RemoveRepeated(std::vector<std::string>* files) {
  std::set<std::string> known;
  const auto is_known = [&known](const std::string& file) {
    std::error_code error;
    const fs::path path = fs::weakly_canonical(file, error);
    return !known.insert(error ? file : path.string()).second;
  };
  files->erase(std::remove_if(files->begin(), files->end(), is_known), files->end());
}

// Every file is read, or tried, before the first case is run: minutes of work must not end in a
// typing error.
Status ReadAll(const VerifyOptions& options, std::vector<std::string>* files,
               SafetensorsFile* recording) {
  for (const std::string& path : options.paths) {
    if (Status s = Expand(path, files); !s.ok()) return s;
  }
  RemoveRepeated(files);
  Case loaded;
  for (const std::string& file : *files) {
    if (Status s = LoadCase(file, {}, &loaded); !s.ok()) return s;
    std::error_code error;
    if (!options.record.empty() && fs::equivalent(file, options.record, error)) {
      return Status::InvalidArgument("--record: " + Quoted(options.record) +
                                     " is a case to verify");
    }
  }
  if (!options.against.empty()) {
    if (Status s = ReadRecording(options.against, recording); !s.ok()) return s;
  }
  if (options.record.empty()) return {};
  return WithContext("--record", CheckReplaceable(options.record));
}

Status NothingRan(const VerifyReport& report) {
  if (report.skipped.empty()) {
    return Status::InvalidArgument("--kernel: none of these computes what the cases ask for");
  }
  std::vector<std::string> kernels;
  for (const auto& [kernel, names] : report.skipped) kernels.push_back(Quoted(kernel));
  return Status::Unsupported(
      "nothing to verify: the cases need kernels that are not in the registry (" +
      Join(kernels, ", ") + ")");
}

// Both may name the same file, which was read before.
Status CompareAndRecord(const VerifyOptions& options, const SafetensorsFile& recording,
                        VerifyReport* report) {
  if (!options.against.empty()) {
    RecordingComparison comparison;
    if (Status s = CompareRecording(options.against, recording, *report, &comparison); !s.ok()) {
      return s;
    }
    report->against = std::move(comparison);
  }
  return options.record.empty() ? Status() : WriteRecording(options.record, *report);
}

}  // namespace

Status Verify(const VerifyOptions& options, std::ostream& out, int* failed) {
  Selection selection;
  if (Status s = Select(options, &selection); !s.ok()) return s;
  std::vector<std::string> files;
  SafetensorsFile recording;
  if (Status s = ReadAll(options, &files, &recording); !s.ok()) return s;
  Case loaded;
  VerifyReport report;
  ExecOptions exec;
  exec.num_threads = options.threads;
  if (Status s = ThreadLimit(exec, &report.threads); !s.ok()) return s;
  for (const std::string& file : files) {
    if (Status s = LoadCase(file, {}, &loaded); !s.ok()) return s;
    report.digests[loaded.name] = DigestOf(loaded);
    if (!IsRegistered(loaded.kernel)) {
      report.skipped[loaded.kernel].push_back(loaded.name);
    } else if (Status s = VerifyCase(loaded, selection, &report.rows); !s.ok()) {
      return s;
    }
  }
  if (report.rows.empty()) return NothingRan(report);
  if (Status s = CompareAndRecord(options, recording, &report); !s.ok()) return s;
  *failed = report.failed() + report.changed();
  if (options.json) {
    PrintJson(report, out);
    return {};
  }
  if (options.time) {
    out << "Flashlane " << Version() << " on " << CpuName() << ", " << report.threads
        << (report.threads == 1 ? " thread\n\n" : " threads\n\n");
  }
  if (options.time || options.verbose) PrintRows(report, out);
  if (!options.time) PrintSummary(report, out);
  PrintOutcome(report, out);
  return {};
}

}  // namespace flashlane::cli
