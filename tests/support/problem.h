// Random attention problems: inputs that are exact in the problem's dtype, in the memory layouts
// that callers have, with the truth and the same-precision evaluation that tolerances are taken
// against.
#ifndef FLASHLANE_TESTS_SUPPORT_PROBLEM_H_
#define FLASHLANE_TESTS_SUPPORT_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashlane/attention.h"

namespace flashlane::testing {

// How q, k, v and out lie in memory.
enum class Layout {
  kBhsd,    // [B, H, S, D], contiguous
  kBshd,    // [B, S, H, D] seen as [B, H, S, D]
  kPacked,  // q, k, v slices of one [B, S, Hq + 2 Hkv, D]; needs Sq == Sk, D == Dv; else like
            // kPadded
  kPadded,  // rows, heads and batches further apart than they are long, K unlike V
};

struct ProblemSpec {
  int64_t batch = 1, num_heads = 1, num_kv_heads = 1;
  int64_t seqlen_q = 1, seqlen_k = 1, head_dim = 1, head_dim_v = 1;
  AttentionParams params;
  bool alibi = false, sinks = false, per_sequence_k_len = false, per_sequence_q_start = false;
  // Shape of bias and mask, as bits: 1 batch, 2 heads, 4 queries, 8 keys are not broadcast. -1 =
  // absent.
  int bias_dims = -1, mask_dims = -1;
  bool f32_terms = false;  // bias, sinks and slopes in F32 whatever the dtype
  Layout layout = Layout::kBhsd;
  double magnitude = 1.0;  // standard deviation of q and k
  uint64_t seed = 1;

  std::string ToString() const;
};

// A tensor that owns its memory.
struct OwnedTensor {
  std::vector<std::byte> storage;
  ConstTensorView view;  // its data member is not kept up to date: use View()

  // Contiguous tensor of `values` rounded to `dtype`.
  ConstTensorView View() const;  // over storage, also after a copy or a move

  static OwnedTensor Of(const std::vector<double>& values, DType dtype,
                        std::initializer_list<int64_t> shape);
  // A view of the same shape and values in another memory layout.
  OwnedTensor WithStrides(std::initializer_list<int64_t> strides) const;
  // Contiguous values, whatever the layout.
  std::vector<double> Values() const;
  double At(std::initializer_list<int64_t> index) const;
  void Set(std::initializer_list<int64_t> index, double value);
};

// A tensor of 0xA5 bytes; of the view only shape and strides count.
OwnedTensor Poisoned(DType dtype, const ConstTensorView& shape_and_strides);
// A tensor for results of [B, H, S, width], in the memory layout of `layout`'s outputs.
OwnedTensor PoisonedRows(DType dtype, std::initializer_list<int64_t> shape, Layout layout);
TensorView Writable(OwnedTensor& tensor);

// Outputs of one run, and the same as doubles, [B, Hq, Sq, Dv] and [B, Hq, Sq].
struct Result {
  Status status;
  OwnedTensor out_tensor;
  OwnedTensor lse_tensor;
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<uint8_t> bits;  // the raw bytes of both, for exact comparison
};

class Problem {
 public:
  Problem(const ProblemSpec& spec, DType dtype);

  const ProblemSpec& spec() const { return spec_; }
  DType dtype() const { return dtype_; }

  // Mutable, so that a test may plant values.
  OwnedTensor q, k, v, alibi_slopes, bias, mask, sinks, k_len, q_start;

  AttentionInputs Inputs() const;
  // Runs into freshly poisoned outputs (0xA5 bytes) in the problem's layout.
  Result Run(const ExecOptions& options) const;

 private:
  ProblemSpec spec_;
  DType dtype_;
};

// All targets a kernel x dtype row can run on here: the supported ones, or {"scalar"}.
std::vector<std::string> TargetsOf(Kernel kernel);

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_PROBLEM_H_
