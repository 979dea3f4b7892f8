// The program as its users see it: exit codes, one line on stderr, files written or left alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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

TEST_F(CliTest, HelpAndUsage) {
  for (const char* arguments : {"--help", "run --help", "verify --help", "info --help"}) {
    const Outcome outcome = Flashlane(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments;
    EXPECT_NE(outcome.out, "");
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_EQ(Flashlane("--version").out, std::string(Version()) + "\n");
  ExpectRefused("", {"subcommand"});
  ExpectRefused("dance", {});
  ExpectRefused("info --jason", {"--jason"});
  ExpectRefused("run x.safetensors", {"--out"});
  ExpectRefused("run --out y x --threads many", {"--threads"});
  ExpectRefused("verify", {"paths"});
}

TEST_F(CliTest, InfoListsTargetsAndRegistry) {
  const Outcome text = Flashlane("info");
  EXPECT_EQ(text.exit_code, 0);
  for (const KernelInfo& kernel : Kernels()) {
    EXPECT_NE(text.out.find(kernel.name), std::string::npos) << text.out;
    for (const std::string& unit : kernel.units) {  // has its line in the legend
      EXPECT_NE(text.out.find("\n  " + unit + " "), std::string::npos) << unit << "\n" << text.out;
    }
  }
  const bool all_run = CompiledTargets() == SupportedTargets();
  EXPECT_EQ(text.out.find("\n  unused") == std::string::npos, all_run) << text.out;
  const auto json = nlohmann::json::parse(Flashlane("info --json").out);
  EXPECT_EQ(json["version"], Version());
  EXPECT_EQ(json["targets"]["compiled"], nlohmann::json(CompiledTargets()));
  EXPECT_EQ(json["targets"]["supported"], nlohmann::json(SupportedTargets()));
  EXPECT_EQ(json["kernels"].size(), Registry().size());
}

TEST_F(CliTest, FullOrClosedOutputIsAnError) {
  const std::string program = FLASHLANE_CLI;
  const std::string verify = program + " verify " + kCases + "fwd_basic.safetensors";
  for (const std::string& command :
       {program + " info >/dev/full", program + " info | false", verify + " >/dev/full"}) {
    const std::string bash = "bash -o pipefail -c '" + command + " 2>" + Path("stderr") + "'";
    const int status = std::system(bash.c_str());
    ASSERT_TRUE(WIFEXITED(status)) << command;
    EXPECT_TRUE(WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 2) << command;
  }
}

TEST_F(CliTest, RunComputesTheAnswers) {
  const std::string input = kCases + "fwd_causal.safetensors";
  const std::vector<double> expected = Values<double>(Load(input), "out");
  for (const std::string kernel : {"naive", "flash"}) {
    const std::string output = Path(kernel + ".safetensors");
    const Outcome outcome =
        Flashlane("run " + input + " --dtype F32 --kernel " + kernel + " --out " + output);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out + outcome.err, "");
    const SafetensorsFile result = Load(output);
    ASSERT_EQ(result.tensors.size(), 2u);
    EXPECT_EQ(result.tensors.at("out").shape, (std::vector<std::int64_t>{2, 4, 65, 64}));
    EXPECT_EQ(result.tensors.at("lse").shape, (std::vector<std::int64_t>{2, 4, 65}));
    EXPECT_EQ(result.metadata.at("kernel"), "attention_" + kernel);
    EXPECT_EQ(result.metadata.at("dtype"), "f32");
    EXPECT_EQ(result.metadata.at("causal"), "true");
    EXPECT_EQ(result.metadata.at("target"), kernel == "naive" ? "scalar" : SupportedTargets()[0]);
    const std::vector<float> out = Values<float>(result, "out");
    ASSERT_EQ(out.size(), expected.size());
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
  }
}

TEST_F(CliTest, RunWritesTheDTypesOfTheLibrary) {
  const std::string input = kCases + "fwd_basic.safetensors";
  const std::vector<std::string> arguments = {"--kernel naive", "--kernel naive --dtype f16",
                                              "--dtype f64", "--dtype f32"};
  const std::vector<std::pair<std::string, std::string>> dtypes = {
      {"BF16", "F32"}, {"F16", "F32"}, {"F64", "F64"}, {"F32", "F32"}};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string output = Path("o.safetensors");
    ASSERT_EQ(Flashlane("run " + input + " " + arguments[i] + " --out " + output).exit_code, 0);
    EXPECT_EQ(Load(output).tensors.at("out").dtype, dtypes[i].first);
    EXPECT_EQ(Load(output).tensors.at("lse").dtype, dtypes[i].second);
  }
  // Every target, and the same bytes on every repeat.
  for (const std::string& target : SupportedTargets()) {
    const std::string command = "run " + input + " --dtype f32 --threads 2 --target " + target;
    ASSERT_EQ(Flashlane(command + " --out " + Path("a")).exit_code, 0);
    ASSERT_EQ(Flashlane(command + " --out " + Path("b")).exit_code, 0);
    EXPECT_EQ(Load(Path("a")).metadata.at("target"), target);
    EXPECT_EQ(Contents(Path("a")), Contents(Path("b")));
  }
}

