// `flashlane judge`: the fit, its file, and the program. Nothing here depends on how long anything
// takes.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/judge_file.h"
#include "dispatch/cli/judge_fit.h"
#include "dispatch/cli/judge_shapes.h"
#include "flashlane/info.h"
#include "tests/support/cli.h"

namespace flashlane::cli {
namespace {

constexpr char kFlash[] = "flashlane::fkc::attention_flash";

std::vector<double> Values(const fkc::Coefficients& c) {
  return {c.overhead_ns,        c.tile_ns,           c.ns_per_flop, c.ns_per_byte,
          c.stream_ns_per_flop, c.stream_ns_per_byte};
}

// Shapes of a wide range of each term, timed by `truth`; every time is up to `noise` too long.
std::vector<TimedShape> Synthetic(const fkc::Coefficients& truth, double noise, int count) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<TimedShape> shapes;
  for (int i = 0; i < count; ++i) {
    TimedShape timed;
    timed.shape = std::to_string(i);
    timed.terms.tiles = std::floor(std::exp2(5 * uniform(random)));
    const double flops = std::exp2(14 + 14 * uniform(random));
    const double bytes = std::exp2(12 + 10 * uniform(random));
    (i % 2 == 0 ? timed.terms.flops : timed.terms.stream_flops) = flops;
    (i % 2 == 0 ? timed.terms.bytes : timed.terms.stream_bytes) = bytes;
    timed.nanoseconds = fkc::Nanoseconds(truth, timed.terms) * (1 + noise * uniform(random));
    shapes.push_back(timed);
  }
  return shapes;
}

const fkc::Coefficients kTruth = {900, 250, 0.01, 0.08, 0.02, 0.05};

TEST(JudgeFit, RecoversWhatTimingsWereMadeOf) {
  const std::vector<TimedShape> shapes = Synthetic(kTruth, 0, 24);
  const std::vector<double> want = Values(kTruth), got = Values(FitCoefficients(shapes));
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << i;
  for (const TimedShape& timed : shapes) {
    EXPECT_NEAR(RelativeError(FitCoefficients(shapes), timed), 0, 1e-6);
  }
}

TEST(JudgeFit, WithstandsNoise) {
  const fkc::Coefficients fitted = FitCoefficients(Synthetic(kTruth, 0.05, 60));
  const std::vector<double> want = Values(kTruth), got = Values(fitted);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.2 * want[i]) << i;
}

TEST(JudgeFit, OneDisturbedTimingDoesNotSpoilTheOthers) {
  std::vector<TimedShape> shapes = Synthetic(kTruth, 0.02, 40);
  shapes[7].nanoseconds *= 10;
  const fkc::Coefficients fitted = FitCoefficients(shapes);
  std::vector<double> errors;
  for (const TimedShape& timed : shapes) errors.push_back(RelativeError(fitted, timed));
  errors.erase(errors.begin() + 7);
  EXPECT_LT(Summarise(errors).worst, 0.1);
}

TEST(JudgeFit, TermsThatAreNotThereAreZeroAndNoneIsNegative) {
  fkc::Coefficients truth = kTruth;
  truth.tile_ns = truth.ns_per_byte = 0;
  std::vector<TimedShape> shapes = Synthetic(truth, 0.3, 30);
  for (TimedShape& timed : shapes) timed.terms.stream_flops = timed.terms.stream_bytes = 0;
  const fkc::Coefficients fitted = FitCoefficients(shapes);
  EXPECT_EQ(fitted.stream_ns_per_flop, 0);
  EXPECT_EQ(fitted.stream_ns_per_byte, 0);
  for (const double value : Values(fitted)) EXPECT_GE(value, 0);
  EXPECT_EQ(Values(FitCoefficients({})), std::vector<double>(6, 0.0));
}

TEST(JudgeFit, Summary) {
  EXPECT_EQ(Summarise({}).median, 0);
  EXPECT_EQ(Summarise({-0.5, 0.25, 0.125}).median, 0.25);
  EXPECT_EQ(Summarise({-0.5, 0.25}).median, 0.375);
  EXPECT_EQ(Summarise({-0.5, 0.25}).worst, 0.5);
}

TEST(JudgeShapes, EveryKernelHasShapesToFitAndOthersToPredict) {
  for (const KernelRow& row : Registry()) {
    if (RevisionOfKernel(row.name).empty()) continue;
    for (const bool quick : {false, true}) {
      std::vector<std::string> fitted, held_out;
      for (const JudgeShape& shape : ShapesFor(row, quick)) {
        (shape.held_out ? held_out : fitted).push_back(shape.Name());
      }
      EXPECT_GE(fitted.size(), 6u) << row.name;
      EXPECT_GE(held_out.size(), 4u) << row.name;
      for (const std::string& name : held_out) {
        EXPECT_EQ(std::count(fitted.begin(), fitted.end(), name), 0) << name;
      }
    }
  }
}

