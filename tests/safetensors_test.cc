#include "dispatch/cli/safetensors.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace flashlane::cli {
namespace {

namespace fs = std::filesystem;

std::string FileBytes(std::string header, const std::string& data, std::uint64_t claimed) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(claimed >> (8 * i) & 0xFF);
  return bytes + std::move(header) + data;
}

std::string FileBytes(const std::string& header, const std::string& data = "") {
  return FileBytes(header, data, header.size());
}

// The message of the error that parsing must give.
std::string ParseError(const std::string& bytes) {
  SafetensorsFile file;
  file.name = "untouched";
  const Status status = ParseSafetensors("f.safetensors", bytes, &file);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file.name, "untouched");
  EXPECT_EQ(status.message().find("'f.safetensors': "), 0u) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  return status.message();
}

std::string HeaderError(const std::string& header, const std::string& data = "") {
  return ParseError(FileBytes(header, data));
}

#define EXPECT_HAS(text, part)                                     \
  do {                                                             \
    const std::string has_text = (text);                           \
    EXPECT_NE(has_text.find(part), std::string::npos) << has_text; \
  } while (false)

const char kValid[] =
    R"({"__metadata__":{"causal":"true"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
    R"("e":{"dtype":"F64","shape":[4,0],"data_offsets":[11,11]},)"
    R"("o":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[11,12]}})";

TEST(SafetensorsParse, ReadsMisalignedEmptyAndForeignTensors) {
  // 4-byte floats at an odd offset of the file: the header's length is odd.
  std::string header = kValid;
  if (header.size() % 2 == 0) header += ' ';
  const float values[2] = {1.5F, -2.0F};
  std::string data(reinterpret_cast<const char*>(values), sizeof values);
  data += "xyz?";
  SafetensorsFile file;
  const Status status = ParseSafetensors("f", FileBytes(header, data), &file);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(file.metadata.at("causal"), "true");
  ASSERT_EQ(file.tensors.size(), 4u);
  const StoredTensor& a = file.tensors.at("a");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.bytes.data()) % 64, 0u);
  EXPECT_EQ(std::memcmp(a.bytes.data(), values, sizeof values), 0);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(std::memcmp(file.tensors.at("b").bytes.data(), "xyz", 3), 0);
  EXPECT_EQ(file.tensors.at("e").bytes.size(), 0u);
  EXPECT_NE(file.tensors.at("e").bytes.data(), nullptr);
  EXPECT_EQ(StoredDTypeSize(file.tensors.at("o").dtype), 0u);
}

TEST(SafetensorsParse, NoTensorsIsLegal) {
  SafetensorsFile file;
  EXPECT_TRUE(ParseSafetensors("f", FileBytes("{}"), &file).ok());
  EXPECT_TRUE(ParseSafetensors("f", FileBytes("{}      "), &file).ok());
}

TEST(SafetensorsParse, RefusesBadLengths) {
  EXPECT_HAS(ParseError(""), "shorter than 8 bytes");
  EXPECT_HAS(ParseError("1234567"), "shorter than 8 bytes");
  EXPECT_HAS(ParseError(FileBytes("{}", "", 3)), "exceeds the file's 10 bytes");
  EXPECT_HAS(ParseError(FileBytes("{}", "", 100'000'001)), "exceeds the limit");
  EXPECT_HAS(ParseError(FileBytes("{}", "", UINT64_MAX)), "exceeds the limit");
  EXPECT_HAS(ParseError(FileBytes("", "")), "must be a JSON object");
}

