// Runs the program and looks at what it leaves behind: exit code, stdout, stderr, files.
#ifndef FLASHLANE_TESTS_SUPPORT_CLI_H_
#define FLASHLANE_TESTS_SUPPORT_CLI_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "dispatch/cli/safetensors.h"

namespace flashlane::cli {

namespace fs = std::filesystem;

inline const std::string kCases = std::string(FLASHLANE_TEST_DATA) + "/cases/";

inline std::string Contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

class CliTest : public ::testing::Test {
 protected:
  CliTest() : folder_(fs::temp_directory_path() / ("flashlane_cli_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~CliTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  // Arguments as a shell would read them.
  Outcome Flashlane(const std::string& arguments) const {
    const std::string command = std::string(FLASHLANE_CLI) + " " + arguments + " >'" +
                                Path("stdout") + "' 2>'" + Path("stderr") + "'";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Contents(Path("stdout")),
            Contents(Path("stderr"))};
  }

  // Exit 2, nothing on stdout, and one line on stderr that has all `parts`.
  void ExpectRefused(const std::string& arguments, const std::vector<std::string>& parts) const {
    const Outcome outcome = Flashlane(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.err.find("flashlane: "), 0u) << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
    }
  }

  // `run` refuses, and neither makes nor touches the output file, nor leaves another behind.
  void ExpectRunRefused(const std::string& arguments, const std::vector<std::string>& parts) const {
    fs::create_directories(Path("out"));
    const std::string output = Path("out/o.safetensors");
    fs::remove(output);
    ExpectRefused("run " + arguments + " --out '" + output + "'", parts);
    EXPECT_TRUE(fs::is_empty(Path("out"))) << arguments;
    std::ofstream(output) << "precious";
    ExpectRefused("run " + arguments + " --out '" + output + "'", parts);
    EXPECT_EQ(Contents(output), "precious") << arguments;
    EXPECT_EQ(std::distance(fs::directory_iterator(Path("out")), fs::directory_iterator()), 1);
  }

  static SafetensorsFile Load(const std::string& path) {
    SafetensorsFile file;
    const Status status = ReadSafetensors(path, &file);
    EXPECT_TRUE(status.ok()) << status.message();
    return file;
  }

  // Writes a file with the tensors of another; returns its path.
  std::string Save(const std::string& name, const SafetensorsFile& file) const {
    std::vector<TensorToWrite> tensors;
    for (const auto& [key, tensor] : file.tensors) {
      tensors.push_back({key, tensor.dtype, tensor.shape, tensor.bytes.data()});
    }
    const Status status = WriteSafetensors(Path(name), tensors, file.metadata);
    EXPECT_TRUE(status.ok()) << status.message();
    return Path(name);
  }

  fs::path folder_;
};

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const std::string& name) {
  const AlignedBytes& bytes = file.tensors.at(name).bytes;
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::string LastLine(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  const std::size_t begin = text.rfind('\n', end);
  return text.substr(begin + 1, end - begin);
}

}  // namespace flashlane::cli

#endif  // FLASHLANE_TESTS_SUPPORT_CLI_H_
