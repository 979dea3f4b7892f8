// Contract documents as a planner reads them, with a YAML library, and calls made of nothing else.
#ifndef FLASHLANE_TESTS_SUPPORT_FKC_DOCUMENT_H_
#define FLASHLANE_TESTS_SUPPORT_FKC_DOCUMENT_H_

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "flashlane/fkc.h"

namespace flashlane::testing {

// A "## " section of a document.
struct FkcSection {
  std::string document;  // its name
  std::string title;
  std::string prose;
  int num_blocks = 0;
  YAML::Node block;
};
inline void PrintTo(const FkcSection& section, std::ostream* out) { *out << section.title; }

struct FkcDocument {
  std::string name;
  std::string text;
  YAML::Node front_matter;
  std::vector<FkcSection> sections;
};

FkcDocument ParseFkc(const std::string& name, const std::string& text);

// Of every document that the library writes; and all sections of all.
std::vector<FkcDocument> AllFkcDocuments();
std::vector<FkcSection> AllFkcSections();

struct FkcSizes {
  int64_t batch = 2, num_heads = 4, num_kv_heads = 2, seqlen_q = 3, seqlen_k = 10, head_dim = 8;
  int64_t block_size = 5;  // of paged calls, whose table has room for seqlen_k or a little more
};

// How the memory of an operand lies.
enum class FkcLayout {
  kDense,
  kPadded,       // every dimension but the innermost further apart than it is long
  kTransposed,   // the two dimensions before the innermost exchanged; of rank 2 both
  kInnerStride,  // innermost stride 2
  kBroadcast,    // outermost stride 0, where the rank is above 1; of rank 1 its only one
  kOffset,       // begins one element into its memory
  kReversed,     // a negative stride
};

// A call of a contract from its block alone: operands and parameters in its order and by its names,
// outputs by its rules.
class FkcCall {
 public:
  FkcCall(const YAML::Node& block, DType dtype, const FkcSizes& sizes, bool with_optional = true);
  FkcCall(const FkcCall&) = delete;  // views and names point into it
  FkcCall& operator=(const FkcCall&) = delete;

  // Mutable, so that a test may break a rule.
  std::vector<ConstTensorView> inputs;
  std::vector<TensorView> outputs;
  std::vector<fkc::Param> params;
  bool strict = true;
  ExecOptions options;

  // The operand's position, by name.
  size_t Position(const std::string& operand) const;
  // The same values, laid out anew (kBroadcast: those of index 0 everywhere).
  void LayOut(size_t input, FkcLayout layout);
  // Makes the values along the outermost dimension alike, in dense memory.
  void Expand(size_t input);
  // Moves the memory of an operand, or output, to `bytes` past a 64-byte boundary.
  void MoveTo(size_t input, size_t bytes);
  void MoveOutputTo(size_t output, size_t bytes);

  fkc::KernelCall Call() const;
  Status Run() const;  // through the link registry
  std::vector<std::byte> Bits() const;
  bool IsUntouched() const;  // no output byte has been written
  std::vector<double> OutputValues(size_t output) const;

 private:
  struct Memory {
    std::vector<std::byte> bytes;
    std::byte* At(size_t past_boundary);
  };
  void MakeInput(const YAML::Node& operand, DType dtype, const FkcSizes& sizes);
  void MakeParams(const FkcSizes& sizes);
  void MakeOutputs(DType dtype);

  YAML::Node block_;
  std::vector<Memory> input_memory_, output_memory_;
  std::vector<std::string> names_;
};

// Whether what the block says admits the inputs: dtypes and their constraints; shape constraints.
// Evaluated from the text, without the library.
bool DTypesAdmitted(const YAML::Node& block, const std::vector<ConstTensorView>& inputs);
bool ShapesAdmitted(const YAML::Node& block, const std::vector<ConstTensorView>& inputs);

// A cost formula of a block, with numbers for its symbols; plain doubles.
double EvaluateText(const std::string& formula, const std::map<std::string, double>& symbols);

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_FKC_DOCUMENT_H_
