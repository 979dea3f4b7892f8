#include "dispatch/fkc/facts.h"

#include <string>

#include "kernels/key_splits.h"

namespace flashlane::fkc {
namespace {

const char kHeads[] = "divisible(q.dim[1], k.dim[1])";

std::vector<Operand> DenseOperands() {
  return {
      {"q", "[B, Hq, Sq, D]", 4, {"dim[1]>=1", "dim[3]>=1"}},
      {"k", "[B, Hkv, Sk, D]", 4, {kHeads, "dim[0]=q.dim[0]", "dim[3]=q.dim[3]"}},
      {"v", "[B, Hkv, Sk, D]", 4, {"same_as=k"}},
  };
}

Operand Slopes() { return {"alibi_slopes", "[Hq]", 1, {"dim[0]=q.dim[1]"}, true}; }

std::string Products(int64_t d, int64_t dv, const char* width_v) {
  const auto times = [](int64_t n, const char* what) {
    return n == 1 ? std::string(what) : std::to_string(n) + " * " + what;
  };
  return "(" + times(d, "d") + " + " + times(dv, width_v) + ")";
}

const char kRows[] = "b * hq * sq";
const char kOfV[] = "v.dim[3]";
const char kOfPool[] = "v_cache.dim[3]";

Formulas ForwardFormulas() {
  const auto flops = [](const char* keys) {
    return std::string("2 * ") + kRows + " * " + keys + " * " + Products(1, 1, kOfV);
  };
  const auto bytes = [](const char* keys) {
    return std::string("b * (hq * sq + hkv * ") + keys + ") * " + Products(1, 1, kOfV) +
           " * dtype_bytes";
  };
  return {flops("sk"), flops("k_len"), bytes("sk"), bytes("k_len"),
          "b * hq * sq * v.dim[3] * dtype_bytes"};
}

Formulas PagedFormulas() {
  // Tokens of all sequences: at capacity, and live.
  const char capacity[] = "b * (block_table.dim[1] * block_size)";
  const char live[] = "sum(context_lens)";
  const auto flops = [](const char* keys) {
    return std::string("2 * hq * sq * ") + keys + " * " + Products(1, 1, kOfPool);
  };
  const auto bytes = [](const char* keys) {
    return std::string("(") + kRows + " + " + keys + " * hkv) * " + Products(1, 1, kOfPool) +
           " * dtype_bytes";
  };
  return {flops(capacity), flops(live), bytes(capacity), bytes(live),
          "b * hq * sq * v_cache.dim[3] * dtype_bytes"};
}

// Products of width D and Dv per pair: S (D); dP (Dv) for dq and dk; dq, dk (D each), dv (Dv). The
// tiled kernel is not given the forward's results and runs it first: D and Dv.
std::string PairProducts(const Contract& contract) {
  const bool bundle = contract.gradient < 0;
  const bool dq = bundle || contract.gradient == 0, dk = bundle || contract.gradient == 1;
  const bool dv = bundle || contract.gradient == 2;
  const bool runs_forward = contract.implementation == Kernel::kFlash;
  return Products(1 + dq + dk + runs_forward, (dq || dk) + dv + runs_forward, kOfV);
}

Formulas BackwardFormulas(const Contract& contract) {
  const auto flops = [&](const char* keys) {
    return std::string("2 * ") + kRows + " * " + keys + " * " + PairProducts(contract);
  };
  const char* const sizes[] = {"hq * sq * d", "hkv * sk * d", "hkv * sk * v.dim[3]"};
  std::string outputs;
  for (int g = 0; g < 3; ++g) {
    if (contract.gradient >= 0 && contract.gradient != g) continue;
    outputs += (outputs.empty() ? "" : " + ") + std::string(sizes[g]);
  }
  const auto bytes = [&](const char* keys) {
    return std::string("b * (hq * sq + hkv * ") + keys + ") * " + Products(1, 1, kOfV) +
           " * dtype_bytes + b * (" + outputs + ") * dtype_bytes";
  };
  return {flops("sk"), flops("k_len"), bytes("sk"), bytes("k_len"),
          "b * (" + outputs + ") * dtype_bytes"};
}

// The largest error of any element of any output over the problems and all targets of
// tests/fkc_run_test.cc (standard normal operands, ALiBi, 300 keys; the largest element is about
// 2.4, of gradients 4), against the oracle in F64, rounded up to about twice that. F32, F64, BF16,
// F16. The oracle's own F64 is that of the vector kernel: their distance.
constexpr double kVectorForward[4] = {6e-6, 1.5e-14, 1.6e-2, 1.6e-3};
constexpr double kScalarForward[4] = {6e-6, 1.5e-14, 5e-1, 5e-2};
constexpr double kVectorBackward[4] = {1.2e-5, 3e-14, 2e-2, 2.5e-3};
constexpr double kScalarBackward[4] = {1e-5, 3e-14, 9e-1, 7e-2};

}  // namespace

std::vector<Operand> OperandsOf(Operation operation) {
  std::vector<Operand> operands;
  if (operation == Operation::kPaged) {
    operands = {
        {"q", "[B, Hq, Sq, D]", 4, {"dim[1]>=1", "dim[3]>=1"}},
        {"k_cache",
         "[num_blocks, block_size, Hkv, D]",
         4,
         {"divisible(q.dim[1], k_cache.dim[2])", "dim[1]>=1", "dim[3]=q.dim[3]"},
         false,
         Fdx::kPool},
        {"v_cache", "[num_blocks, block_size, Hkv, D]", 4, {"same_as=k_cache"}, false, Fdx::kPool},
        {"block_table", "[B, max_blocks_per_seq]", 2, {"dim[0]=q.dim[0]"}},
        {"context_lens", "[B]", 1, {"dim[0]=q.dim[0]"}, false, Fdx::kLengths},
    };
  } else {
    operands = DenseOperands();
  }
  if (operation == Operation::kBackward) {
    operands.push_back({"dout", "[B, Hq, Sq, D]", 4, {"same_as=q"}});
  }
  operands.push_back(Slopes());
  return operands;
}

std::vector<Field> FieldsOf(Operation operation) {
  const Field scale{"softmax_scale", FieldKind::kF32, "finite", ""};
  const Field softcap{"softcap", FieldKind::kOptionF32, "finite and > 0", "None: off"};
  if (operation == Operation::kPaged) {
    return {scale,
            {"block_size", FieldKind::kUsize, "== k_cache.dim[1] == v_cache.dim[1]", ""},
            softcap};
  }
  std::vector<Field> fields = {
      scale,
      {"causal", FieldKind::kBool, "", "query i sees keys j <= i"},
      {"window_size_left", FieldKind::kOptionUsize, "", "inclusive: j + left >= i; None: no limit"},
      {"window_size_right", FieldKind::kOptionUsize, "",
       "inclusive: j <= i + right; None: no limit"},
      softcap};
  if (operation == Operation::kForward) {
    fields.push_back(
        {"k_len", FieldKind::kOptionDynScalar, "<= k.dim[2]",
         "None: all of Sk; rides SymEnv when Some; keys at or past it are never read"});
  }
  return fields;
}

std::vector<Result> ResultsOf(Operation operation) {
  if (operation != Operation::kBackward) return {{"out", "q", "[B, Hq, Sq, D]", ""}};
  return {{"dq", "q", "[B, Hq, Sq, D]", ""},
          {"dk", "k", "[B, Hkv, Sk, D]", "summed over the query heads of the kv head"},
          {"dv", "v", "[B, Hkv, Sk, D]", "summed over the query heads of the kv head"}};
}

FusedOp FusedOpOf(Operation operation, int gradient) {
  static constexpr FusedOp kGradients[] = {
      {"FLASH_ATTN_BACKWARD_Q", 22}, {"FLASH_ATTN_BACKWARD_K", 23}, {"FLASH_ATTN_BACKWARD_V", 24}};
  if (operation == Operation::kPaged) return {"PAGED_ATTN", 13};
  if (operation == Operation::kForward) return {"FLASH_ATTN", 12};
  return kGradients[gradient < 0 ? 0 : gradient];
}

const char* VariantOf(Operation operation) {
  if (operation == Operation::kPaged) return "PagedAttn";
  return operation == Operation::kBackward ? "FlashAttnBackward" : "FlashAttn";
}

Formulas FormulasOf(const Contract& contract) {
  if (contract.operation == Operation::kPaged) return PagedFormulas();
  if (contract.operation == Operation::kBackward) return BackwardFormulas(contract);
  return ForwardFormulas();
}

std::vector<FastPath> FastPathsOf(const Contract& contract) {
  const bool paged = contract.operation == Operation::kPaged;
  if (contract.implementation == Kernel::kNaive) {
    return {{"softcap == false", "no tanh per score"}};
  }
  std::vector<FastPath> paths;
  if (!paged) {
    paths = {{"causal == false", "no key block needs the causal mask"},
             {"causal == true", "key blocks that no query of a tile sees are skipped"}};
  }
  if (contract.operation == Operation::kBackward) {
    paths.push_back({"softcap == false", "skips the factor 1 - tanh^2"});
    return paths;
  }
  paths.push_back(
      {"softcap == false",
       "no tanh; without ALiBi the scale and log2(e) are folded into q or one product"});
  const std::string rows = std::string("sq * hq <= ") + "%" + " * hkv";
  const auto at_most = [&rows](int64_t count) {
    std::string text = rows;
    return text.replace(text.find('%'), 1, std::to_string(count));
  };
  paths.push_back({at_most(kernels::kStreamRows),
                   "from " + std::to_string(kernels::kMinStreamKeys) +
                       " keys on, K and V are read once for all query heads of a kv head"});
  paths.push_back({at_most(kernels::kSplitRows),
                   "from " + std::to_string(kernels::kSplitGranule + 1) +
                       " keys on, they are split among threads and merged in a fixed order"});
  return paths;
}

const double* MeasuredMaxAbsolute(const Contract& contract) {
  const bool vectorised = contract.implementation == Kernel::kFlash;
  if (contract.operation == Operation::kBackward) {
    return vectorised ? kVectorBackward : kScalarBackward;
  }
  return vectorised ? kVectorForward : kScalarForward;
}

}  // namespace flashlane::fkc
