#include "dispatch/cli/judge_file.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include <nlohmann/json.hpp>

#include "dispatch/cli/machine.h"
#include "dispatch/cli/text.h"
#include "dispatch/dtype.h"
#include "flashlane/info.h"
#include "threading/parallel_for.h"

namespace flashlane::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "flashlane_judge";
// Another one where fields change, or what fkc/time_model.h counts: coefficients of different
// models are not comparable.
constexpr int kSchema = 1;

struct Field {
  const char* name;
  double fkc::Coefficients::*value;
};
constexpr Field kFields[] = {{"overhead_ns", &fkc::Coefficients::overhead_ns},
                             {"tile_ns", &fkc::Coefficients::tile_ns},
                             {"ns_per_flop", &fkc::Coefficients::ns_per_flop},
                             {"ns_per_byte", &fkc::Coefficients::ns_per_byte},
                             {"stream_ns_per_flop", &fkc::Coefficients::stream_ns_per_flop},
                             {"stream_ns_per_byte", &fkc::Coefficients::stream_ns_per_byte}};

std::vector<double> Errors(const JudgedRow& row) {
  std::vector<double> errors;
  for (const TimedShape& timed : row.held_out) {
    errors.push_back(RelativeError(row.coefficients, timed));
  }
  return errors;
}

Json JsonOf(const ErrorSummary& error) {
  return {{"median", error.median}, {"worst", error.worst}};
}

Json JsonOf(const std::vector<TimedShape>& shapes, const fkc::Coefficients& coefficients) {
  Json json = Json::array();
  for (const TimedShape& timed : shapes) {
    json.push_back({{"shape", timed.shape},
                    {"nanoseconds", timed.nanoseconds},
                    {"predicted", fkc::Nanoseconds(coefficients, timed.terms)}});
  }
  return json;
}

Json JsonOf(const JudgedRow& row) {
  Json json = {{"kernel", row.kernel},
               {"dtype", LowerDTypeName(row.dtype)},
               {"target", row.target},
               {"kernel_revision_hash", row.revision}};
  for (const Field& field : kFields)
    json["coefficients"][field.name] = row.coefficients.*field.value;
  json["held_out_error"] = JsonOf(HeldOutError(row));
  json["fitted_on"] = JsonOf(row.fitted, row.coefficients);
  json["held_out"] = JsonOf(row.held_out, row.coefficients);
  return json;
}

