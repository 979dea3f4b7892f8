// The tensors of a shape, filled with numbers that can be made again.
#ifndef FLASHLANE_BENCH_OPERANDS_H_
#define FLASHLANE_BENCH_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "bench/shapes.h"
#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/paged.h"
#include "flashlane/tensor.h"
#include "hwy/aligned_allocator.h"

namespace flashlane::bench {

// Reproducible numbers in (-1, 1) with the variance of 4 uniform ones: speed does not depend on
// more.
class Random {
 public:
  float Next() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
      sum += static_cast<float>(state_ >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 0.5f;
  }

 private:
  uint64_t state_ = 1;
};

struct Tensor {
  Tensor() = default;
  // Zeros where `random` is null.
  Tensor(DType dtype, std::initializer_list<int64_t> shape, Random* random);
  // A boolean mask that shows three keys of four.
  static Tensor Mask(std::initializer_list<int64_t> shape, Random* random);

  hwy::AlignedVector<std::byte> bytes;  // as frameworks align tensors: to lines at least
  TensorView view;
};

struct Operands {
  // Of decode shapes the tokens of k and v lie as servers keep them: all heads of one together, in
  // one run per sequence or, where `paged`, in shuffled blocks. Of backward shapes out and lse are
  // kept: Prepare computes them.
  Operands(const Shape& shape, DType dtype, bool paged);

  // What Call needs beforehand and is not measured.
  Status Prepare(const Shape& shape, const ExecOptions& options) const;
  Status Call(const Shape& shape, const ExecOptions& options) const;
  double Flops(const Shape& shape) const;
  // q, k, v, bias, mask and out once; and of a backward lse, dout, dq, dk and dv.
  double bytes() const;
  // Live k and v once.
  double kv_bytes() const { return static_cast<double>(k.bytes.size() + v.bytes.size()); }

  Random random;
  Tensor q, k, v, out, bias, mask, slopes, block_table, context_lens;
  Tensor lse, dout, dq, dk, dv;  // of backward shapes
  bool paged;
  AttentionInputs inputs;
  PagedInputs paged_inputs;
  AttentionOutputs outputs;
  BackwardInputs backward_inputs;
  BackwardOutputs gradients;
};

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_OPERANDS_H_
