// `flashlane run` and `verify` on backward cases.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/results.h"
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

template <typename T>
StoredTensor Tensor(const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  StoredTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.bytes = AlignedBytes(values.size() * sizeof(T));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// kGqa in F32 with bias and sinks.
SafetensorsFile WithBiasAndSinks(SafetensorsFile file) {
  std::vector<float> bias(6 * 33), sinks(6);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) / 8 - 0.5f;
  for (size_t i = 0; i < sinks.size(); ++i) sinks[i] = static_cast<float>(i) / 4 - 0.5f;
  file.tensors["bias"] = Tensor("F32", {1, 6, 1, 33}, bias);
  file.tensors["sinks"] = Tensor("F32", {6}, sinks);
  for (const char* name : {"dq", "dk", "dv"}) file.tensors.erase(name);
  return file;
}

class CliBackwardTest : public CliTest {
 protected:
  // Of a case, the gradients by `flashlane run` in F32.
  SafetensorsFile Gradients(const std::string& path, const std::string& flags = "") const {
    const Outcome outcome =
        Flashlane("run " + path + " --dtype f32 --out " + Path("gradients") + " " + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Load(Path("gradients"));
  }
  // The case with out and lse of its forward.
  SafetensorsFile WithKept(SafetensorsFile file) const {
    const Outcome outcome = Flashlane("run " + Save("forward", file) +
                                      " --dtype f32 --kernel flash --out " + Path("kept"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    SafetensorsFile kept = Load(Path("kept"));
    for (const char* name : {"out", "lse"}) {
      file.tensors[name] = std::move(kept.tensors.at(name));
    }
    return file;
  }
  static void Clear(const std::string& name, SafetensorsFile* file) {
    const AlignedBytes& bytes = file->tensors.at(name).bytes;
    std::fill_n(bytes.data(), bytes.size(), std::byte{0});
  }
  static bool IsZero(const SafetensorsFile& file, const std::string& name) {
    const std::vector<float> values = Values<float>(file, name);
    return std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
  }
};

TEST_F(CliBackwardTest, RunComputesGradientsOfBiasAndSinks) {
  const std::string path = Save("case", WithBiasAndSinks(Load(kGqa)));
  const SafetensorsFile naive = Gradients(path, "--kernel naive"), flash = Gradients(path);
  ASSERT_EQ(flash.tensors.size(), 5u);
  EXPECT_EQ(flash.tensors.at("dbias").shape, (std::vector<int64_t>{1, 6, 1, 33}));
  EXPECT_EQ(flash.tensors.at("dsinks").shape, (std::vector<int64_t>{6}));
  for (const char* name : {"dbias", "dsinks"}) {
    EXPECT_FALSE(IsZero(flash, name));
    const std::vector<float> a = Values<float>(naive, name), b = Values<float>(flash, name);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4) << name << " " << i;
  }
}

TEST_F(CliBackwardTest, KeptResultsAreUsed) {
  SafetensorsFile file = WithKept(WithBiasAndSinks(Load(kGqa)));
  const SafetensorsFile without = Gradients(Path("forward"));
  const SafetensorsFile with = Gradients(Save("with", file));
  for (const char* name : {"dq", "dk", "dv", "dbias", "dsinks"}) {
    EXPECT_EQ(Values<float>(with, name), Values<float>(without, name)) << name;
  }
  // With another out, delta and so dsinks is another.
  Clear("out", &file);
  EXPECT_TRUE(IsZero(Gradients(Save("zero", file)), "dsinks"));
  EXPECT_FALSE(IsZero(Gradients(Save("zero", file), "--kernel naive"), "dsinks"));
  // Kept in f64, as answers are.
  const std::vector<float> lse = Values<float>(file, "lse");
  file.tensors["lse"] = Tensor("F64", {1, 6, 33}, std::vector<double>(lse.begin(), lse.end()));
  EXPECT_TRUE(IsZero(Gradients(Save("zero", file)), "dsinks"));
  file.tensors.erase("lse");
  ExpectRunRefused(Save("alone", file), {"alone'", "out: given without lse"});
}

// Of operands that a conversion changes, what the file has kept is not the forward's results.
TEST_F(CliBackwardTest, KeptResultsOfOtherOperandsAreNot) {
  SafetensorsFile file = WithBiasAndSinks(Load(kGqa));
  file.tensors["q"] = Tensor("F32", {1, 6, 33, 32}, std::vector<float>(6 * 33 * 32, 0.1f));
  for (const char* name : {"k", "v", "do"}) {
    file.tensors[name] = Tensor("F32", file.tensors.at(name).shape,
                                std::vector<float>(file.tensors.at(name).bytes.size() / 2, 0.25f));
  }
  file = WithKept(std::move(file));
  Clear("out", &file);
  const std::string path = Save("changed", file);
  EXPECT_TRUE(IsZero(Gradients(path), "dsinks"));
  ASSERT_EQ(Flashlane("run " + path + " --dtype bf16 --out " + Path("bf16")).exit_code, 0);
  EXPECT_FALSE(IsZero(Load(Path("bf16")), "dsinks"));
}

TEST_F(CliBackwardTest, VerifyGradientsOfBiasAndSinks) {
  SafetensorsFile file = WithKept(WithBiasAndSinks(Load(kGqa)));
  const std::string flags = "verify --kernel backward --dtype f32,bf16,f64 ";
  const Outcome outcome = Flashlane(flags + Save("case", file));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("dbias/tolerance"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("dsinks/tolerance"), std::string::npos) << outcome.out;
  // Answers of the file; dbias and dsinks are F32 as bias and sinks are.
  ASSERT_EQ(Flashlane("run " + Path("case") + " --kernel naive --dtype f64 --out " + Path("f64"))
                .exit_code,
            0);
  SafetensorsFile answers = Load(Path("f64"));
  for (auto& [name, tensor] : answers.tensors) {
    if (tensor.dtype == "F32") {
      const std::vector<float> values = Values<float>(answers, name);
      tensor = Tensor("F64", tensor.shape, std::vector<double>(values.begin(), values.end()));
    }
    file.tensors[name] = std::move(tensor);
  }
  const std::string against = "verify --kernel backward --dtype f32,bf16 ";
  EXPECT_EQ(Flashlane(against + Save("case", file)).exit_code, 0);
  for (const std::string name : {"dq", "dbias", "dsinks"}) {
    SafetensorsFile wrong = Load(Path("case"));
    reinterpret_cast<double*>(wrong.tensors.at(name).bytes.data())[3] += 0.5;
    const Outcome failed = Flashlane(against + Save("wrong", wrong));
    EXPECT_EQ(failed.exit_code, 1);
    EXPECT_NE(failed.out.find(name + "["), std::string::npos) << failed.out;
  }
}

TEST(CliReferenceTest, NothingAgreesWithAResultThatThereIsNot) {
  Reference reference;
  const std::vector<float> values(1);
  const ConstTensorView view(values.data(), DType::kF32, {1, 1, 1, 1});
  for (const std::string name : {"dv", "dbias", "delta", ""}) {
    const Comparison comparison = reference.Compare(name, view);
    EXPECT_FALSE(comparison.agrees);
    EXPECT_EQ(comparison.message, name + ": the call has no such result");
  }
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
