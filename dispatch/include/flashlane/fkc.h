// Kernels by contract: for planners that know a kernel only from its document (Fuel Kernel
// Contract, version 1; dispatch/contracts, or Document below). A document names its kernel by a
// symbol; Resolve turns the symbol into a function that takes operands and parameters as arrays, in
// the document's order and by its names.
//
//   const KernelRef run = flashlane::fkc::Resolve("flashlane::fkc::attention_flash");
//   const ConstTensorView inputs[] = {q, k, v};
//   const TensorView outputs[] = {out};
//   const Param params[] = {Param::F32("softmax_scale", 0.125f), Param::Bool("causal", true)};
//   KernelCall call;
//   call.inputs = inputs, call.num_inputs = 3;  ...
//   Status status = run(call);
#ifndef FLASHLANE_FKC_H_
#define FLASHLANE_FKC_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "flashlane/attention.h"
#include "flashlane/export.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::fkc {

// One field of op_params. A kind of a document: f32, bool, usize (also of a resolved DynScalar);
// an Option is None, or left out, or what it is an option of.
struct Param {
  enum class Kind : std::uint8_t { kNone, kF32, kF64, kBool, kUsize, kI64 };
  const char* name = "";
  Kind kind = Kind::kNone;
  double real = 0;            // of kF32, kF64
  std::uint64_t integer = 0;  // of kBool, kUsize; of kI64 in two's complement

  static Param None(const char* name) noexcept { return {name, Kind::kNone, 0, 0}; }
  static Param F32(const char* name, float value) noexcept {
    return {name, Kind::kF32, static_cast<double>(value), 0};
  }
  static Param F64(const char* name, double value) noexcept { return {name, Kind::kF64, value, 0}; }
  static Param Bool(const char* name, bool value) noexcept {
    return {name, Kind::kBool, 0, value ? 1u : 0u};
  }
  static Param Usize(const char* name, std::uint64_t value) noexcept {
    return {name, Kind::kUsize, 0, value};
  }
  static Param I64(const char* name, std::int64_t value) noexcept {
    return {name, Kind::kI64, 0, static_cast<std::uint64_t>(value)};
  }
};

struct KernelCall {
  const ConstTensorView* inputs = nullptr;
  std::size_t num_inputs = 0;  // an optional operand at the end may be left out, or be absent
  const TensorView* outputs = nullptr;
  std::size_t num_outputs = 0;
  const Param* params = nullptr;
  std::size_t num_params = 0;

  // Strict: whatever the document refuses is refused. Otherwise the rules are those of the C++ call
  // that the kernel belongs to (attention.h, paged.h, backward.h), and a caller may also
  //   - give v a head size of its own, and outputs strides;
  //   - take lse as a second output of a forward kernel, or leave out gradients of a bundle;
  //   - leave out softmax_scale (1 / sqrt(D)), causal, block_size, and give any real or integer
  //   kind;
  //   - give params that the document does not have: "q_start" (integer; forward and backward),
  //     "bottom_right" (bool; likewise), "k_len" (backward), "window_size_left" (paged).
  // A parameter of any other name is refused either way, as is one given twice.
  bool strict = true;

  ExecOptions options = {};  // kernel is ignored: the entry point says it
};

// Checks the call and runs it, as the C++ call does: on any error no output byte has changed.
using KernelRef = Status (*)(const KernelCall& call) noexcept;

// One symbol of the link registry.
struct EntryPoint {
  const char* symbol;    // "flashlane::fkc::attention_flash", a document's entry_point
  const char* kernel;    // "attention_flash", the document's kernel
  const char* document;  // the name to give Document: entries of one bundle share theirs
  const char* fused_op;  // "FLASH_ATTN"
  int fused_op_id;
  const char*
      kernel_revision_hash;  // of its sources and what orders its sums: 16 hexadecimal digits
  KernelRef run;
};

// All of them (what a document calls the link registry), in the order of the kernel registry; and
// the function of one symbol, null where there is none.
FLASHLANE_API std::vector<EntryPoint> EntryPoints();
FLASHLANE_API KernelRef Resolve(const char* symbol) noexcept;

