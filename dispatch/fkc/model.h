// The contracts as data: what documents are written from and strict calls are held to. Which
// dtypes, ranks and layouts an operand takes is asked of the rules themselves (probe.h); that a
// kernel exists, and under what name, of the registry; the rest is stated in facts.cc and
// proved by tests.
#ifndef FLASHLANE_DISPATCH_FKC_MODEL_H_
#define FLASHLANE_DISPATCH_FKC_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include "dispatch/registry.h"
#include "flashlane/fkc.h"
#include "flashlane/tensor.h"

namespace flashlane::fkc {

// What the FDX extension of an operand says.
enum class Fdx : uint8_t { kNone, kPool, kLengths };

struct Layout {
  bool contiguous_required = true;
  bool strided = false;
  bool broadcast_stride0 = false;
  bool start_offset = false;
  bool reverse_strides = false;
  bool any_inner_stride = false;  // else the innermost stride must be 1
};

struct Operand {
  const char* name;
  const char* dims;  // "[B, Hq, Sq, D]"
  int rank;
  // In FKC's vocabulary; the first is the document's shape_constraint, all together its
  // shape_constraints.
  std::vector<const char*> shape_constraints;
  bool optional = false;
  Fdx fdx = Fdx::kNone;

  // Probed.
  std::vector<DType> dtypes = {};
  std::string dtype_constraint = {};  // "", "same_as=q", "same_as=q or F32"
  Layout layout = {};
};

enum class FieldKind : uint8_t { kF32, kBool, kUsize, kOptionUsize, kOptionF32, kOptionDynScalar };

struct Field {
  const char* name;
  FieldKind kind;
  const char* constraint;  // may be ""
  const char* note;        // may be ""
};

struct Result {
  const char* name;
  const char* like;  // the operand whose dtype and shape it has
  const char* dims;
  const char* note;  // may be ""
};

// Cost formulas over b, hq, hkv, sq, sk, d, dtype_bytes, parameters, operand.dim[i].
struct Formulas {
  std::string flops, flops_live;
  std::string bytes_moved, bytes_moved_live;
  std::string host_bytes;
};

struct FastPath {
  std::string when;
  std::string note;
};

// One row of the table of differences from the specification's reference contract; `field` is a
// path in the fkc block, * for any one name.
struct Difference {
  const char* field;
  const char* theirs;
  const char* ours;
  const char* reason;
};

struct Contract {
  std::string kernel;       // the registry's name, with _q, _k, _v for one gradient
  std::string entry_point;  // "flashlane::fkc::" + kernel
  const char* row = "";     // the registry's name
  Operation operation = Operation::kForward;
  Kernel implementation = Kernel::kFlash;
  int gradient = -1;  // of three, where it gives one
  const char* fused_op = "";
  int fused_op_id = 0;
  const char* variant = "";
  std::string blurb;
  std::string prose;
  std::vector<Operand> operands;
  std::vector<Field> fields;
  std::vector<Result> results;
  std::vector<FastPath> fast_paths;
  Formulas formulas;
  std::string precision_notes;
  double measured_max_absolute[4] = {};  // by attention dtype; see facts.cc
  std::vector<Difference> differences;   // of the first contract of a document

  bool is_bundle() const { return results.size() > 1; }
};

// In the order of the registry; entries of one document are neighbours, the bundle first.
const std::vector<Contract>& Contracts();
const Contract* FindContract(std::string_view entry_point);

const char* FieldKindName(FieldKind kind);
bool IsOption(FieldKind kind);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_MODEL_H_