// Each flag must give what the same value in the metadata gives.
TEST_F(CliTest, FlagsOverrideMetadata) {
  const std::vector<std::vector<std::string>> flags = {
      {"--causal", "causal", "true"},
      {"--softmax-scale -0.5", "softmax_scale", "-0.5"},
      {"--softcap 2e0", "softcap", "2e0"},
      {"--window-size-left 2", "window_size_left", "2"},
      {"--window-size-right 1", "window_size_right", "1"},
      {"--k-len 3", "k_len", "3"},
      {"--causal --q-start -1", "q_start", "-1"},
      {"--causal --q-start bottom_right", "q_start", "bottom_right"}};
  SafetensorsFile file = Load(kCases + "fwd_long_k.safetensors");
  // Far from the first key, so that every window hides some.
  file.metadata = {{"note", "kept"}, {"q_start", "600"}};
  const std::string plain = Save("plain", file);
  const auto out = [&](const std::string& input, const std::string& arguments) {
    const std::string output = Path("o");
    const Outcome outcome =
        Flashlane("run " + input + " --dtype f64 " + arguments + " --out " + output);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(Load(output).metadata.at("note"), "kept");
    return Values<double>(Load(output), "lse");
  };
  const std::vector<double> before = out(plain, "");
  for (const auto& flag : flags) {
    file.metadata = {{"note", "kept"}, {"q_start", "600"}};
    file.metadata[flag[1]] = flag[2];
    if (flag[1] == "q_start") file.metadata["causal"] = "true";
    const std::string with_metadata = Save("metadata", file);
    const std::vector<double> by_flag = out(plain, flag[0]);
    EXPECT_EQ(by_flag, out(with_metadata, "")) << flag[0];
    EXPECT_EQ(Load(Path("o")).metadata.at(flag[1]), flag[2]);
    EXPECT_NE(by_flag, before) << flag[0];
    const std::string name = flag[0].substr(flag[0].rfind("--"));
    const std::string off =
        name == "--causal" ? "--no-causal" : name.substr(0, name.find(' ')) + " none --no-causal";
    EXPECT_EQ(out(with_metadata, off), before) << off;
  }
}

