// Paged cases of `flashlane run` and `flashlane verify`.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dispatch/cli/safetensors.h"
#include "flashlane/info.h"
#include "tests/support/cli.h"
#include "tests/support/runs.h"

namespace flashlane::cli {
namespace {

const std::string kChunk = kCases + "paged_chunk.safetensors";

TEST_F(CliTest, RunComputesPagedAnswers) {
  const std::vector<double> expected = Values<double>(Load(kChunk), "out");
  for (const std::string kernel : {"naive", "paged_naive", "paged", ""}) {
    const std::string flag = kernel.empty() ? "" : " --kernel " + kernel;
    const Outcome outcome =
        Flashlane("run " + kChunk + " --dtype f32" + flag + " --out " + Path("o"));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out + outcome.err, "");
    const SafetensorsFile result = Load(Path("o"));
    ASSERT_EQ(result.tensors.size(), 2u);
    EXPECT_EQ(result.tensors.at("out").shape, (std::vector<std::int64_t>{3, 4, 7, 32}));
    EXPECT_EQ(result.tensors.at("lse").shape, (std::vector<std::int64_t>{3, 4, 7}));
    const bool oracle = kernel.find("naive") != std::string::npos;
    EXPECT_EQ(result.metadata.at("kernel"), oracle ? "attention_paged_naive" : "attention_paged");
    EXPECT_EQ(result.metadata.at("target"), oracle ? "scalar" : SupportedTargets()[0]);
    EXPECT_EQ(result.metadata.at("block_size"), "8");
    const std::vector<float> out = Values<float>(result, "out");
    ASSERT_EQ(out.size(), expected.size());
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
  }
}

TEST_F(CliTest, PagedFlags) {
  const auto lse = [&](const std::string& input, const std::string& arguments) {
    const Outcome outcome = Flashlane("run " + input + " --dtype f64 --kernel naive " + arguments +
                                      " --out " + Path("o"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Values<double>(Load(Path("o")), "lse");
  };
  const std::vector<double> before = lse(kChunk, "");
  EXPECT_EQ(lse(kChunk, "--block-size 8"), before);
  EXPECT_EQ(lse(kChunk, "--block-size none"), before);
  EXPECT_EQ(lse(kChunk, "--causal"), before);
  for (const char* flag : {"--window-size-left 2", "--softcap 2", "--softmax-scale 1"}) {
    EXPECT_NE(lse(kChunk, flag), before) << flag;
  }
  // A draft mask that hides everything but the keys before the queries.
  SafetensorsFile file = Load(kChunk);
  file.tensors["mask"] = StoredTensor{"U8", {1, 1, 7, 7}, AlignedBytes(49)};
  std::memset(file.tensors["mask"].bytes.data(), 1, 49);
  EXPECT_EQ(lse(Save("mask", file), ""), before);
  std::memset(file.tensors["mask"].bytes.data(), 0, 49);
  EXPECT_NE(lse(Save("mask", file), ""), before);
}

TEST_F(CliTest, RunRefusesBadPagedInput) {
  const auto changed = [&](const std::string& name, const auto& change) {
    SafetensorsFile file = Load(kChunk);
    change(file);
    return Save(name, file);
  };
  for (const char* name : {"k_cache", "v_cache", "block_table", "context_lens"}) {
    ExpectRunRefused(changed("absent", [&](auto& f) { f.tensors.erase(name); }),
                     {"absent'", std::string("tensor '") + name + "'", "missing"});
  }
  for (const char* name : {"bias", "k_len", "q_start", "cu_seqlens_q"}) {
    ExpectRunRefused(changed("alien",
                             [&](auto& f) {
                               f.tensors[name] = StoredTensor{"I32", {1}, AlignedBytes(4)};
                             }),
                     {"alien'", std::string("tensor '") + name + "'", "a paged case takes none"});
  }
  ExpectRunRefused(changed("size", [](auto& f) { f.metadata["block_size"] = "16"; }),
                   {"size'", "block_size", "16 is not 8", "'k_cache'"});
  ExpectRunRefused(changed("text", [](auto& f) { f.metadata["block_size"] = "eight"; }),
                   {"text'", "metadata 'block_size'", "'eight'"});
  ExpectRunRefused(kChunk + " --block-size 7", {"block_size", "7 is not 8"});
  ExpectRunRefused(kChunk + " --k-len 7", {"k_len", "context_lens"});
  ExpectRunRefused(kChunk + " --kernel flash", {"tensor 'k'", "missing"});
  ExpectRunRefused(kCases + "fwd_basic.safetensors --kernel paged", {"'k_cache'", "missing"});
  const auto set = [](SafetensorsFile& f, const char* name, std::uint32_t value) {
    std::memcpy(f.tensors.at(name).bytes.data(), &value, sizeof value);
  };
  ExpectRunRefused(changed("entry", [&](auto& f) { set(f, "block_table", 20); }),
                   {"entry'", "block_table: value 20 at [0, 0] is not below num_blocks 20"});
  ExpectRunRefused(changed("context", [&](auto& f) { set(f, "context_lens", 65); }),
                   {"context'", "context_lens: value 65 at 0 is not within [0, 64]"});
}

TEST_F(CliTest, VerifyTakesPagedCases) {
  const Outcome outcome = Flashlane("verify " + kChunk + " " + kCases +
                                    "fwd_basic.safetensors --dtype f32,bf16 --kernel naive");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(LastLine(outcome.out), "4 passed, 0 failed");
  EXPECT_NE(outcome.out.find("paged_naive"), std::string::npos) << outcome.out;

  const Outcome all = Flashlane("verify " + kChunk + " --dtype f32");
  EXPECT_EQ(all.exit_code, 0) << all.out << all.err;
  EXPECT_EQ(LastLine(all.out), std::to_string(1 + SupportedTargets().size()) + " passed, 0 failed");

  const auto json =
      nlohmann::json::parse(Flashlane("verify --json --time --dtype f32 " + kChunk).out);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["truth"], "file");
    EXPECT_GT(row["time"]["gflops"].get<double>(), 0.0);
  }
}

TEST_F(CliTest, VerifyFailsOnAWrongPagedAnswer) {
  SafetensorsFile file = Load(kChunk);
  auto* out = reinterpret_cast<double*>(file.tensors.at("out").bytes.data());
  out[70] += 1e-4;
  const Outcome outcome =
      Flashlane("verify " + Save("wrong.safetensors", file) + " --dtype f32 --kernel naive");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(LastLine(outcome.out), "0 passed, 1 failed");
  // The wrong block of the table is a wrong answer too.
  file = Load(kChunk);
  auto* table = reinterpret_cast<std::uint32_t*>(file.tensors.at("block_table").bytes.data());
  table[0] = (table[0] + 1) % 20;
  EXPECT_EQ(Flashlane("verify " + Save("block.safetensors", file) + " --dtype f64 --kernel naive")
                .exit_code,
            1);
}

}  // namespace
}  // namespace flashlane::cli