TEST(SafetensorsParse, RefusesWhatIsNotAJsonObject) {
  EXPECT_HAS(HeaderError("[]"), "must be a JSON object");
  EXPECT_HAS(HeaderError(" {}"), "must be a JSON object");
  EXPECT_HAS(HeaderError("{"), "not valid JSON");
  EXPECT_HAS(HeaderError("{} x"), "not valid JSON");
  EXPECT_HAS(HeaderError("{\"a\xff\":1}"), "not valid JSON");
  EXPECT_HAS(HeaderError("{\"a\":" + std::string(100'000, '[')), "nested too deeply");
}

TEST(SafetensorsParse, RefusesDuplicateKeys) {
  EXPECT_HAS(HeaderError(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                         R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
             "duplicate key 'a'");
  EXPECT_HAS(HeaderError(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
             "duplicate key 'dtype'");
  EXPECT_HAS(HeaderError(R"({"__metadata__":{"k":"1","k":"1"}})"), "duplicate key 'k'");
  EXPECT_HAS(HeaderError(R"({"__metadata__":{},"__metadata__":{}})"),
             "duplicate key '__metadata__'");
}

TEST(SafetensorsParse, RefusesBadMetadata) {
  EXPECT_HAS(HeaderError(R"({"__metadata__":[]})"), "__metadata__: must be an object");
  EXPECT_HAS(HeaderError(R"({"__metadata__":{"k":1}})"), "value of 'k' must be a string");
  EXPECT_HAS(HeaderError(R"({"__metadata__":{"a\nb":{}}})"), "value of 'a\\x0ab' must be");
}

TEST(SafetensorsParse, RefusesBadEntries) {
  const auto entry = [](const std::string& body) {
    return HeaderError("{\"t\":" + body + "}", std::string(8, 'x'));
  };
  EXPECT_HAS(entry("1"), "tensor 't': must be an object");
  EXPECT_HAS(entry(R"({"shape":[2],"data_offsets":[0,8]})"), "lacks 'dtype'");
  EXPECT_HAS(entry(R"({"dtype":"F32","data_offsets":[0,8]})"), "lacks 'shape'");
  EXPECT_HAS(entry(R"({"dtype":"F32","shape":[2]})"), "lacks 'data_offsets'");
  EXPECT_HAS(entry(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})"), "'dtype' must be a string");
  EXPECT_HAS(entry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"),
             "'shape' must be an array");
  EXPECT_HAS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":"0,8"})"), "must be an array");
  EXPECT_HAS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"), "must have two entries");
  EXPECT_HAS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})"), "two entries");
}

TEST(SafetensorsParse, RefusesBadNumbers) {
  for (const char* size : {"-2", "2.0", "2e0", "\"2\"", "null", "true", "9223372036854775808",
                           "18446744073709551616"}) {
    const std::string text = size;
    EXPECT_HAS(
        HeaderError(R"({"t":{"dtype":"F32","shape":[)" + text + R"(],"data_offsets":[0,8]}})",
                    std::string(8, 'x')),
        "tensor 't': 'shape': sizes must be integers");
    EXPECT_HAS(HeaderError(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,)" + text + "]}}",
                           std::string(8, 'x')),
               "tensor 't': 'data_offsets' must be integers");
  }
  EXPECT_HAS(HeaderError(R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],)"
                         R"("data_offsets":[0,0]}})"),
             "number of elements exceeds");
  // The element count fits; the byte count wraps around to the 0 bytes claimed.
  EXPECT_HAS(HeaderError(R"({"t":{"dtype":"F32","shape":[4611686018427387904],)"
                         R"("data_offsets":[0,0]}})"),
             "are not the size of");
}