TEST_F(CliTest, PerSequenceTensorsAndByteMasks) {
  SafetensorsFile file = Load(kCases + "fwd_mha64.safetensors");
  file.tensors.erase("out");
  file.tensors.erase("lse");
  const auto lse = [&](const std::string& input, const std::string& arguments) {
    const Outcome outcome =
        Flashlane("run " + input + " --dtype f64 " + arguments + " --out " + Path("o"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Values<double>(Load(Path("o")), "lse");
  };
  const std::int32_t lengths[2] = {7, 7};
  file.tensors["k_len"] = StoredTensor{"I32", {2}, AlignedBytes(8)};
  std::memcpy(file.tensors["k_len"].bytes.data(), lengths, 8);
  const std::string with_tensor = Save("k_len", file);
  file.tensors.erase("k_len");
  file.tensors["mask"] = StoredTensor{"U8", {1, 1, 1, 65}, AlignedBytes(65)};
  std::memset(file.tensors["mask"].bytes.data(), 0, 65);
  std::memset(file.tensors["mask"].bytes.data(), 200, 7);
  const std::vector<double> masked = lse(Save("mask", file), "");
  file.tensors.erase("mask");
  const std::string plain = Save("plain", file);
  EXPECT_EQ(lse(with_tensor, "--k-len 9"), lse(plain, "--k-len 9"));
  const std::vector<double> shortened = lse(plain, "--k-len 7");
  EXPECT_EQ(lse(with_tensor, ""), shortened);
  ASSERT_EQ(masked.size(), shortened.size());
  for (std::size_t i = 0; i < masked.size(); ++i) ASSERT_NEAR(masked[i], shortened[i], 1e-12);
}

TEST_F(CliTest, RunRefusesBadInput) {
  const auto changed = [&](const std::string& name, const auto& change) {
    SafetensorsFile file = Load(kCases + "fwd_mqa.safetensors");
    change(file);
    return Save(name, file);
  };
  ExpectRunRefused(changed("no_v", [](auto& f) { f.tensors.erase("v"); }),
                   {"no_v'", "tensor 'v'", "missing"});
  const std::string bytes = Contents(kCases + "fwd_mqa.safetensors");
  std::ofstream(Path("cut"), std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  ExpectRunRefused(Path("cut"), {"cut'", "data_offsets", "exceed"});
  ExpectRunRefused(Path("absent"), {"absent'", "No such file"});
  // 8 query heads; a number of kv heads that does not divide them.
  ExpectRunRefused(changed("heads",
                           [](auto& f) {
                             for (const char* name : {"k", "v"}) {
                               auto& tensor = f.tensors.at(name);
                               tensor.shape = {1, 3, 11, 32};
                             }
                           }),
                   {"heads'", "k: num_heads 8 is not a multiple of num_kv_heads 3"});
  ExpectRunRefused(changed("rank",
                           [](auto& f) {
                             f.tensors.at("q").shape = {8, 17, 32};
                           }),
                   {"rank'", "tensor 'q'", "must have 4 dimensions"});
  ExpectRunRefused(changed("integers", [](auto& f) { f.tensors.at("q").dtype = "I16"; }),
                   {"integers'", "tensor 'q'", "dtype 'I16' is not supported"});
  ExpectRunRefused(changed("text", [](auto& f) { f.metadata["softcap"] = "high\n"; }),
                   {"text'", "metadata 'softcap'", "'high\\x0a' is not a number"});
  ExpectRunRefused(changed("negative", [](auto& f) { f.metadata["window_size_left"] = "-1"; }),
                   {"negative'", "window_size_left", "negative"});
  ExpectRunRefused(changed("boolean", [](auto& f) { f.metadata["causal"] = "maybe"; }),
                   {"'causal'", "neither true nor false"});
  ExpectRunRefused(changed("kernel", [](auto& f) { f.metadata["kernel"] = "attention_x"; }),
                   {"Unsupported", "kernel'", "'attention_x' is not in the registry"});
}

TEST_F(CliTest, RunRefusesBadFlags) {
  const std::string input = kCases + "fwd_mqa.safetensors --dtype f32 ";
  // A target of another architecture than this build's.
  const std::vector<std::string> compiled = CompiledTargets();
  const bool arm = std::find(compiled.begin(), compiled.end(), "NEON") != compiled.end();
  ExpectRunRefused(input + "--target " + (arm ? "AVX2" : "NEON"),
                   {"--target", arm ? "AVX2" : "NEON"});
  ExpectRunRefused(input + "--target FANCY", {"--target", "FANCY"});
  ExpectRunRefused(input + "--kernel fast", {"--kernel", "'fast'"});
  ExpectRunRefused(input + "--dtype f8", {"--dtype"});
  ExpectRunRefused(input + "--threads -1", {"num_threads", "-1"});
  ExpectRunRefused(input + "--softcap abc", {"--softcap", "'abc' is not a number"});
  ExpectRunRefused(input + "--softcap -2", {"softcap", "> 0"});
  ExpectRunRefused(input + "--softmax-scale nan", {"softmax_scale", "not finite"});
  ExpectRunRefused(input + "--k-len 34", {"k_len", "34", "[0, 33]"});
  ExpectRunRefused(input + "--k-len 3.5", {"--k-len", "is not a 64-bit integer"});
  ExpectRunRefused(input + "--q-start middle", {"--q-start", "bottom_right"});
  ExpectRunRefused(kCases + "paged_chunk.safetensors --kernel backward", {"tensor 'k'", "missing"});
  SafetensorsFile unknown = Load(kCases + "fwd_basic.safetensors");
  unknown.metadata["kernel"] = "attention_quantum";
  for (const char* arguments : {"", " --kernel naive"}) {
    ExpectRunRefused(Save("unknown", unknown) + arguments,
                     {"Unsupported", "'attention_quantum' is not in the registry"});
  }
  if (FindKernel(Kernel::kFlash, DType::kBF16) == nullptr) {
    ExpectRunRefused(kCases + "fwd_mqa.safetensors", {"Unsupported", "BF16"});
  }
}

TEST_F(CliTest, RunRefusesOutputsItMustNotTouch) {
  const std::string input = Save("case", Load(kCases + "fwd_basic.safetensors"));
  const std::string before = Contents(input);
  const std::string command = "run " + input + " --dtype f32 --out ";
  ExpectRefused(command + Path("no/folder/o"), {"no/folder/o'", "cannot be written"});
  ExpectRefused(command + folder_.string(), {"not a regular file"});
  ExpectRefused(command + "/dev/null", {"'/dev/null'", "not a regular file"});
  ExpectRefused(command + input, {"is the input file"});
  EXPECT_EQ(Contents(input), before);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(CliTest, TargetFromTheEnvironment) {
  ::setenv("FLASHLANE_TARGET", "FANCY", 1);
  ExpectRefused("info", {"FANCY"});
  ExpectRunRefused(kCases + "fwd_basic.safetensors --dtype f32", {"FANCY"});
  ::setenv("FLASHLANE_TARGET", SupportedTargets().back().c_str(), 1);
  const auto json = nlohmann::json::parse(Flashlane("info --json").out);
  EXPECT_EQ(json["targets"]["chosen"], SupportedTargets().back());
  ::unsetenv("FLASHLANE_TARGET");
}

TEST_F(CliTest, LogLevelFromTheEnvironment) {
  const std::string run =
      "run " + kCases + "fwd_basic.safetensors --dtype f32 --out " + Path("o.safetensors");
  EXPECT_EQ(Flashlane(run).err, "");
  ::setenv("FLASHLANE_LOG_LEVEL", "debug", 1);
  EXPECT_THAT(Flashlane(run).err, ::testing::HasSubstr("attention_flash/F32 on "));
  ::setenv("FLASHLANE_LOG_LEVEL", "loud", 1);
  const Outcome outcome = Flashlane(run);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("FLASHLANE_LOG_LEVEL: 'loud' is none of trace"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  ::unsetenv("FLASHLANE_LOG_LEVEL");
}

}  // namespace
}  // namespace flashlane::cli
