// What the flat modules check before they call the core, and how the core's answer becomes theirs.
#ifndef FLASHLANE_DISPATCH_FLAT_CHECKS_H_
#define FLASHLANE_DISPATCH_FLAT_CHECKS_H_

#include <cstdint>
#include <initializer_list>

#include "flashlane/flat.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

namespace flashlane::flat {

// The product of sizes; kSizeOverflow where no buffer of doubles could have as many elements.
AttnStatus Elements(std::initializer_list<std::int64_t> sizes, std::int64_t* product);

// A buffer and the elements that it must have.
struct Needed {
  const void* data;
  std::int64_t size;
  std::int64_t needed;
  bool writes;

  template <typename Element>
  static Needed Input(const BasicBuffer<Element>& buffer, std::int64_t needed) {
    return {buffer.data, buffer.size, needed, false};
  }
  template <typename Element>
  static Needed Output(const BasicBuffer<Element>& buffer, std::int64_t needed) {
    return {buffer.data, buffer.size, needed, true};
  }
};
// Elements take eight bytes each. Outputs may overlap nothing.
AttnStatus CheckBuffers(std::initializer_list<Needed> buffers);

// Sizes of the operands of a call whose dimensions are right.
struct FlatSizes {
  std::int64_t q = 0, k = 0, bias = 0, lse = 0;
  std::uint64_t bytes = 0;  // of operands and results of a forward
};
FlatSizes SizesOf(const FlatAttention& in);

// What a function over FlatAttention takes beside its operands and results: forwards, copies of out
// and lse, copies of k, rows of scores; and its tile, where it has one.
struct Work {
  std::uint64_t passes = 1;
  std::uint64_t results = 0;
  std::uint64_t key_copies = 0;
  std::uint64_t score_rows = 0;
  std::int64_t tile = 1;
};
// Dimensions, budget and scalars; CheckForward: and buffers.
AttnStatus CheckWork(const FlatAttention& in, const Work& work, const WorkBudget& budget);
AttnStatus CheckForward(const FlatAttention& in, const Work& work, const WorkBudget& budget,
                        const FlatOutputs& to);

// Of a core call whose operands were checked: what is left is memory and the environment.
AttnStatus FromCore(const Status& status);

inline ConstTensorView InputView(const ConstBuffer& from, std::int64_t tokens, std::int64_t heads,
                                 std::int64_t head_dim) {
  return ConstTensorView::FromBshd(from.data, DType::kF64, 1, tokens, heads, head_dim);
}
inline TensorView OutputView(double* to, std::int64_t tokens, std::int64_t heads,
                             std::int64_t head_dim) {
  return TensorView::FromBshd(to, DType::kF64, 1, tokens, heads, head_dim);
}

// The core's operands and parameters of a checked call.
AttentionInputs CoreInputs(const FlatAttention& in);
AttentionParams CoreParams(const FlatAttention& in);

}  // namespace flashlane::flat

#endif  // FLASHLANE_DISPATCH_FLAT_CHECKS_H_
