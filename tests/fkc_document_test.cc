// Contract documents as text: they parse, have what FKC version 1 asks for, name kernels that there
// are, stand in the repository as they are written, and differ from the specification's reference
// contracts exactly where they say so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "dispatch/registry.h"
#include "flashlane/info.h"
#include "tests/support/fkc_document.h"

namespace flashlane::testing {
namespace {

namespace fs = std::filesystem;

std::string Text(const YAML::Node& node) { return node.as<std::string>(); }

std::string Contents(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::set<std::string> AttentionKernels() {
  std::set<std::string> names;
  for (const KernelRow& row : Registry()) {
    if (row.forward != nullptr || row.backward != nullptr) names.insert(row.name);
  }
  return names;
}

TEST(FkcDocumentTest, EveryAttentionKernelOfTheRegistryHasOne) {
  const std::vector<std::string> documents = fkc::Documents();
  EXPECT_EQ(std::set<std::string>(documents.begin(), documents.end()), AttentionKernels());
  EXPECT_EQ(documents.size(), AttentionKernels().size());
  std::string text = "kept";
  EXPECT_EQ(fkc::Document("attention", &text).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(text, "kept");
}

TEST(FkcDocumentTest, FrontMatterAndSections) {
  for (const FkcDocument& document : AllFkcDocuments()) {
    SCOPED_TRACE(document.name);
    const YAML::Node& front = document.front_matter;
    EXPECT_EQ(front["fkc_version"].as<int>(), 1);
    EXPECT_EQ(Text(front["provider"]["name"]), "flashlane");
    EXPECT_EQ(Text(front["provider"]["backend"]), "Cpu");
    EXPECT_EQ(Text(front["provider"]["link_registry"]), "flashlane::fkc::EntryPoints");
    EXPECT_EQ(Text(front["provider"]["revision_base"]), std::string("flashlane-") + Version());
    EXPECT_GE(document.sections.size(), 1u);
    for (const FkcSection& section : document.sections) {
      SCOPED_TRACE(section.title);
      EXPECT_EQ(section.num_blocks, 1);
      EXPECT_EQ(section.title, Text(section.block["kernel"]));
      const size_t begin = section.prose.find_first_not_of('\n');
      EXPECT_EQ(section.prose.substr(begin, section.prose.find('\n', begin) - begin),
                Text(section.block["blurb"]));
    }
  }
}

// FKC's own rules for a block (required fields, coherent layouts), and what is the same for all.
TEST(FkcDocumentTest, BlocksAreWhole) {
  for (const FkcSection& section : AllFkcSections()) {
    SCOPED_TRACE(section.title);
    const YAML::Node& block = section.block;
    EXPECT_EQ(Text(block["backend"]), "Cpu");
    EXPECT_FALSE(block["op_kind"]);
    bool all_strided = true;
    std::set<std::string> names;
    for (const YAML::Node& operand : block["accept"]["inputs"]) {
      const YAML::Node layout = operand["layout"];
      const bool strided = Text(layout["strided"]) == "accepted";
      all_strided = all_strided && strided;
      EXPECT_TRUE(strided || Text(layout["contiguous"]) != "n/a");
      EXPECT_TRUE(strided || Text(layout["broadcast_stride0"]) == "rejected");
      EXPECT_TRUE(names.insert(Text(operand["name"])).second);
      EXPECT_GT(operand["dtypes"].size(), 0u);
    }
    EXPECT_EQ(Text(block["caps"]["awkward_layout_strategy"]),
              all_strided ? "handles_strided" : "requires_contiguous");
    EXPECT_NE(block["return"]["outputs"].IsDefined(), block["return"]["bundle"].IsDefined());
    EXPECT_EQ(Text(block["cost"]["provenance"]), "judge_measured");
    EXPECT_EQ(Text(block["cost"]["class"]), "attention");
    EXPECT_TRUE(block["cost"]["overhead_ns"].IsNull());
    EXPECT_TRUE(block["precision"]["audited"].as<bool>());
    EXPECT_TRUE(block["precision"]["bit_stable_on_same_hardware"].as<bool>());
    EXPECT_EQ(Text(block["determinism"]), "same_hardware_bitwise");
    EXPECT_FALSE(std::regex_search(section.prose, std::regex("0x[0-9a-f]{6}")));  // no addresses
  }
}

TEST(FkcDocumentTest, PagedOperandsAndTheirGatherRoles) {
  int found = 0;
  for (const FkcSection& section : AllFkcSections()) {
    if (Text(section.block["fused_op"]) != "PAGED_ATTN") continue;
    ++found;
    const YAML::Node operands = section.block["accept"]["inputs"];
    std::vector<std::string> names;
    for (const YAML::Node& operand : operands) names.push_back(Text(operand["name"]));
    EXPECT_THAT(names, ::testing::ElementsAre("q", "k_cache", "v_cache", "block_table",
                                              "context_lens", "alibi_slopes"));
    for (int pool : {1, 2}) {
      const YAML::Node gather = operands[pool]["fdx"]["gather"];
      EXPECT_EQ(Text(gather["kind"]), "paged_blocks");
      EXPECT_EQ(Text(gather["block_table"]), names[3]);
      EXPECT_EQ(Text(gather["context_lens"]), names[4]);
    }
  }
  EXPECT_EQ(found, 2);
}

TEST(FkcDocumentTest, SymbolsResolveAndFusedOpsAreTheSpecifications) {
  const std::map<std::string, int> ids = {{"FLASH_ATTN", 12},
                                          {"PAGED_ATTN", 13},
                                          {"FLASH_ATTN_BACKWARD_Q", 22},
                                          {"FLASH_ATTN_BACKWARD_K", 23},
                                          {"FLASH_ATTN_BACKWARD_V", 24}};
  const std::vector<FkcSection> sections = AllFkcSections();
  const std::vector<fkc::EntryPoint> entries = fkc::EntryPoints();
  ASSERT_EQ(entries.size(), sections.size());
  std::set<fkc::KernelRef> functions;
  std::set<int> seen;
  for (size_t i = 0; i < sections.size(); ++i) {
    const YAML::Node& block = sections[i].block;
    SCOPED_TRACE(sections[i].title);
    EXPECT_EQ(entries[i].kernel, sections[i].title);
    EXPECT_EQ(entries[i].document, sections[i].document);
    EXPECT_EQ(entries[i].symbol, Text(block["entry_point"]));
    EXPECT_EQ(entries[i].fused_op, Text(block["fused_op"]));
    EXPECT_EQ(entries[i].fused_op_id, block["fused_op_id"].as<int>());
    EXPECT_EQ(ids.at(entries[i].fused_op), entries[i].fused_op_id);
    EXPECT_EQ(entries[i].kernel_revision_hash, Text(block["kernel_revision_hash"]));
    EXPECT_TRUE(std::regex_match(entries[i].kernel_revision_hash, std::regex("[0-9a-f]{16}")));
    EXPECT_EQ(fkc::Resolve(entries[i].symbol), entries[i].run);
    EXPECT_TRUE(functions.insert(entries[i].run).second);
    seen.insert(entries[i].fused_op_id);
    for (const YAML::Node& slot : block["return"]["bundle"]) {
      EXPECT_NE(fkc::Resolve(Text(slot["entry_point"]).c_str()), nullptr);
    }
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(12, 13, 22, 23, 24));
  EXPECT_EQ(fkc::Resolve("flashlane::fkc::attention"), nullptr);
  EXPECT_EQ(fkc::Resolve(nullptr), nullptr);
}

TEST(FkcDocumentTest, TheRepositorysAreTheGenerated) {
  const fs::path folder = fs::path(FLASHLANE_SOURCE) / "dispatch" / "contracts";
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.insert(entry.path().filename());
  for (const FkcDocument& document : AllFkcDocuments()) {
    const std::string name = document.name + ".fkc.md";
    EXPECT_TRUE(files.erase(name)) << name;
    EXPECT_EQ(Contents(folder / name), document.text)
        << name << ": write it anew, by `ninja contracts` in the build folder";
  }
  EXPECT_THAT(files, ::testing::IsEmpty());
}

// ---- the reference contracts

// The last field of a path is what differs: "accept.inputs.k.layout.strided".
struct Leaf {
  std::string path, theirs, ours;
};

std::map<std::string, double> Symbols() {
  std::map<std::string, double> symbols = {{"b", 3},   {"hq", 6}, {"hkv", 2},        {"sq", 11},
                                           {"sk", 17}, {"d", 40}, {"dtype_bytes", 2}};
  symbols["v.dim[3]"] = symbols["v_cache.dim[3]"] = symbols["d"];
  symbols["block_table.dim[1]"] = 5;
  symbols["block_size"] = 16;
  return symbols;
}

std::string Flat(const YAML::Node& node) {
  if (!node.IsDefined()) return "(none)";
  std::ostringstream text;
  if (node.IsSequence() && node.size() > 0 && node[0].IsScalar()) {
    std::set<std::string> items;  // dtypes: their order means nothing
    for (const YAML::Node& item : node) items.insert(Text(item));
    for (const std::string& item : items) text << item << " ";
    return text.str();
  }
  text << node;
  return text.str();
}

void Compare(const std::string& path, const YAML::Node& theirs, const YAML::Node& ours,
             std::vector<Leaf>* differing) {
  const bool is_formula = path.rfind("cost.", 0) == 0 && theirs.IsScalar() && ours.IsDefined() &&
                          Text(theirs).find('*') != std::string::npos;
  if (is_formula) {
    if (EvaluateText(Text(theirs), Symbols()) != EvaluateText(Text(ours), Symbols())) {
      differing->push_back({path, Text(theirs), Text(ours)});
    }
  } else if (theirs.IsMap() && ours.IsMap()) {
    for (const auto& entry : theirs) {
      const std::string key = Text(entry.first);
      Compare(path.empty() ? key : path + "." + key, entry.second, ours[key], differing);
    }
  } else if (theirs.IsSequence() && theirs.size() > 0 && theirs[0].IsMap() && theirs[0]["name"]) {
    if (theirs.size() != ours.size()) differing->push_back({path, Flat(theirs), Flat(ours)});
    for (size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
      Compare(path + "." + Text(theirs[i]["name"]), theirs[i], ours[i], differing);
    }
  } else if (Flat(theirs) != Flat(ours)) {
    differing->push_back({path, Flat(theirs), Flat(ours)});
  }
}

std::vector<std::string> TableFields(const std::string& prose) {
  std::vector<std::string> fields;
  const std::regex row(R"(\n\| `([^`]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|)");
  for (std::sregex_iterator it(prose.begin(), prose.end(), row), end; it != end; ++it) {
    fields.push_back((*it)[1]);
  }
  return fields;
}

bool Matches(const std::string& field, const std::string& path) {
  std::string pattern = std::regex_replace(field, std::regex(R"(\.)"), "\\.");
  pattern = std::regex_replace(pattern, std::regex(R"(\*)"), "[^.]+");
  return std::regex_match(path, std::regex(pattern));
}

TEST(FkcReferenceTest, WhatDiffersIsInTheTableAndWhatIsInTheTableDiffers) {
  const std::map<std::string, std::string> reference_of = {
      {"attention_naive", "attention_naive"},
      {"attention_flash", "attention_flash"},
      {"attention_paged", "attention_paged_naive"},
      {"attention_paged_naive", "attention_paged_naive"},
      {"attention_flash_backward", "attention_flash_backward"},
      {"attention_backward_naive", "attention_flash_backward"}};
  const YAML::Node references =
      YAML::LoadFile(std::string(FLASHLANE_SOURCE) + "/tests/data/fkc_reference.yaml");
  ASSERT_EQ(references.size(), 4u);
  for (const FkcDocument& document : AllFkcDocuments()) {
    SCOPED_TRACE(document.name);
    std::vector<Leaf> differing;
    for (const YAML::Node& reference : references) {
      if (Text(reference["kernel"]) != reference_of.at(document.name)) continue;
      Compare("", reference, document.sections[0].block, &differing);
    }
    const std::vector<std::string> fields = TableFields(document.sections[0].prose);
    EXPECT_GT(fields.size(), 5u);
    for (const Leaf& leaf : differing) {
      const bool said = std::any_of(fields.begin(), fields.end(), [&](const std::string& field) {
        return Matches(field, leaf.path);
      });
      EXPECT_TRUE(said) << leaf.path << ": " << leaf.theirs << " is " << leaf.ours;
    }
    for (const std::string& field : fields) {
      const bool real = std::any_of(differing.begin(), differing.end(),
                                    [&](const Leaf& leaf) { return Matches(field, leaf.path); });
      EXPECT_TRUE(real) << field << " is in the table, but does not differ";
    }
    for (const Leaf& leaf : differing) {
      EXPECT_EQ(leaf.path.find("shape_constraint"), std::string::npos) << leaf.path;
      EXPECT_EQ(leaf.path.find(".rank"), std::string::npos) << leaf.path;
    }
  }
}

}  // namespace
}  // namespace flashlane::testing