Judgement Example() {
  JudgedRow row;
  row.kernel = "attention_flash";
  row.dtype = DType::kBF16;
  row.target = SupportedTargets().front();
  row.revision = RevisionOfKernel(row.kernel);
  row.coefficients = kTruth;
  row.fitted = Synthetic(kTruth, 0, 4);
  row.held_out = Synthetic(kTruth, 0.5, 5);
  JudgedRow scalar = row;
  scalar.kernel = "attention_backward_naive";
  scalar.target = kEveryTarget;
  scalar.revision = RevisionOfKernel(scalar.kernel);
  scalar.coefficients = {1.0 / 3, 0, 1e-9, 0, 0, 0};
  return {Version(), CpuName(), true, {row, scalar}};
}

class JudgeFileTest : public ::testing::Test {
 protected:
  JudgeFileTest() { fkc::ClearCoefficients(); }
  ~JudgeFileTest() override { fkc::ClearCoefficients(); }

  // Refused with a message that has all parts, and nothing is kept.
  static void ExpectRefused(const std::string& text, const std::vector<std::string>& parts) {
    Judgement judgement;
    const Status status = ReadJudgement("file.json", text, &judgement);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << part << " in " << status.message();
    }
    EXPECT_NE(status.message().find("'file.json'"), std::string::npos) << status.message();
    EXPECT_TRUE(judgement.rows.empty());
  }
  static nlohmann::json ExampleJson() { return nlohmann::json::parse(WriteJudgement(Example())); }
};

TEST_F(JudgeFileTest, RoundTrip) {
  const Judgement written = Example();
  Judgement read;
  const Status status = ReadJudgement("file.json", WriteJudgement(written), &read);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(read.version, written.version);
  EXPECT_EQ(read.cpu, written.cpu);
  EXPECT_EQ(read.quick, written.quick);
  ASSERT_EQ(read.rows.size(), written.rows.size());
  for (std::size_t i = 0; i < read.rows.size(); ++i) {
    EXPECT_EQ(read.rows[i].kernel, written.rows[i].kernel);
    EXPECT_EQ(read.rows[i].dtype, written.rows[i].dtype);
    EXPECT_EQ(read.rows[i].target, written.rows[i].target);
    EXPECT_EQ(read.rows[i].revision, written.rows[i].revision);
    EXPECT_EQ(Values(read.rows[i].coefficients), Values(written.rows[i].coefficients));
  }
  ASSERT_TRUE(ApplyJudgement(read).ok());
  fkc::Coefficients found;
  ASSERT_TRUE(
      fkc::FindCoefficients(kFlash, DType::kBF16, read.rows[0].target.c_str(), &found).ok());
  EXPECT_EQ(Values(found), Values(kTruth));
  for (const std::string& target : SupportedTargets()) {
    EXPECT_TRUE(fkc::FindCoefficients("flashlane::fkc::attention_backward_naive", DType::kBF16,
                                      target.c_str(), &found)
                    .ok());
  }
  const nlohmann::json json = ExampleJson();
  EXPECT_EQ(json["rows"][0]["fitted_on"].size(), 4u);
  EXPECT_NEAR(json["rows"][0]["held_out_error"]["worst"], HeldOutError(written.rows[0]).worst,
              1e-12);
}

TEST_F(JudgeFileTest, MalformedFilesAreRefused) {
  ExpectRefused("", {"JSON"});
  ExpectRefused("[1, 2]", {"JSON object"});
  ExpectRefused(WriteJudgement(Example()).substr(0, 500), {"JSON"});
  ExpectRefused(R"({"format": "x", "schema": 1})", {"format", "flashlane_judge"});
  using Json = nlohmann::json;
  const std::pair<const char*, Json> changes[] = {
      {"/format", 3},
      {"/schema", 2},
      {"/schema", "1"},
      {"/library_version", nullptr},
      {"/machine", "fast"},
      {"/machine/cpu", "an abacus"},
      {"/quick", 1},
      {"/rows", Json::object()},
      {"/rows", Json::array()},
      {"/rows/1", 5},
      {"/rows/1/kernel", "rope"},
      {"/rows/1/dtype", "u32"},
      {"/rows/1/dtype", 32},
      {"/rows/1/target", "Z80"},
      {"/rows/1/kernel_revision_hash", "0123456789abcdef"},
      {"/rows/1/coefficients", Json::array()},
      {"/rows/1/coefficients/tile_ns", "1"},
      {"/rows/1/coefficients/tile_ns", nullptr},
      {"/rows/1/coefficients/tile_ns", -1},
  };
  const auto field_of = [](std::string path) {  // "/rows/1/kernel" -> "rows[1].kernel"
    path = path.substr(1);
    if (path.rfind("rows/1", 0) == 0) path.replace(0, 6, "rows[1]");
    for (char& c : path) c = c == '/' ? '.' : c;
    return path;
  };
  for (const auto& [path, value] : changes) {
    Json json = ExampleJson();
    json[Json::json_pointer(path)] = value;
    ExpectRefused(json.dump(), {field_of(path)});
  }
  for (const char* path :
       {"/format", "/schema", "/library_version", "/machine", "/machine/cpu", "/quick", "/rows",
        "/rows/1/kernel", "/rows/1/dtype", "/rows/1/target", "/rows/1/kernel_revision_hash",
        "/rows/1/coefficients", "/rows/1/coefficients/stream_ns_per_byte"}) {
    Json json = ExampleJson();
    const Json::json_pointer pointer(path);
    json[pointer.parent_pointer()].erase(pointer.back());
    ExpectRefused(json.dump(), {field_of(path)});
  }
  Json json = ExampleJson();
  json["rows"][1] = json["rows"][0];
  ExpectRefused(json.dump(), {"rows[1]", "twice"});
  for (auto& value : json["rows"][0]["coefficients"]) value = 0;
  ExpectRefused(json.dump(), {"rows[0].coefficients", "all 0"});
  std::string infinite = WriteJudgement(Example());
  infinite.replace(infinite.find("900.0"), 5, "1e999");
  ExpectRefused(infinite, {"file.json"});
}

