// The words of the documents. Lines are broken here as they stand there.

#include <string>
#include <vector>

#include "dispatch/fkc/facts.h"

namespace flashlane::fkc {
namespace {

bool IsNaive(const Contract& contract) { return contract.implementation == Kernel::kNaive; }

const char* GradientName(const Contract& contract) {
  static constexpr const char* kNames[] = {"dQ", "dK", "dV"};
  return contract.gradient < 0 ? "(dQ, dK, dV)" : kNames[contract.gradient];
}

const char kForwardMeaning[] = R"(
Scores are `softmax_scale * (q . k)`, then `softcap * tanh(s / softcap)` where softcap is given, then
`+ slope_h * (j - i)` where there are ALiBi slopes. Query i stands at key position i, whatever the
lengths (top-left). It sees key j iff `j < k_len`, and not causal or `j <= i`, and no left window or
`j + left >= i`, and no right window or `j <= i + right`; both windows are inclusive. A row that sees
no key is all zeros. A key that is masked, or at or past k_len, contributes nothing whatever bytes it
holds; keys at or past k_len are never read. A NaN or +inf score makes its own row NaN, and no other.
)";

const char kPagedMeaning[] = R"(
Token t of sequence b lies in block `block_table[b, t / block_size]`, at slot `t % block_size`; blocks
may be shared and stand in any order. Query i of Sq stands at `max(context_lens[b] - Sq + i, 0)` and
sees the keys up to there (causality is implicit); the ALiBi distance is taken from there too. Table
entries within the live length are checked against num_blocks before anything is read, and no context
may be longer than its table has room for; entries past the live length are never read. A row that
sees no key is all zeros. The result has the bits of the contiguous kernel on the same keys.
)";

const char kBackwardMeaning[] = R"(
The gradients of `sum(dout * out)`, out as `attention_flash` gives it for the same operands and
parameters: `P = exp(s - lse)`, `dP = dout v^T`, `dS = P (dP - rowsum(P dP))`, times `1 - tanh^2` where
scores are capped; `dV = P^T dout`, `dQ = scale dS k`, `dK = scale dS^T q`. dK and dV are summed over
the query heads of a kv head. A query that sees no key, and a key that no query sees, contributes
nothing. The live dispatch has one node per gradient: FusedOpId 22 (dQ), 23 (dK) and 24 (dV), which
share the parameters FlashAttnBackward; each has an entry below, and the same bits as the bundle.
)";

const char kTiled[] = R"(
Tiles of query rows sweep blocks of keys with a running maximum and sum; no row of scores is ever
stored whole. Few rows per kv head take other ways (fast_paths): they stream K and V once for all of
them, or have their keys split in fixed pieces. Which way, and how it is cut, depends on that
sequence's own lengths and the head counts only, never on threads or on the batch. Sums are in f32 (f64 for F64);
BF16 is multiplied by AMX tiles or dot products where the machine has them. Scratch, aligned to 64
bytes, is O(block) per thread and, where keys are split, one partial row of f32 (f64) for each part
of a row.
)";

const char kScalar[] = R"(
The oracle: plain loops, one row of scores at a time, a softmax that subtracts the row's maximum, every
operation rounded to the element type. Right before fast; the same on every machine.
)";

const char kTiledBackward[] = R"(
The forward runs first for its out and lse (a caller of the C++ interface may hand them in), then tiles
of queries and keys recompute P in a fixed order that does not depend on threads. Sums are in f32 (f64
for F64), in a workspace of the gradients' size where the dtype is narrower.
)";

const char kLayouts[] = R"(
Operands may have any strides but negative ones; of the ones of rank 4 the innermost must be 1. data is
aligned to its element, more is not asked for and changes no bit. Outputs are contiguous and share no
memory with an input. Strict calls are held to this block; the C++ interface (attention.h, paged.h,
backward.h) takes more: head sizes of V unlike those of K, bias, boolean masks, sinks, lengths and
positions per sequence, packed batches, strided outputs, the log-sum-exp.
)";

void AddProviderRows(const Contract& contract, std::vector<Difference>* rows) {
  const bool is_other_kernel =
      contract.kernel == "attention_paged" || contract.kernel == "attention_backward_naive";
  if (is_other_kernel) {
    rows->push_back({"kernel", "the reference's", "a sibling at the same key",
                     IsNaive(contract) ? "the oracle of the tiled kernel has its name from there"
                                       : "the reference has an oracle only"});
  }
  rows->push_back({"blurb", "the reference's", "ours", "another implementation"});
  rows->push_back({"kernel_source", "reference-oracle", "flashlane", "another provider"});
  rows->push_back({"entry_point", "the reference's", "ours", "another link registry"});
  rows->push_back({"kernel_revision_hash", "auto",
                   "a hash over the kernel's sources and what orders its sums",
                   "computed when the library is built; revision_base is not in it: it changes "
                   "when the sources do, and only then"});
}

