// `flashlane verify`: what it passes, what it fails, and what it says about it.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/safetensors.h"
#include "dispatch/registry.h"
#include "flashlane/info.h"
#include "tests/support/cli.h"

namespace flashlane::cli {
namespace {

TEST_F(CliTest, VerifyPassesAndCounts) {
  SafetensorsFile unknown = Load(kCases + "fwd_basic.safetensors");
  unknown.metadata["kernel"] = "attention_quantum";
  const Outcome outcome =
      Flashlane("verify " + kCases + "fwd_causal.safetensors " + kCases +
                "fwd_all_masked.safetensors " + Save("unknown", unknown) + " --dtype f32,f64");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const std::size_t rows = 2 * 2 * (1 + SupportedTargets().size());
  EXPECT_EQ(LastLine(outcome.out), std::to_string(rows) + " passed, 0 failed, 1 skipped");
  EXPECT_NE(outcome.out.find("1 case (unknown)"), std::string::npos) << outcome.out;

  const std::string target = SupportedTargets().back();
  const Outcome one = Flashlane(
      "verify " + kCases + "fwd_mqa.safetensors --kernel flash --dtype f32 --target " + target);
  EXPECT_EQ(LastLine(one.out), "1 passed, 0 failed");
  EXPECT_NE(one.out.find(target), std::string::npos);
}

TEST_F(CliTest, VerifyFailsOnAWrongAnswer) {
  SafetensorsFile file = Load(kCases + "fwd_causal.safetensors");
  auto* lse = reinterpret_cast<double*>(file.tensors.at("lse").bytes.data());
  lse[65 + 7] += 1e-4;
  const std::string wrong = Save("wrong.safetensors", file);
  Save("right.safetensors", Load(kCases + "fwd_basic.safetensors"));
  const Outcome outcome =
      Flashlane("verify " + folder_.string() + " --kernel naive --dtype f32,f64");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(LastLine(outcome.out), "2 passed, 2 failed");
  EXPECT_NE(outcome.out.find("FAILED " + wrong + " naive f32 scalar: lse[0,1,7] is "),
            std::string::npos)
      << outcome.out;
  const auto json = nlohmann::json::parse(
      Flashlane("verify --json " + wrong + " --kernel naive --dtype f32").out);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["rows"][0]["passed"], false);
  EXPECT_EQ(json["rows"][0]["lse"]["index"], nlohmann::json({0, 1, 7, 0}));
}

// Inputs that a dtype cannot hold, answers that are not f64, and no answers at all.
TEST_F(CliTest, VerifySaysWhatItComparesWith) {
  SafetensorsFile file = Load(std::string(FLASHLANE_TEST_DATA) + "/minilm/layer0.safetensors");
  const auto truths = [&](const std::string& path, const std::string& dtype) {
    const Outcome outcome = Flashlane("verify --json --kernel naive " + path + " --dtype " + dtype);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    std::vector<std::string> rows;
    const auto json = nlohmann::json::parse(outcome.out);
    for (const auto& row : json["rows"]) {
      rows.push_back(row["kernel"].get<std::string>() + " " + row["truth"].get<std::string>());
    }
    return rows;
  };
  const std::string stored = Save("stored", file);
  EXPECT_EQ(truths(stored, "f32,f64"), (std::vector<std::string>{"naive file", "naive file"}));
  EXPECT_EQ(truths(stored, "bf16"), std::vector<std::string>{"naive recomputed"});

  ASSERT_EQ(Flashlane("run " + stored + " --out " + Path("o")).exit_code, 0);
  SafetensorsFile computed = Load(Path("o"));
  for (const char* name : {"out", "lse"}) file.tensors[name] = std::move(computed.tensors.at(name));
  const std::string in_f32 = Save("in_f32", file);
  EXPECT_EQ(truths(in_f32, "f32"),
            (std::vector<std::string>{"(file) recomputed", "naive recomputed"}));
  reinterpret_cast<float*>(file.tensors.at("out").bytes.data())[5] += 1e-3F;
  EXPECT_EQ(Flashlane("verify " + Save("off", file)).exit_code, 1);
  file.tensors.erase("out");
  file.tensors.erase("lse");
  EXPECT_EQ(truths(Save("none", file), "f32"), std::vector<std::string>{"naive recomputed"});
}

TEST_F(CliTest, VerifyTimes) {
  const Outcome outcome =
      Flashlane("verify " + kCases + "fwd_basic.safetensors --time --dtype f32 --threads 1");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.out.find(", 1 thread\n"), std::string::npos) << outcome.out;
  for (const char* title : {"case", "kernel", "dtype", "target", "of tolerance", "GFLOP/s"}) {
    EXPECT_NE(outcome.out.find(title), std::string::npos) << title;
  }
  const auto json = nlohmann::json::parse(
      Flashlane("verify --json --time --dtype f32 " + kCases + "fwd_basic.safetensors").out);
  for (const auto& row : json["rows"]) EXPECT_GT(row["time"]["gflops"].get<double>(), 0.0);
}

TEST_F(CliTest, VerifyRefusesBadInput) {
  const std::string good = kCases + "fwd_basic.safetensors";
  ExpectRefused("verify " + Path("absent"), {"absent'"});
  fs::create_directory(Path("empty"));
  ExpectRefused("verify " + Path("empty"), {"empty'", "no *.safetensors"});
  ExpectRefused("verify " + good + " --target FANCY", {"--target", "FANCY"});
  ExpectRefused("verify " + good + " --dtype f32,", {"--dtype", "''"});
  ExpectRefused("verify " + good + " --kernel quick", {"--kernel", "'quick'"});
  ExpectRefused("verify " + good + " --kernel backward", {"--kernel", "none of these"});
  ExpectRefused("verify " + good + " --kernel paged", {"--kernel", "none of these"});
  SafetensorsFile unknown = Load(good);
  unknown.metadata["kernel"] = "attention_quantum";
  ExpectRefused("verify " + Save("unknown", unknown), {"nothing to verify"});
  if (FindKernel(Kernel::kFlash, DType::kBF16) == nullptr) {
    ExpectRefused("verify " + good + " --kernel flash --dtype bf16", {"no such kernel"});
  }
  SafetensorsFile file = Load(good);
  file.tensors.at("out").shape = {64};
  ExpectRefused("verify " + Save("shape", file),
                {"shape'", "tensor 'out'", "must be [1, 2, 4, 8]"});
  file.tensors.erase("out");
  file.tensors.erase("q");
  ExpectRefused("verify " + good + " " + Save("q", file), {"q'", "tensor 'q'", "missing"});
  std::ofstream(Path("garbage")) << "not a safetensors file at all";
  ExpectRefused("verify " + good + " " + Path("garbage"), {"garbage'"});
}

}  // namespace
}  // namespace flashlane::cli
