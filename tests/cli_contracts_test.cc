// `flashlane contracts`.

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "flashlane/fkc.h"
#include "tests/support/cli.h"

namespace flashlane::cli {
namespace {

std::string Document(const std::string& name) {
  std::string text;
  EXPECT_TRUE(fkc::Document(name, &text).ok()) << name;
  return text;
}

TEST_F(CliTest, ContractsArePrinted) {
  const std::pair<const char*, const char*> names[] = {
      {"naive", "attention_naive"},
      {"flash", "attention_flash"},
      {"paged", "attention_paged"},
      {"paged_naive", "attention_paged_naive"},
      {"backward", "attention_flash_backward"},
      {"backward_naive", "attention_backward_naive"},
      {"attention_flash", "attention_flash"}};
  for (const auto& [name, full] : names) {
    const Outcome outcome = Flashlane(std::string("contracts --kernel ") + name);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(outcome.out, Document(full)) << name;
  }
  std::string all;
  for (const std::string& name : fkc::Documents()) {
    all += (all.empty() ? "" : "\n") + Document(name);
  }
  EXPECT_EQ(Flashlane("contracts").out, all);
}

TEST_F(CliTest, ContractsAreWritten) {
  const std::string folder = Path("a/b");
  const Outcome outcome = Flashlane("contracts --out '" + folder + "'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out + outcome.err, "");
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(Contents(entry.path().string()), Document(name.substr(0, name.find('.')))) << name;
    ++count;
  }
  EXPECT_EQ(count, fkc::Documents().size());
  EXPECT_EQ(Flashlane("contracts --kernel flash --out '" + Path("c") + "'").exit_code, 0);
  EXPECT_TRUE(fs::exists(Path("c/attention_flash.fkc.md")));
  EXPECT_FALSE(fs::exists(Path("c/attention_naive.fkc.md")));
}

TEST_F(CliTest, ContractsRefuse) {
  ExpectRefused("contracts --kernel merge_states", {"merge_states", "attention_flash"});
  std::ofstream(Path("file")) << "precious";
  ExpectRefused("contracts --out '" + Path("file") + "'", {"--out", "file"});
  EXPECT_EQ(Contents(Path("file")), "precious");
  fs::create_directories(Path("taken/attention_flash.fkc.md"));
  ExpectRefused("contracts --kernel flash --out '" + Path("taken") + "'",
                {"--out", "attention_flash.fkc.md", "cannot be written"});
  EXPECT_EQ(std::distance(fs::directory_iterator(Path("taken")), fs::directory_iterator()), 1);
}

TEST_F(CliTest, ContractsReplaceTheirOwnFilesOnly) {
  const std::string folder = Path("shared"), name = folder + "/attention_flash.fkc.md";
  const std::string write = "contracts --kernel flash --out '" + folder + "'";
  fs::create_directory(folder);
  std::ofstream(Path("victim")) << "precious";
  std::ofstream(name + ".tmp") << "precious";
  std::ofstream(name) << "old";
  fs::permissions(name, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(Flashlane(write).exit_code, 0);
  EXPECT_EQ(Contents(name), Document("attention_flash"));
  EXPECT_EQ(fs::status(name).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(Contents(name + ".tmp"), "precious");
  fs::remove(name);
  fs::create_symlink(Path("victim"), name);
  ExpectRefused(write, {"--out", "is not a regular file"});
  EXPECT_TRUE(fs::is_symlink(name));
  EXPECT_EQ(Contents(Path("victim")), "precious");
}

}  // namespace
}  // namespace flashlane::cli