// Names of the documents, and one document: Markdown with front matter and fenced fkc blocks.
FLASHLANE_API std::vector<std::string> Documents();
FLASHLANE_API Status Document(const std::string& name, std::string* text);

// Whether the document admits a call: a strict call's check, from dtypes, shapes, strides and
// parameters alone. Data pointers may be null, and outputs left out (num_outputs 0); what only the
// data can say (entries of the table, memory that is shared) the call itself checks.
FLASHLANE_API Status Admits(const char* symbol, const KernelCall& call) noexcept;

// An unsigned number of 128 bits: the flops of the largest tensors do not fit in 64.
struct Count {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  double ToDouble() const noexcept {
    return static_cast<double>(high) * 18446744073709551616.0 + static_cast<double>(low);
  }
  std::uint64_t Saturated() const noexcept {
    return high == 0 ? low : std::numeric_limits<std::uint64_t>::max();
  }
};

// What a call costs, by the formulas of its document: over live keys where the call says how many
// there are (k_len; context_lens with data), at capacity where it does not. Saturates at 2^128 - 1.
struct Cost {
  Count flops = {};        // as if every query saw every live key
  Count bytes_moved = {};  // every operand of the products once, every output once
  Count host_bytes = {};   // the outputs
  // flops of the pairs that causality and windows leave visible; what ExecOptions::max_flops is
  // held against.
  Count visible_flops = {};
  // As EstimateNanoseconds (below); 0 where it has none to give: no coefficients are set, or the
  // options name no target that runs here.
  double nanoseconds = 0;
};

// Of a call of any shape: nothing is allocated in proportion to it. Data may be null. Reads
// context_lens where it has data. In a strict call a shape that the document refuses is refused; in
// any, one that makes no sense. Of outputs it is only looked at which gradients are left out.
FLASHLANE_API Status EstimateCost(const char* symbol, const KernelCall& call, Cost* cost) noexcept;

// Working memory of the call with its options (threads, target): what
// ExecOptions::max_scratch_bytes is held against. As above, but of calls that could be made: time
// and memory in proportion to the batch.
FLASHLANE_API Status EstimateScratch(const char* symbol, const KernelCall& call,
                                     std::uint64_t* bytes) noexcept;

// What calls take on one thread of this machine, as `flashlane judge` measures it, per kernel,
// dtype and target:
//   ns = overhead_ns + tile_ns * tiles + ns_per_flop * flops + ns_per_byte * bytes
//        + stream_ns_per_flop * stream_flops + stream_ns_per_byte * stream_bytes
// The stream terms are of sequences of so few rows that K and V are streamed past them; the others
// of all else. Flops are visible_flops and what whole register tiles compute besides; bytes are
// operands, K and V as often as they are read.
struct Coefficients {
  double overhead_ns = 0;  // of a call
  double tile_ns = 0;      // of a tile of query rows, or of a stream
  double ns_per_flop = 0;
  double ns_per_byte = 0;
  double stream_ns_per_flop = 0;
  double stream_ns_per_byte = 0;
};

// Sets what the estimates below and Cost::nanoseconds go by, for the whole process, until it is set
// anew or cleared; at any time, from any thread. It also decides from how much work on calls of the
// kernel are worth spreading over threads; never a bit of a result. A symbol of a document's bundle
// stands for those of single gradients, and the other way round. target: null for all of them.
// Coefficients must be finite and not negative, and not all 0.
FLASHLANE_API Status SetCoefficients(const char* symbol, DType dtype, const char* target,
                                     const Coefficients& coefficients) noexcept;
// kUnsupported where none are set. target: null for the one that a call without one would get.
FLASHLANE_API Status FindCoefficients(const char* symbol, DType dtype, const char* target,
                                      Coefficients* coefficients) noexcept;
FLASHLANE_API void ClearCoefficients() noexcept;  // all

// How long the call takes on one thread, by the coefficients of its kernel, dtype and target, with
// operands that are not in cache. As EstimateCost; kUnsupported where no coefficients are set.
FLASHLANE_API Status EstimateNanoseconds(const char* symbol, const KernelCall& call,
                                         double* nanoseconds) noexcept;

}  // namespace flashlane::fkc

#endif  // FLASHLANE_FKC_H_
