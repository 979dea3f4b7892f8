// Random paged problems, and the same keys and values laid out contiguously. Whatever a paged call
// must not read holds NaN (slots, blocks) or points beyond the pool (table entries).
#ifndef FLASHLANE_TESTS_SUPPORT_PAGED_H_
#define FLASHLANE_TESTS_SUPPORT_PAGED_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashlane/attention.h"
#include "flashlane/paged.h"
#include "tests/support/problem.h"

namespace flashlane::testing {

// How the pools lie in memory.
enum class PoolLayout {
  kDense,        // [num_blocks, block_size, Hkv, D], one pool after the other
  kInterleaved,  // K and V of a block beside each other in one pool
  kValueInKey,   // V is the end of each row of K, as in MLA
  kHeadsFirst,   // [num_blocks, Hkv, block_size, D], with gaps
};

struct PagedSpec {
  std::vector<int64_t> context_lens = {20};
  std::vector<int64_t> seqlens_q = {1};  // alike unless packed
  bool packed = false;
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 12, head_dim_v = 12, block_size = 16;
  AttentionParams params;
  bool alibi = false, sinks = false, mask = false, f32_terms = false;
  bool shared = false;  // every sequence begins with the blocks of the first, as far as both go
  PoolLayout layout = PoolLayout::kDense;
  DType table_dtype = DType::kU32, lens_dtype = DType::kU32;
  uint64_t seed = 1;

  int64_t batch() const { return static_cast<int64_t>(context_lens.size()); }
  std::string ToString() const;
};

class PagedProblem {
 public:
  PagedProblem(const PagedSpec& spec, DType dtype);

  const PagedSpec& spec() const { return spec_; }
  DType dtype() const { return dtype_; }
  int64_t num_blocks() const { return num_blocks_; }

  // Mutable, so that a test may plant values.
  std::vector<std::byte> pool;  // K and V
  OwnedTensor q, block_table, context_lens, cu_seqlens_q, alibi_slopes, sinks, mask;

  ConstTensorView KCache() const { return View(k_layout_); }
  ConstTensorView VCache() const { return View(v_layout_); }
  PagedInputs Inputs() const;

  // Bytes of `pool` from its beginning to the end of its last live slot.
  std::size_t LiveBytes() const;
  // The block that holds a live token.
  int64_t BlockOf(int64_t b, int64_t token) const;

  struct Outputs {
    Status status;
    OwnedTensor out, lse;
  };
  Outputs Run(const ExecOptions& options) const { return Run(Inputs(), options); }
  Outputs Run(const PagedInputs& inputs, const ExecOptions& options) const;

  // Sequence b alone by Attention over contiguous keys: out [1, Hq, Sq, Dv], lse [1, Hq, Sq].
  // Positions are not clamped: with `row` >= 0 that query only, at position max(start + row, 0).
  Outputs RunContiguous(int64_t b, const ExecOptions& options, int64_t row = -1) const;

  // Bytes of out and lse of query i of sequence b, of a paged and of a contiguous result.
  std::vector<std::byte> RowBits(const Outputs& outputs, int64_t b, int64_t head, int64_t i) const;
  static std::vector<std::byte> ContiguousRowBits(const Outputs& outputs, int64_t head, int64_t i);

 private:
  struct Pool {
    int64_t offset = 0;  // elements
    ConstTensorView view;
  };
  void LayOut();
  void FillTable(std::vector<int64_t> order);
  void FillPools(uint64_t seed);
  ConstTensorView View(const Pool& layout) const;
  std::byte* Slot(const Pool& layout, int64_t b, int64_t token, int64_t head) const;
  OwnedTensor Gather(const Pool& layout, int64_t b) const;
  OwnedTensor ExpandedMask(int64_t b, int64_t first, int64_t count) const;

  PagedSpec spec_;
  DType dtype_;
  int64_t num_blocks_ = 0;
  int64_t max_blocks_ = 0;
  std::vector<int64_t> cu_;  // first query of each sequence
  std::vector<std::vector<int64_t>> blocks_;
  Pool k_layout_, v_layout_;
};

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_PAGED_H_