TEST(SafetensorsParse, RefusesBadOffsets) {
  const auto two = [](const std::string& a, const std::string& b) {
    return HeaderError(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + a +
                           R"(]},"b":{"dtype":"U8","shape":[4],"data_offsets":[)" + b + "]}}",
                       std::string(8, 'x'));
  };
  EXPECT_HAS(two("4,0", "4,8"), "tensor 'a': 'data_offsets' [4, 0] are reversed");
  EXPECT_HAS(two("0,4", "5,9"), "tensor 'b': 'data_offsets' [5, 9] exceed the 8 bytes");
  EXPECT_HAS(two("0,4", "4,7"), "tensor 'b': 'data_offsets' [4, 7] are not the size of [4] U8");
  EXPECT_HAS(two("0,4", "3,7"), "tensor 'b': overlaps tensor 'a'");
  EXPECT_HAS(two("0,4", "0,4"), "overlaps");
  EXPECT_HAS(
      HeaderError(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", std::string(6, 'x')),
      "bytes [0, 2) before it belong to no tensor");
  EXPECT_HAS(
      HeaderError(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", std::string(6, 'x')),
      "bytes [4, 6) of the data belong to no tensor");
  EXPECT_HAS(HeaderError("{}", "x"), "belong to no tensor");
}

// Deterministic mutations of a valid file: bits, bytes, JSON punctuation, digits, lengths, cuts.
TEST(SafetensorsParse, SurvivesMutations) {
  const std::string valid = FileBytes(kValid, std::string(12, 'd'));
  std::mt19937 random(20240607);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::string alphabet = "{}[]\",:0123456789-eE.\\u \n\x01\xff";
  int accepted = 0;
  for (int round = 0; round < 30'000; ++round) {
    std::string bytes = valid;
    const std::size_t mutations = 1 + below(4);
    for (std::size_t m = 0; m < mutations && !bytes.empty(); ++m) {
      const std::size_t at = below(bytes.size());
      switch (below(7)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 1:
          bytes[at] = static_cast<char>(random());
          break;
        case 2:
          bytes.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        case 3:
          bytes[at] = alphabet[below(alphabet.size())];
          break;
        case 4:
          bytes.resize(at);
          break;
        case 5:
          bytes.erase(at, 1 + below(9));
          break;
        default:
          bytes.insert(below(bytes.size()), bytes.substr(at, below(40)));
          break;
      }
    }
    SafetensorsFile file;
    const Status status = ParseSafetensors("f", bytes, &file);
    if (!status.ok()) continue;
    ++accepted;
    for (const auto& [name, tensor] : file.tensors) {
      std::int64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= size;
      const std::size_t width = StoredDTypeSize(tensor.dtype);
      if (width != 0) {
        ASSERT_EQ(tensor.bytes.size(), static_cast<std::size_t>(elements) * width);
      }
    }
  }
  // Some mutations hit data or names only; most must not pass.
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 15'000);
}

class SafetensorsFiles : public ::testing::Test {
 protected:
  SafetensorsFiles()
      : folder_(fs::temp_directory_path() / ("flashlane_safetensors_" + std::to_string(getpid()))) {
    fs::create_directory(folder_);
  }
  ~SafetensorsFiles() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::size_t FilesInFolder() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

std::string Contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST_F(SafetensorsFiles, WritesWhatItReads) {
  const std::vector<std::uint16_t> half = {1, 2, 3};
  const std::vector<double> wide = {1.0, -0.0, 1e300};
  const std::vector<TensorToWrite> tensors = {{"z", "F16", {3}, half.data()},
                                              {"a", "BOOL", {3}, "\1\0\1"},
                                              {"w", "F64", {1, 3}, wide.data()},
                                              {"empty", "F32", {2, 0}, nullptr}};
  const std::map<std::string, std::string> metadata = {{"note", "caf\xc3\xa9 \"quoted\""}};
  ASSERT_TRUE(WriteSafetensors(Path("x"), tensors, metadata).ok());
  SafetensorsFile file;
  const Status status = ReadSafetensors(Path("x"), &file);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(file.metadata, metadata);
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_EQ(std::memcmp(file.tensors.at("z").bytes.data(), half.data(), 6), 0);
  EXPECT_EQ(std::memcmp(file.tensors.at("a").bytes.data(), "\1\0\1", 3), 0);
  EXPECT_EQ(std::memcmp(file.tensors.at("w").bytes.data(), wide.data(), 24), 0);
  EXPECT_EQ(file.tensors.at("empty").shape, (std::vector<std::int64_t>{2, 0}));

  const std::string bytes = Contents(Path("x"));
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0) << "header not padded";
  std::vector<TensorToWrite> shuffled(tensors.rbegin(), tensors.rend());
  ASSERT_TRUE(WriteSafetensors(Path("y"), shuffled, metadata).ok());
  EXPECT_EQ(Contents(Path("y")), bytes) << "order of the caller shows in the file";
  EXPECT_EQ(FilesInFolder(), 2u);
}

// A write that breaks off half-way: the process may not write more than 4 bytes to a file.
[[noreturn]] void WriteWithoutSpace(const std::string& path,
                                    const std::vector<TensorToWrite>& tensors) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {4, 4};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::_Exit(WriteSafetensors(path, tensors, {}).ok() ? 1 : 0);
}

TEST_F(SafetensorsFiles, FailedWriteLeavesNothing) {
  const float value = 1;
  const std::vector<TensorToWrite> tensors = {{"a", "F32", {1}, &value}};
  const Status missing = WriteSafetensors(Path("no/such/folder"), tensors, {});
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument);
  EXPECT_HAS(missing.message(), "no/such/folder': cannot be written");
  EXPECT_FALSE(WriteSafetensors(folder_.string(), tensors, {}).ok());
  EXPECT_FALSE(WriteSafetensors("", tensors, {}).ok());
  EXPECT_FALSE(WriteSafetensors("/dev/null", tensors, {}).ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(FilesInFolder(), 0u);

  std::ofstream(Path("old")) << "kept";
  EXPECT_EXIT(WriteWithoutSpace(Path("old"), tensors), ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(Contents(Path("old")), "kept");
  EXPECT_EQ(FilesInFolder(), 1u);
}

TEST_F(SafetensorsFiles, UnreadablePathsAreNamed) {
  SafetensorsFile file;
  EXPECT_HAS(ReadSafetensors(Path("absent"), &file).message(), "absent': cannot be read: No such");
  EXPECT_HAS(ReadSafetensors(folder_.string(), &file).message(), "not a regular file");
  EXPECT_HAS(ReadSafetensors("/dev/zero", &file).message(), "not a regular file");
  std::ofstream(Path("empty")).flush();
  EXPECT_HAS(ReadSafetensors(Path("empty"), &file).message(), "shorter than 8 bytes");
}

// Every proper prefix of a file is refused, and the whole is accepted.
TEST_F(SafetensorsFiles, TruncationAtAnyByteIsRefused) {
  const double value = 3;
  ASSERT_TRUE(WriteSafetensors(Path("x"), {{"t", "F64", {1}, &value}}, {{"k", "v"}}).ok());
  const std::string bytes = Contents(Path("x"));
  SafetensorsFile file;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseSafetensors("f", std::string_view(bytes).substr(0, size), &file).ok())
        << size;
  }
  EXPECT_TRUE(ParseSafetensors("f", bytes, &file).ok());
}

}  // namespace
}  // namespace flashlane::cli
