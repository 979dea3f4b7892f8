// `flashlane run` and `verify` on backward cases.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/safetensors.h"
#include "flashlane/info.h"
#include "tests/support/cli.h"

namespace flashlane::cli {
namespace {

const std::string kGqa = kCases + "bwd_gqa.safetensors";

TEST_F(CliTest, RunComputesGradients) {
  const SafetensorsFile file = Load(kGqa);
  for (const std::string kernel : {"naive", "backward"}) {
    const std::string output = Path(kernel);
    const Outcome outcome = Flashlane("run " + kGqa + " --dtype F32 --out " + output +
                                      (kernel == "naive" ? " --kernel naive" : ""));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out + outcome.err, "");
    const SafetensorsFile result = Load(output);
    ASSERT_EQ(result.tensors.size(), 3u);
    for (const char* name : {"dq", "dk", "dv"}) {
      EXPECT_EQ(result.tensors.at(name).shape, file.tensors.at(name).shape);
      const std::vector<float> values = Values<float>(result, name);
      const std::vector<double> expected = Values<double>(file, name);
      ASSERT_EQ(values.size(), expected.size());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], expected[i], 1e-4) << kernel << " " << name << " " << i;
      }
    }
    EXPECT_EQ(result.metadata.at("kernel"),
              kernel == "naive" ? "attention_backward_naive" : "attention_flash_backward");
    EXPECT_EQ(result.metadata.at("dtype"), "f32");
  }
  // As stored, and with a parameter of one's own.
  ASSERT_EQ(Flashlane("run " + kGqa + " --softcap 5 --out " + Path("c")).exit_code, 0);
  EXPECT_EQ(Load(Path("c")).tensors.at("dq").dtype, "BF16");
}

TEST_F(CliTest, RunRefusesBadBackwardCases) {
  SafetensorsFile file = Load(kGqa);
  file.tensors.at("do").shape = {6, 33, 32};
  ExpectRunRefused(Save("rank", file), {"rank'", "tensor 'do'", "must have 4 dimensions"});
  file.tensors.at("do").shape = {1, 3, 66, 32};
  ExpectRunRefused(Save("shape", file), {"shape'", "dout: num_heads 3 is not 6"});
  file.tensors.at("do").dtype = "I16";
  ExpectRunRefused(Save("dtype", file), {"dtype'", "'do'", "'I16' is not supported"});
  file.tensors.erase("do");
  ExpectRunRefused(Save("without", file), {"without'", "tensor 'do' is missing"});
}

TEST_F(CliTest, VerifyGradients) {
  const Outcome outcome = Flashlane("verify " + kGqa + " --dtype f32,bf16");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const std::size_t rows = 2 * (1 + SupportedTargets().size());
  EXPECT_EQ(LastLine(outcome.out), std::to_string(rows) + " passed, 0 failed");
  for (const char* part : {"dq/tolerance", "dk/tolerance", "dv/tolerance", "backward_naive"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(outcome.out.find("lse/tolerance"), std::string::npos);
  const Outcome naive = Flashlane("verify " + kGqa + " --kernel naive --dtype f64");
  EXPECT_EQ(LastLine(naive.out), "1 passed, 0 failed");
}

TEST_F(CliTest, VerifyFailsOnWrongGradients) {
  for (const std::string name : {"dq", "dk", "dv"}) {
    SafetensorsFile file = Load(kGqa);
    reinterpret_cast<double*>(file.tensors.at(name).bytes.data())[5] += 0.01;
    const Outcome outcome =
        Flashlane("verify --json --kernel backward --dtype f32 " + Save("wrong", file));
    EXPECT_EQ(outcome.exit_code, 1);
    const auto json = nlohmann::json::parse(outcome.out);
    for (const auto& row : json["rows"]) {
      EXPECT_EQ(row["passed"], false);
      EXPECT_EQ(row[name]["index"], nlohmann::json({0, 0, 0, 5}));
      EXPECT_EQ(row[name]["message"].get<std::string>().rfind(name + "[0,0,0,5] is ", 0), 0u);
    }
  }
}

}  // namespace
}  // namespace flashlane::cli
