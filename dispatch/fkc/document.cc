#include "dispatch/fkc/document.h"

#include <cstdio>
#include <string>
#include <string_view>

#include "dispatch/fkc/revision.h"
#include "flashlane/info.h"
#include "kernels/args.h"

namespace flashlane::fkc {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

template <typename List, typename Name>
std::string FlowList(const List& list, const Name& name) {
  std::string text = "[";
  for (const auto& item : list) text += (text.size() == 1 ? "" : ", ") + std::string(name(item));
  return text + "]";
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

class Writer {
 public:
  explicit Writer(const Contract& contract) : contract_(contract) {}

  std::string Block() {
    Identity();
    Accept();
    Return();
    Caps();
    Cost();
    Precision();
    return text_;
  }

 private:
  void Line(int indent, const std::string& line) {
    text_ += std::string(static_cast<size_t>(indent), ' ') + line + "\n";
  }

  void Identity() {
    const char* hash = RevisionOf(contract_.row);
    Line(0, "kernel: " + contract_.kernel);
    Line(0, std::string("fused_op: ") + contract_.fused_op);
    Line(0, "fused_op_id: " + std::to_string(contract_.fused_op_id));
    Line(0, "blurb: " + Quoted(contract_.blurb));
    Line(0, "backend: Cpu");
    Line(0, "kernel_source: \"flashlane\"");
    Line(0, "entry_point: " + Quoted(contract_.entry_point));
    Line(0, "kernel_revision_hash: " + Quoted(hash == nullptr ? "" : hash));
  }

  void Accept() {
    Line(0, "\naccept:");
    Line(2, "inputs:");
    for (const Operand& operand : contract_.operands) Input(operand);
    Line(2, "op_params:");
    Line(4, std::string("variant: ") + contract_.variant);
    Line(4, "fields:");
    for (const Field& field : contract_.fields) {
      std::string line = std::string(field.name) + ": { kind: " + Quoted(FieldKindName(field.kind));
      if (*field.constraint != 0) line += ", constraint: " + Quoted(field.constraint);
      if (*field.note != 0) line += ", note: " + Quoted(field.note);
      Line(6, line + " }");
    }
  }

  void Input(const Operand& operand) {
    Line(4, std::string("- name: ") + operand.name);
    Line(6, "dtypes: " + FlowList(operand.dtypes, DTypeName));
    if (!operand.dtype_constraint.empty()) {
      Line(6, "dtype_constraint: " + Quoted(operand.dtype_constraint));
    }
    Line(6, LayoutLine(operand.layout));
    Line(6, "rank: " + std::to_string(operand.rank) + "  # " + operand.dims);
    const auto& constraints = operand.shape_constraints;
    // A lower bound is not in FKC's vocabulary.
    const bool is_bound = std::string_view(constraints[0]).find(">=") != std::string_view::npos;
    if (!is_bound) Line(6, std::string("shape_constraint: ") + Quoted(constraints[0]));
    if (is_bound || constraints.size() > 1) {
      Line(6, "shape_constraints: " + FlowList(constraints, Quoted));
    }
    if (operand.optional) Line(6, "optional: true");
    if (operand.fdx == Fdx::kLengths) Line(6, "fdx: { symbolic_extent: required }");
    if (operand.fdx != Fdx::kPool) return;
    Line(6, "fdx:");
    Line(8, "requires_ext: true");
    Line(8, "symbolic_extent: required");
    Line(8, "extent_kind: range");
    Line(8, "gather:");
    Line(10, "kind: paged_blocks");
    Line(10, "block_table: block_table    # roles of the operands of these names");
    Line(10, "context_lens: context_lens");
  }

  static std::string LayoutLine(const Layout& layout) {
    const auto flag = [](bool accepted) { return accepted ? "accepted" : "rejected"; };
    return std::string("layout: { contiguous: ") +
           (layout.contiguous_required ? "required" : "accepted") +
           ", strided: " + flag(layout.strided) +
           ", broadcast_stride0: " + flag(layout.broadcast_stride0) +
           ", start_offset: " + flag(layout.start_offset) +
           ", reverse_strides: " + flag(layout.reverse_strides) +
           ", inner_stride: " + (layout.any_inner_stride ? "any" : "1") + " }";
  }

  void Return() {
    Line(0, "\nreturn:");
    if (contract_.is_bundle()) {
      Line(2, "bundle:");
      for (size_t g = 0; g < contract_.results.size(); ++g) Slot(g);
      return;
    }
    const Result& result = contract_.results[0];
    const bool backward = contract_.operation == Operation::kBackward;
    Line(2, "outputs:");
    Line(4, std::string("- name: ") + result.name);
    Line(6, std::string("dtype_rule: passthrough(") + result.like + ")");
    Line(6, std::string("shape_rule: ") + (backward ? "same_as(" : "from_params(") + result.like +
                ")  # " + result.dims);
    Line(6, "layout_guarantee: contiguous");
    Line(6, "aliasing: none");
  }

  // With the entry that gives this one alone.
  void Slot(size_t g) {
    static constexpr const char* kSuffixes[] = {"_q", "_k", "_v"};
    const Result& result = contract_.results[g];
    Line(4, std::string("- name: ") + result.name);
    Line(6, std::string("dtype_rule: passthrough(") + result.like + ")");
    Line(6, std::string("shape_rule: same_as(") + result.like + ")  # " + result.dims +
                (*result.note == 0 ? "" : std::string("; ") + result.note));
    Line(6, "layout_guarantee: contiguous");
    Line(6, "aliasing: none");
    Line(6, "entry_point: " + Quoted(contract_.entry_point + kSuffixes[g]));
  }

  void Caps() {
    bool all_strided = true;
    for (const Operand& operand : contract_.operands) {
      all_strided = all_strided && operand.layout.strided;
    }
    Line(0, "\ncaps:");
    Line(2, std::string("awkward_layout_strategy: ") +
                (all_strided ? "handles_strided" : "requires_contiguous"));
    Line(2, "fast_paths:");
    for (const FastPath& path : contract_.fast_paths) {
      Line(4, "- { when: " + Quoted(path.when) + ", note: " + Quoted(path.note) + " }");
    }
    Line(2, "in_place: false");
    Line(2, "alignment_bytes: " + std::to_string(kernels::kScratchAlignment) +
                "  # of scratch, which the library allocates");
    Line(2, "input_alignment_bytes: dtype_bytes  # and no more");
    Line(2, "access_granularity_bits: 8");
  }

  void Cost() {
    const Formulas& formulas = contract_.formulas;
    // Only where the document's parameters or operands can say how many keys live.
    const bool has_live = contract_.operation != Operation::kBackward;
    Line(0, "\ncost:");
    Line(2, "provenance: judge_measured");
    Line(2, "class: attention");
    Line(2, "# Masks are not looked at. At capacity; _live where the live length is known.");
    Line(2, "flops: " + Quoted(formulas.flops));
    if (has_live) Line(2, "flops_live: " + Quoted(formulas.flops_live));
    Line(2, "bytes_moved: " + Quoted(formulas.bytes_moved));
    if (has_live) Line(2, "bytes_moved_live: " + Quoted(formulas.bytes_moved_live));
    Line(2, "overhead_ns: ~");
    Line(2, "memory: { device_bytes: 0, host_bytes: " + Quoted(formulas.host_bytes) +
                ", disk_bytes: 0 }");
  }

  void Precision() {
    Line(0, "\nprecision:");
    Line(2, "bit_stable_on_same_hardware: true");
    Line(2, "max_ulp: ~");
    Line(2, "max_relative: ~");
    Line(2, "max_absolute: ~");
    std::string measured;
    for (const DType dtype : contract_.operands[0].dtypes) {
      measured += (measured.empty() ? "" : ", ") + std::string(DTypeName(dtype)) + ": " +
                  Number(contract_.measured_max_absolute[static_cast<size_t>(dtype)]);
    }
    Line(2, "measured_max_absolute: { " + measured + " }");
    Line(2, "audited: true");
    Line(2, "notes: " + Quoted(contract_.precision_notes));
    Line(0, "\ndeterminism: same_hardware_bitwise");
  }

  const Contract& contract_;
  std::string text_;
};

std::string FrontMatter() {
  return std::string(
             "---\n"
             "fkc_version: 1\n"
             "provider:\n"
             "  name: flashlane\n"
             "  backend: Cpu\n"
             "  kernel_source: \"flashlane\"\n"
             "  link_registry: flashlane::fkc::EntryPoints\n"
             "  revision_base: \"flashlane-") +
         Version() + "\"\n---\n";
}

std::string DifferenceTable(const std::vector<Difference>& differences) {
  if (differences.empty()) return {};
  std::string table =
      "\n### Differences from the reference contract\n\n"
      "From fuel-reference-backend's contract of this operation; whatever is not in the table is "
      "the\n"
      "same or means the same. Keys that the reference does not have are additions, which an "
      "importer\n"
      "may ignore.\n\n"
      "| field | reference | here | why |\n|---|---|---|---|\n";
  for (const Difference& row : differences) {
    table += std::string("| `") + row.field + "` | " + row.theirs + " | " + row.ours + " | " +
             row.reason + " |\n";
  }
  return table;
}

}  // namespace

std::string WriteDocument(const std::vector<const Contract*>& contracts) {
  std::string text = FrontMatter();
  text += std::string("# flashlane: ") + contracts[0]->row +
          "\n\nWritten by `flashlane contracts --kernel " + contracts[0]->row +
          "` from the kernel registry; do not edit.\n";
  for (const Contract* contract : contracts) {
    text += "\n## " + contract->kernel + "\n\n" + contract->blurb + "\n" + contract->prose +
            DifferenceTable(contract->differences) + "\n```fkc\n" + Writer(*contract).Block() +
            "```\n";
  }
  return text;
}

}  // namespace flashlane::fkc