TEST_F(CliTest, JudgeWritesWhatItFound) {
  const std::string target = SupportedTargets().front();
  const std::string file = Path("judged.json");
  const std::string select =
      "judge --quick --kernel attention_flash --dtype f32 --target " + target;
  const Outcome outcome = Flashlane(select + " --out '" + file + "'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");  // no progress bar: stderr is no terminal
  EXPECT_NE(outcome.out.find(target), std::string::npos) << outcome.out;
  EXPECT_NE(LastLine(outcome.out).find("median error"), std::string::npos) << outcome.out;
  const nlohmann::json json = nlohmann::json::parse(Contents(file));
  EXPECT_EQ(json["format"], "flashlane_judge");
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["library_version"], Version());
  EXPECT_EQ(json["machine"]["cpu"], CpuName());
  EXPECT_GE(json["machine"]["threads"], 1);
  EXPECT_EQ(json["threads_measured"], 1);
  ASSERT_EQ(json["rows"].size(), 1u);
  const nlohmann::json& row = json["rows"][0];
  EXPECT_EQ(row["kernel"], "attention_flash");
  EXPECT_EQ(row["dtype"], "f32");
  EXPECT_EQ(row["target"], target);
  EXPECT_EQ(row["kernel_revision_hash"], RevisionOfKernel("attention_flash"));
  for (const auto& value : row["coefficients"]) EXPECT_GE(value, 0);
  for (const char* list : {"fitted_on", "held_out"}) {
    EXPECT_GE(row[list].size(), 4u);
    for (const auto& shape : row[list]) {
      EXPECT_TRUE(shape["shape"].is_string());
      EXPECT_GT(shape["nanoseconds"], 0);
      EXPECT_GT(shape["predicted"], 0);
    }
  }
  EXPECT_GE(row["held_out_error"]["worst"], row["held_out_error"]["median"]);

  // The same file, held against timings of today; of other kernels it knows nothing.
  const Outcome check = Flashlane(select + " --json --check '" + file + "'");
  EXPECT_EQ(check.exit_code, 0) << check.err;
  const nlohmann::json again = nlohmann::json::parse(check.out);
  EXPECT_EQ(again["rows"][0]["coefficients"], row["coefficients"]);
  EXPECT_TRUE(again["rows"][0]["fitted_on"].empty());
  EXPECT_EQ(again["rows"][0]["held_out"].size(), row["held_out"].size());
  ExpectRefused("judge --quick --kernel paged --check '" + file + "'", {"--check", "none"});
}

TEST_F(CliTest, JudgeRefuses) {
  ExpectRefused("judge --quick --kernel rope", {"--kernel", "rope"});
  ExpectRefused("judge --quick --dtype f8", {"--dtype", "f8"});
  ExpectRefused("judge --quick --target Z80", {"--target", "Z80"});
  ExpectRefused("judge --quick --frobnicate", {"frobnicate"});
  ExpectRefused("judge --quick --check '" + Path("absent.json") + "'", {"--check", "absent.json"});
  std::ofstream(Path("bad.json")) << "{}";
  ExpectRefused("judge --quick --check '" + Path("bad.json") + "'", {"bad.json", "format"});
  ExpectRefused("judge --quick --out ''", {"--out", "must not be empty"});
}

TEST_F(CliTest, JudgeLeavesNoFileThatCannotBeWritten) {
  const std::string select = "judge --quick --kernel naive --dtype f32 --out ";
  ExpectRefused(select + "'" + Path("no/folder/o.json") + "'",
                {"--out", "o.json", "cannot be written"});
  EXPECT_FALSE(fs::exists(Path("no")));
  fs::create_directories(Path("taken/o.json"));
  ExpectRefused(select + "'" + Path("taken/o.json") + "'", {"--out", "cannot be written"});
  EXPECT_EQ(std::distance(fs::directory_iterator(Path("taken")), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace flashlane::cli
