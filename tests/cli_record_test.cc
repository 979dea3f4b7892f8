// `flashlane verify --record` and `--against`: the same bits pass, one other bit is found and
// named, and what was not compared is said.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/safetensors.h"
#include "flashlane/info.h"
#include "tests/support/cli.h"

namespace flashlane::cli {
namespace {

const std::string kBasic = kCases + "fwd_basic.safetensors";
const std::string kBackward = kCases + "bwd_basic.safetensors";

bool Holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class RecordTest : public CliTest {
 protected:
  // The path of a recording of `arguments`.
  std::string Record(const std::string& arguments) const {
    const std::string path = Path("recording.safetensors");
    const Outcome outcome = Flashlane("verify " + arguments + " --record " + path);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return path;
  }
  // The same recording with one bit of an element of `key` flipped.
  std::string WithBitFlipped(const std::string& recording, const std::string& key, std::size_t byte,
                             int bit) const {
    const SafetensorsFile file = Load(recording);
    file.tensors.at(key).bytes.data()[byte] ^= std::byte{1} << bit;
    return Save("flipped.safetensors", file);
  }
};

TEST_F(RecordTest, TheSameBitsPassWithAnyThreads) {
  const std::string cases = kBasic + " " + kBackward;
  const std::string recording = Record(cases + " --threads 1");
  const Outcome outcome = Flashlane("verify " + cases + " --threads 2 --against " + recording);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const std::size_t rows = 2 * 4 * (1 + SupportedTargets().size());
  EXPECT_EQ(LastLine(outcome.out), std::to_string(rows) + " passed, 0 failed, 0 changed");
  const std::size_t results = rows / 2 * (2 + 3);  // out lse; dq dk dv
  EXPECT_TRUE(Holds(outcome.out, std::to_string(results) + " results identical, 0 changed"))
      << outcome.out;
  EXPECT_TRUE(Holds(outcome.out, std::string("recorded by Flashlane '") + Version()));
}

TEST_F(RecordTest, OneBitIsFoundAndNamed) {
  const std::string target = SupportedTargets().back();
  const std::string recording = Record(kBasic);
  const std::string key = "fwd_basic/flash/f32/" + target + "/out";
  // out is [1, 2, 4, 8]: element [0, 1, 2, 3] is number 51.
  const std::string flipped = WithBitFlipped(recording, key, 51 * 4, 0);
  const Outcome outcome = Flashlane("verify " + kBasic + " --against " + flipped);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_TRUE(Holds(outcome.out,
                    "CHANGED " + key + ": 1 of 64 elements differ, the first at [0, 1, 2, 3]: "))
      << outcome.out;
  EXPECT_TRUE(Holds(outcome.out, "at most 1 units in the last place\n")) << outcome.out;
  EXPECT_TRUE(Holds(LastLine(outcome.out), " 0 failed, 1 changed")) << outcome.out;

  const auto json = nlohmann::json::parse(
      Flashlane("verify --json " + kBasic + " --against " + flipped).out)["against"];
  ASSERT_EQ(json["changed"].size(), 1u);
  EXPECT_EQ(json["changed"][0]["result"], key);
  EXPECT_EQ(json["changed"][0]["differing"], 1);
  EXPECT_EQ(json["changed"][0]["largest_ulps"], 1);
  EXPECT_EQ(json["changed"][0]["first"]["index"], nlohmann::json({0, 1, 2, 3}));
  EXPECT_NE(json["changed"][0]["first"]["was"], json["changed"][0]["first"]["is"]);
}

// The sign and every bit of a result count, of each dtype.
TEST_F(RecordTest, EveryDTypeIsComparedByItsBits) {
  const std::string recording = Record(kBasic + " --kernel naive");
  struct Last {
    const char* dtype;
    std::size_t byte;
  };
  for (const Last last : {Last{"f32", 255}, {"f64", 511}, {"bf16", 127}, {"f16", 127}}) {
    const std::string key = std::string("fwd_basic/naive/") + last.dtype + "/scalar/out";
    const std::string flipped = WithBitFlipped(recording, key, last.byte, 7);
    const Outcome outcome = Flashlane("verify " + kBasic + " --kernel naive --against " + flipped);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_TRUE(Holds(outcome.out, key + ": 1 of 64 elements differ")) << outcome.out;
  }
}

TEST_F(RecordTest, AnotherCaseIsNoChangeOfAKernel) {
  SafetensorsFile file = Load(kBasic);
  const std::string recording = Record(Save("mine.safetensors", file) + " --kernel naive");
  file.tensors.at("q").bytes.data()[2] ^= std::byte{1};
  const Outcome outcome = Flashlane("verify " + Save("mine.safetensors", file) +
                                    " --kernel naive --dtype f32 --against " + recording);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(Holds(outcome.out, "CHANGED mine: the case itself, its inputs or its parameters\n"));
  EXPECT_TRUE(Holds(outcome.out, "0 results identical, 0 changed\n")) << outcome.out;
  // Its answers are none of its inputs.
  file = Load(kBasic);
  file.tensors.erase("lse");
  EXPECT_EQ(Flashlane("verify " + Save("mine.safetensors", file) +
                      " --kernel naive --dtype f32 --against " + recording)
                .exit_code,
            0);
}

TEST_F(RecordTest, WhatIsNotComparedIsSaid) {
  const std::string recording = Record(kBasic + " --kernel naive --dtype f32,f64");
  const Outcome outcome =
      Flashlane("verify " + kBasic + " --kernel naive --dtype f32,f16 --against " + recording);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(Holds(outcome.out, "not recorded: naive f16 scalar: 2 results\n")) << outcome.out;
  EXPECT_TRUE(Holds(outcome.out, "recorded, not run now: naive f64 scalar: 2 results\n"));
  EXPECT_TRUE(Holds(outcome.out, "2 results identical, 0 changed\n"));
}

TEST_F(RecordTest, RefusesWhatIsNoRecording) {
  const std::string verify = "verify " + kBasic + " --kernel naive --dtype f32 ";
  ExpectRefused(verify + "--against " + Path("absent"), {"absent'"});
  ExpectRefused(verify + "--against " + kBasic, {"--against", "is no recording"});
  SafetensorsFile file = Load(Record(kBasic + " --kernel naive --dtype f64"));
  ExpectRefused(verify + "--against " + Path("recording.safetensors"), {"no result in common"});
  file.metadata["flashlane_recording"] = "99";
  ExpectRefused(verify + "--against " + Save("newer", file), {"newer'", "format '99'"});
  ExpectRefused(verify + "--record " + Path("no/such/folder"), {"no/such/folder'"});
  fs::create_directory(Path("twin"));
  const std::string twin = Save("twin/fwd_basic.safetensors", Load(kBasic));
  ExpectRefused(verify + twin + " --record " + Path("two"), {"--record", "two cases are called"});
  EXPECT_FALSE(fs::exists(Path("two")));
}

TEST_F(RecordTest, RefusesMalformedKeys) {
  const std::string verify = "verify " + kBasic + " --kernel naive --dtype f32 ";
  Record(kBasic + " --kernel naive --dtype f32");
  const auto renamed = [&](const std::string& name) {
    SafetensorsFile file = Load(Path("recording.safetensors"));
    auto node = file.tensors.extract(file.tensors.begin());
    node.key() = name;
    file.tensors.insert(std::move(node));
    return Save("renamed", file);
  };
  for (const char* name : {"", "one", "case/out", "a/b/c/d/e/f"}) {
    ExpectRefused(verify + "--against " + renamed(name), {"--against", "case/kernel/dtype"});
  }
  ExpectRefused(verify + "--against " + renamed("other/attention_naive/f32/scalar/out"),
                {"--against", "no digest of case 'other'"});
}

TEST_F(RecordTest, RecordsACaseOnceAndNeverOverOne) {
  const std::string select = " --kernel naive --dtype f32 ";
  const std::string recording = Record(kBasic + " " + kBasic + select);
  const Outcome outcome = Flashlane("verify " + kBasic + select + "--against " + recording);
  EXPECT_EQ(LastLine(outcome.out), "1 passed, 0 failed, 0 changed") << outcome.err;
  const std::string input = Save("case.safetensors", Load(kBasic));
  const std::string before = Contents(input);
  ExpectRefused("verify " + input + select + "--record " + input, {"--record", "is a case"});
  EXPECT_EQ(Contents(input), before);
  ExpectRefused("verify " + kBasic + select + "--record ''", {"--record", "must not be empty"});
  ExpectRefused("verify " + kBasic + select + "--against ''", {"--against", "must not be empty"});
}

TEST_F(RecordTest, TheReportNamesTheMachineAndTheWorstOfEachCase) {
  const auto json =
      nlohmann::json::parse(Flashlane("verify --json --dtype f32 " + kBasic + " " + kBackward).out);
  EXPECT_EQ(json["machine"]["cpu"], CpuName());
  EXPECT_FALSE(json["machine"]["architecture"].get<std::string>().empty());
  EXPECT_EQ(json["machine"]["compiled_targets"], nlohmann::json(CompiledTargets()));
  EXPECT_EQ(json["machine"]["supported_targets"], nlohmann::json(SupportedTargets()));
  EXPECT_EQ(json["machine"]["not_run"].size(),
            CompiledTargets().size() - SupportedTargets().size());
  ASSERT_EQ(json["cases"].size(), 2u);
  EXPECT_EQ(json["cases"][0]["case"], "fwd_basic");
  EXPECT_EQ(json["cases"][1]["case"], "bwd_basic");
  EXPECT_EQ(json["cases"][0]["rows"], 1 + SupportedTargets().size());
  double worst = 0;
  for (const auto& row : json["rows"]) {
    if (row["case"] != "fwd_basic") continue;
    for (const char* result : {"out", "lse"}) {
      worst = std::max(worst, row[result]["fraction"].get<double>());
    }
  }
  EXPECT_GT(worst, 0);
  EXPECT_EQ(json["cases"][0]["worst"]["fraction"].get<double>(), worst);
}

}  // namespace
}  // namespace flashlane::cli