void AddLayoutRows(std::vector<Difference>* rows) {
  rows->push_back({"accept.inputs.*.layout.contiguous", "required", "accepted",
                   "the kernels take strides; nothing is copied"});
  rows->push_back({"accept.inputs.*.layout.strided", "rejected", "accepted",
                   "any outer strides; the innermost of rank 4 is 1 (layout.inner_stride)"});
  rows->push_back({"accept.inputs.*.layout.broadcast_stride0", "rejected", "accepted",
                   "a stride of 0 is a stride"});
  rows->push_back({"accept.inputs.*.layout.start_offset", "rejected", "accepted",
                   "a view may begin at any element"});
  rows->push_back({"caps.awkward_layout_strategy", "requires_contiguous", "handles_strided",
                   "follows from the layouts"});
}

}  // namespace

std::string BlurbOf(const Contract& contract) {
  if (contract.operation == Operation::kForward) {
    return IsNaive(contract) ? "Scalar SDPA oracle, one row of scores at a time; stable softmax; "
                               "GQA/causal/window/softcap/ALiBi/k_len; fully-masked row -> zero."
                             : "FlashAttention-2 forward on SIMD registers, chosen at run time; "
                               "GQA/causal/window/softcap/ALiBi/k_len; fully-masked row -> zero.";
  }
  if (contract.operation == Operation::kPaged) {
    return (IsNaive(contract) ? "Scalar oracle of attention" : std::string("Attention")) +
           " over a paged KV cache; per-sequence block table and context_lens; implicit causal "
           "mask at context_lens[b]-Sq+i.";
  }
  const std::string of = contract.gradient < 0 ? "" : " alone";
  return (IsNaive(contract) ? "Scalar oracle of attention's gradients" : "Attention backward") +
         std::string(" by recompute; returns ") + GradientName(contract) + of +
         "; dK/dV summed over the GQA group.";
}

std::string ProseOf(const Contract& contract) {
  if (contract.gradient >= 0) {
    return std::string("\n") + GradientName(contract) +
           " of the bundle above, with the same bits (" + "FusedOpId " +
           std::to_string(contract.fused_op_id) + ").\n";
  }
  switch (contract.operation) {
    case Operation::kPaged:
      return std::string(kPagedMeaning) + (IsNaive(contract) ? kScalar : kTiled) + kLayouts;
    case Operation::kBackward:
      return std::string(kBackwardMeaning) + (IsNaive(contract) ? kScalar : kTiledBackward) +
             kLayouts;
    default:
      return std::string(kForwardMeaning) + (IsNaive(contract) ? kScalar : kTiled) + kLayouts;
  }
}

std::string PrecisionNotesOf(const Contract& contract) {
  const std::string shared =
      " Same bits on repeat, for any number of threads, and for a sequence alone or in a batch. "
      "No bound holds for all inputs; measured_max_absolute is of standard normal operands, "
      "300 keys.";
  if (IsNaive(contract)) {
    return "Math in T, rounded after every operation; precision-sensitive at BF16/F16. Same bits "
           "on "
           "every target." +
           shared;
  }
  return "Sums in f32 (f64 for F64); BF16 weights are rounded to BF16 where the target multiplies "
         "BF16. Targets differ in the last bits." +
         shared;
}

std::vector<Difference> DifferencesOf(const Contract& contract) {
  std::vector<Difference> rows;
  AddProviderRows(contract, &rows);
  AddLayoutRows(&rows);
  if (contract.operation == Operation::kForward) {
    rows.push_back({"accept.op_params.fields.k_len.note", "its words", "ours",
                    "the same meaning: None is all of Sk"});
  }
  if (contract.operation == Operation::kPaged) {
    rows.push_back({"accept.inputs.block_table.dtypes", "U32", "U32, I32",
                    "servers keep tables in I32; a negative entry is refused"});
    rows.push_back({"accept.inputs.context_lens.dtypes", "U32", "U32, I32, I64", "likewise"});
    rows.push_back({"cost.bytes_moved", "q or out once", "q and out once each",
                    "both move; as the reference's attention_naive counts them"});
  }
  if (contract.operation == Operation::kBackward) {
    rows.push_back({"accept.inputs.do_grad.name", "do_grad", "dout",
                    "the name of the C++ interface; operands go by position"});
    rows.push_back({"cost.flops", "12 b hq sq sk d",
                    IsNaive(contract) ? "10 b hq sq sk d" : "14 b hq sq sk d",
                    IsNaive(contract) ? "S, dP, dV, dQ, dK, two flops each per pair and element"
                                      : "the forward's two products, then S, dP, dV, dQ, dK"});
  }
  rows.push_back({"caps.fast_paths", "its branches", "ours", "another implementation"});
  rows.push_back({"precision.notes", "its words", "ours", "another implementation"});
  return rows;
}

}  // namespace flashlane::fkc
