#include "tests/support/fkc_document.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "dispatch/dtype.h"

namespace flashlane::testing {
namespace {

const ConstTensorView* Find(const YAML::Node& block, const std::vector<ConstTensorView>& inputs,
                            const std::string& name) {
  const YAML::Node operands = block["accept"]["inputs"];
  for (size_t i = 0; i < operands.size() && i < inputs.size(); ++i) {
    if (operands[i]["name"].as<std::string>() == name) return &inputs[i];
  }
  return nullptr;
}

// "dim[1]" of the operand itself, "q.dim[1]", or a number; -1 where there is none.
int64_t Size(const YAML::Node& block, const std::vector<ConstTensorView>& inputs,
             const ConstTensorView& self, const std::string& text) {
  std::smatch match;
  if (std::regex_match(text, std::regex("[0-9]+"))) return std::stoll(text);
  if (!std::regex_match(text, match, std::regex(R"((?:(\w+)\.)?dim\[(\d)\])"))) return -1;
  const ConstTensorView* view = match[1].matched ? Find(block, inputs, match[1]) : &self;
  const int dim = std::stoi(match[2]);
  return view == nullptr || dim >= view->rank ? -1 : view->shape[dim];
}

bool ShapeAdmitted(const YAML::Node& block, const std::vector<ConstTensorView>& inputs,
                   const ConstTensorView& self, const std::string& constraint) {
  std::smatch match;
  const auto size = [&](const std::string& text) { return Size(block, inputs, self, text); };
  if (std::regex_match(constraint, match, std::regex(R"(same_as=(\w+))"))) {
    const ConstTensorView* other = Find(block, inputs, match[1]);
    return other != nullptr && other->rank == self.rank &&
           std::equal(self.shape, self.shape + self.rank, other->shape);
  }
  if (std::regex_match(constraint, match, std::regex(R"(divisible\((.*), (.*)\))"))) {
    return size(match[2]) > 0 && size(match[1]) % size(match[2]) == 0;
  }
  if (std::regex_match(constraint, match, std::regex(R"((.*)>=(.*))"))) {
    return size(match[1]) >= size(match[2]);
  }
  if (std::regex_match(constraint, match, std::regex(R"((.*)=(.*))"))) {
    return size(match[1]) >= 0 && size(match[1]) == size(match[2]);
  }
  ADD_FAILURE() << "no such constraint: " << constraint;
  return false;
}

// sum = product {"+" product}; as dispatch/fkc/formula.cc, written anew on purpose.
struct TextParser {
  const std::string& text;
  const std::map<std::string, double>& symbols;
  size_t at = 0;

  void Skip() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool Is(char c) {
    Skip();
    if (at >= text.size() || text[at] != c) return false;
    ++at;
    return true;
  }
  double Sum() {
    double value = Product();
    while (Is('+')) value += Product();
    return value;
  }
  double Product() {
    double value = Factor();
    while (Is('*')) value *= Factor();
    return value;
  }
  double Factor() {
    if (Is('(')) {
      const double value = Sum();
      EXPECT_TRUE(Is(')')) << text;
      return value;
    }
    Skip();
    static const std::regex kToken(R"(\d+|sum\(\w+\)|\w+(\.dim\[\d\])?)");
    std::smatch match;
    if (!std::regex_search(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), match,
                           kToken, std::regex_constants::match_continuous)) {
      ADD_FAILURE() << text << " at " << at;
      at = text.size();
      return 0;
    }
    const std::string token = match.str();
    at += token.size();
    if (token[0] >= '0' && token[0] <= '9') return std::stod(token);
    EXPECT_TRUE(symbols.count(token)) << token << " in " << text;
    return symbols.count(token) ? symbols.at(token) : 0;
  }
};

}  // namespace

FkcDocument ParseFkc(const std::string& name, const std::string& text) {
  FkcDocument document{name, text, {}, {}};
  std::istringstream lines(text);
  std::string line, front, block;
  enum { kStart, kFront, kProse, kBlock } state = kStart;
  while (std::getline(lines, line)) {
    if (state == kStart) {
      EXPECT_EQ(line, "---") << name;
      state = kFront;
    } else if (state == kFront) {
      if (line == "---") state = kProse;
      if (state == kFront) front += line + "\n";
    } else if (state == kBlock) {
      if (line != "```") {
        block += line + "\n";
        continue;
      }
      document.sections.back().block = YAML::Load(block);
      ++document.sections.back().num_blocks;
      state = kProse;
    } else if (line.rfind("## ", 0) == 0) {
      document.sections.push_back({name, line.substr(3), {}, 0, {}});
    } else if (line == "```fkc") {
      EXPECT_FALSE(document.sections.empty()) << name;
      state = kBlock;
      block.clear();
    } else if (!document.sections.empty()) {
      document.sections.back().prose += line + "\n";
    }
  }
  EXPECT_EQ(state, kProse) << name;
  document.front_matter = YAML::Load(front);
  return document;
}

std::vector<FkcDocument> AllFkcDocuments() {
  std::vector<FkcDocument> documents;
  for (const std::string& name : fkc::Documents()) {
    std::string text;
    const Status status = fkc::Document(name, &text);
    EXPECT_TRUE(status.ok()) << status.message();
    documents.push_back(ParseFkc(name, text));
  }
  return documents;
}

std::vector<FkcSection> AllFkcSections() {
  std::vector<FkcSection> sections;
  for (const FkcDocument& document : AllFkcDocuments()) {
    sections.insert(sections.end(), document.sections.begin(), document.sections.end());
  }
  return sections;
}

bool DTypesAdmitted(const YAML::Node& block, const std::vector<ConstTensorView>& inputs) {
  const YAML::Node operands = block["accept"]["inputs"];
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].present()) continue;
    bool listed = false;
    for (const YAML::Node& dtype : operands[i]["dtypes"]) {
      listed = listed || ParseDType(dtype.as<std::string>()) == inputs[i].dtype;
    }
    if (!listed) return false;
    const YAML::Node rule = operands[i]["dtype_constraint"];
    if (!rule || inputs[i].dtype == inputs[0].dtype) continue;
    const std::string text = rule.as<std::string>();
    EXPECT_TRUE(text == "same_as=q" || text == "same_as=q or F32") << text;
    if (text == "same_as=q" || inputs[i].dtype != DType::kF32) return false;
  }
  return true;
}

bool ShapesAdmitted(const YAML::Node& block, const std::vector<ConstTensorView>& inputs) {
  const YAML::Node operands = block["accept"]["inputs"];
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].present()) continue;
    std::vector<std::string> constraints;
    if (const YAML::Node one = operands[i]["shape_constraint"]) {
      constraints.push_back(one.as<std::string>());
    }
    for (const YAML::Node& all : operands[i]["shape_constraints"]) {
      constraints.push_back(all.as<std::string>());
    }
    for (const std::string& constraint : constraints) {
      if (!ShapeAdmitted(block, inputs, inputs[i], constraint)) return false;
    }
  }
  return true;
}

double EvaluateText(const std::string& formula, const std::map<std::string, double>& symbols) {
  TextParser parser{formula, symbols};
  const double value = parser.Sum();
  parser.Skip();
  EXPECT_EQ(parser.at, formula.size()) << formula;
  return value;
}

}  // namespace flashlane::testing
