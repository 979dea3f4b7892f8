#include "dispatch/cli/recording_report.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/text.h"

namespace flashlane::cli {
namespace {

// "case/kernel/dtype/target/result" -> "kernel dtype target"
std::string KindOf(const std::string& key) {
  std::string kind = key.substr(key.find('/') + 1);
  kind.resize(kind.rfind('/'));
  for (char& c : kind) {
    if (c == '/') c = ' ';
  }
  return kind;
}

void PrintCounts(const char* title, const std::vector<std::string>& keys, std::ostream& out) {
  std::map<std::string, int> counts;
  for (const std::string& key : keys) ++counts[KindOf(key)];
  for (const auto& [kind, count] : counts) {
    out << title << kind << ": " << count << (count == 1 ? " result\n" : " results\n");
  }
}

nlohmann::ordered_json JsonOf(const ChangedResult& change) {
  nlohmann::ordered_json json = {{"result", change.key}, {"what", change.what}};
  if (change.differing > 0) {
    json["elements"] = change.elements;
    json["differing"] = change.differing;
    json["first"] = {{"index", change.first}, {"was", change.was}, {"is", change.is}};
    json["largest_ulps"] = nullptr;  // NaN on one side
    if (change.largest_ulps != std::numeric_limits<std::uint64_t>::max()) {
      json["largest_ulps"] = change.largest_ulps;
    }
  }
  return json;
}

}  // namespace

void PrintComparison(const RecordingComparison& comparison, std::ostream& out) {
  out << "against " << comparison.path << ", recorded by Flashlane " << Quoted(comparison.version)
      << " on " << Quoted(comparison.cpu) << " (" << Quoted(comparison.targets) << ")\n";
  for (const ChangedResult& change : comparison.changed) {
    out << "CHANGED " << change.key << ": " << change.what << '\n';
  }
  for (const std::string& name : comparison.other_cases) {
    out << "CHANGED " << name << ": the case itself, its inputs or its parameters\n";
  }
  PrintCounts("not recorded: ", comparison.added, out);
  PrintCounts("recorded, not run now: ", comparison.not_run, out);
  out << comparison.identical << " results identical, " << comparison.changed.size()
      << " changed\n\n";
}

nlohmann::ordered_json JsonOf(const RecordingComparison& comparison) {
  nlohmann::ordered_json json = {
      {"file", comparison.path},
      {"recorded_by",
       {{"version", comparison.version}, {"cpu", comparison.cpu}, {"targets", comparison.targets}}},
      {"identical", comparison.identical}};
  json["changed"] = nlohmann::ordered_json::array();
  for (const ChangedResult& change : comparison.changed) json["changed"].push_back(JsonOf(change));
  json["other_cases"] = comparison.other_cases;
  json["not_recorded"] = comparison.added;
  json["not_run"] = comparison.not_run;
  return json;
}

}  // namespace flashlane::cli