// Reads one document; the first rule that is broken stays in status().
class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source) {}

  const Status& status() const { return status_; }

  void Refuse(const std::string& field, const std::string& rule) {
    if (status_.ok()) {
      status_ = Status::InvalidArgument(Quoted(source_) + ": " + field + " " + rule);
    }
  }

  const Json* Member(const Json& in, const std::string& path, const char* name) {
    const auto found = in.find(name);
    if (found != in.end()) return &*found;
    Refuse(path + name, "is missing");
    return nullptr;
  }

  std::string Text(const Json& in, const std::string& path, const char* name) {
    const Json* member = Member(in, path, name);
    if (member == nullptr) return {};
    if (!member->is_string()) {
      Refuse(path + name, "is not a string");
      return {};
    }
    return member->get<std::string>();
  }

  // Of an object, to look into: an empty one where there is none.
  const Json& Object(const Json& in, const std::string& path, const char* name) {
    static const Json empty = Json::object();
    const Json* member = Member(in, path, name);
    if (member != nullptr && !member->is_object()) Refuse(path + name, "is not an object");
    return member != nullptr && member->is_object() ? *member : empty;
  }

  void Coefficients(const Json& in, const std::string& path, fkc::Coefficients* coefficients) {
    bool any = false;
    for (const Field& field : kFields) {
      const Json* member = Member(in, path, field.name);
      if (member == nullptr) continue;
      const double value = member->is_number() ? member->get<double>() : -1;
      if (!std::isfinite(value) || value < 0) {
        Refuse(path + field.name, "is not a finite number >= 0");
      }
      coefficients->*field.value = value;
      any = any || value > 0;
    }
    if (!any) Refuse(path.substr(0, path.size() - 1), "are all 0");
  }

  void Row(const Json& in, const std::string& path, JudgedRow* row) {
    if (!in.is_object()) return Refuse(path.substr(0, path.size() - 1), "is not an object");
    row->kernel = Text(in, path, "kernel");
    const std::optional<DType> dtype = ParseDType(Text(in, path, "dtype"));
    row->target = Text(in, path, "target");
    row->revision = Text(in, path, "kernel_revision_hash");
    Coefficients(Object(in, path, "coefficients"), path + "coefficients.", &row->coefficients);
    const std::string revision = RevisionOfKernel(row->kernel);
    if (revision.empty()) Refuse(path + "kernel", Quoted(row->kernel) + " has no contract");
    if (!dtype.has_value() || !IsAttentionDType(*dtype)) {
      return Refuse(path + "dtype", "is not one of f32, f64, bf16, f16");
    }
    row->dtype = *dtype;
    const std::vector<std::string> targets = SupportedTargets();
    if (row->target != kEveryTarget &&
        std::find(targets.begin(), targets.end(), row->target) == targets.end()) {
      Refuse(path + "target", Quoted(row->target) + " does not run here");
    }
    if (row->revision != revision) {
      Refuse(path + "kernel_revision_hash",
             Quoted(row->revision) + " is not this library's, " + revision + ": judge anew");
    }
  }

  void Document(const Json& in, Judgement* judgement) {
    if (!in.is_object()) return Refuse("the text", "is not a JSON object");
    if (Text(in, "", "format") != kFormat) {
      Refuse("format", std::string("is not ") + kFormat);
    }
    const Json* schema = Member(in, "", "schema");
    if (schema != nullptr && *schema != kSchema) {
      Refuse("schema", "is not " + std::to_string(kSchema) + ": judge anew");
    }
    judgement->version = Text(in, "", "library_version");
    judgement->cpu = Text(Object(in, "", "machine"), "machine.", "cpu");
    if (judgement->cpu != CpuName()) {
      Refuse("machine.cpu", Quoted(judgement->cpu) + " is not this machine's, " + CpuName());
    }
    const Json* quick = Member(in, "", "quick");
    if (quick != nullptr && !quick->is_boolean()) Refuse("quick", "is not true or false");
    judgement->quick = quick != nullptr && *quick == true;
    const Json* rows = Member(in, "", "rows");
    if (rows == nullptr) return;
    if (!rows->is_array() || rows->empty()) return Refuse("rows", "is not a list of any");
    for (std::size_t i = 0; i < rows->size() && status_.ok(); ++i) {
      JudgedRow row;
      Row((*rows)[i], "rows[" + std::to_string(i) + "].", &row);
      const auto same = [&row](const JudgedRow& other) {
        return other.kernel == row.kernel && other.dtype == row.dtype && other.target == row.target;
      };
      if (std::any_of(judgement->rows.begin(), judgement->rows.end(), same)) {
        Refuse("rows[" + std::to_string(i) + "]", "is there twice");
      }
      judgement->rows.push_back(std::move(row));
    }
  }

 private:
  const std::string& source_;
  Status status_;
};

}  // namespace

std::string EntryPointOf(const std::string& kernel) { return "flashlane::fkc::" + kernel; }

std::string RevisionOfKernel(const std::string& kernel) {
  for (const fkc::EntryPoint& entry : fkc::EntryPoints()) {
    if (kernel == entry.document) return entry.kernel_revision_hash;
  }
  return {};
}

ErrorSummary HeldOutError(const JudgedRow& row) { return Summarise(Errors(row)); }

ErrorSummary HeldOutError(const Judgement& judgement) {
  std::vector<double> errors;
  for (const JudgedRow& row : judgement.rows) {
    const std::vector<double> of_row = Errors(row);
    errors.insert(errors.end(), of_row.begin(), of_row.end());
  }
  return Summarise(std::move(errors));
}

std::string WriteJudgement(const Judgement& judgement) {
  Json json = {{"format", kFormat},
               {"schema", kSchema},
               {"library_version", judgement.version},
               {"machine",
                {{"cpu", judgement.cpu},
                 {"architecture", Architecture()},
                 {"threads", threading::AvailableThreads()},
                 {"targets", SupportedTargets()}}},
               {"threads_measured", 1},
               {"operands", "not in cache"},
               {"quick", judgement.quick},
               {"held_out_error", JsonOf(HeldOutError(judgement))}};
  json["rows"] = Json::array();
  for (const JudgedRow& row : judgement.rows) json["rows"].push_back(JsonOf(row));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status ReadJudgement(const std::string& source, const std::string& text, Judgement* judgement) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Reader reader(source);
  Judgement read;
  reader.Document(json, &read);
  if (reader.status().ok()) *judgement = std::move(read);
  return reader.status();
}

Status ApplyJudgement(const Judgement& judgement) {
  for (const JudgedRow& row : judgement.rows) {
    const char* target = row.target == kEveryTarget ? nullptr : row.target.c_str();
    const Status status =
        fkc::SetCoefficients(EntryPointOf(row.kernel).c_str(), row.dtype, target, row.coefficients);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace flashlane::cli
