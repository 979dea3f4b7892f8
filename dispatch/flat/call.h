// What the flat modules share: checks of buffers, what a call needs, the way to the core.
#ifndef FLASHLANE_DISPATCH_FLAT_CALL_H_
#define FLASHLANE_DISPATCH_FLAT_CALL_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "dispatch/cost.h"
#include "flashlane/attention.h"
#include "flashlane/flat/contract.h"
#include "flashlane/flat/sdpa.h"

namespace flashlane::flat {

// A buffer and the elements that the call needs of it.
struct Needed {
  const void* data;
  int64_t size;
  uint64_t elements;
  size_t element_bytes;

  uint64_t bytes() const { return SaturatingProduct(elements, element_bytes); }
};

template <typename T>
Needed Need(const FlatBuffer<T>& buffer, uint64_t elements) {
  return {buffer.data, buffer.size, elements, sizeof(T)};
}
// Of one that may be left out.
template <typename T>
Needed NeedIfPresent(const FlatBuffer<T>& buffer, uint64_t elements) {
  return Need(buffer, buffer.present() ? elements : 0);
}

// Null, short, misaligned, overlapping. An output may be exactly its own input, `in_place`.
AttnStatus CheckBuffers(std::initializer_list<Needed> inputs, std::initializer_list<Needed> outputs,
                        const void* in_place = nullptr);

uint64_t BytesOf(std::initializer_list<Needed> buffers);

// Elements of a call's buffers, in 62 bits of bytes where the sizes have been checked.
struct Elements {
  explicit Elements(const FlatDims& dims);
  uint64_t q, kv, rows;
  uint64_t pairs;  // of one head; may have saturated
};

AttnStatus CheckDims(const FlatDims& dims);
// Of a bias or mask: both numbers of tokens, and the elements of the matrix.
AttnStatus CheckTokens(int64_t n_tok_q, int64_t n_tok_k);
bool SizeFits(uint64_t elements);

// Queries times keys that causal leaves. Saturates.
uint64_t VisiblePairs(const FlatDims& dims, bool causal);
uint64_t ForwardFlopsOf(const FlatDims& dims, bool causal);

// Buffers of a forward pass.
struct ForwardBuffers {
  Needed q, k, v, bias, out, lse;
};
ForwardBuffers BuffersOf(const FlatInputs& inputs, const FlatDims& dims,
                         const FlatOutputs& outputs = {});

// Sizes, and the matrix of the bias where there is one; scale.
AttnStatus CheckSizesAndScale(const FlatInputs& inputs, const FlatDims& dims,
                              const FlatParams& params);
// Everything about one forward pass that allocates `own_bytes`.
AttnStatus CheckForwardCall(const FlatInputs& inputs, const FlatDims& dims,
                            const FlatParams& params, const FlatOutputs& outputs,
                            const FlatOptions& options, uint64_t own_bytes = 0);
// As above for diagnostics, which run `passes` of them into buffers of their own.
AttnStatus CheckInputsOnly(const FlatInputs& inputs, const FlatDims& dims,
                           const FlatOptions& options, uint64_t flops, uint64_t own_bytes);

// Views of checked buffers.
AttentionInputs ViewsOf(const FlatInputs& inputs, const FlatDims& dims);
AttentionOutputs ViewsOf(const FlatOutputs& outputs, const FlatDims& dims);
AttentionParams ParamsOf(const FlatParams& params);
ExecOptions CoreOptions(const FlatOptions& options, Kernel kernel);

// What the core can still find fault with is not in the arguments.
AttnStatus FromCore(const Status& status);

// One forward pass of the core, all checked.
AttnStatus RunForward(const FlatInputs& inputs, const FlatDims& dims, const FlatParams& params,
                      const FlatOutputs& outputs, const ExecOptions& options);

// Only allocations can throw, and only before any output is touched.
template <typename Function>
AttnStatus WithoutThrowing(const Function& function) noexcept {
  try {
    return function();
  } catch (...) {
    return ATTN_OUT_OF_MEMORY;
  }
}

// Results in memory of their own.
struct OwnOutputs {
  explicit OwnOutputs(const FlatDims& dims)
      : out(Elements(dims).q, 0.0), lse(Elements(dims).rows, 0.0) {}
  operator FlatOutputs() { return {out, lse}; }  // NOLINT: implicit on purpose
  static uint64_t BytesFor(const FlatDims& dims) {
    const Elements elements(dims);
    return SaturatingProduct(SaturatingSum(elements.q, elements.rows), sizeof(double));
  }
  std::vector<double> out, lse;
};

}  // namespace flashlane::flat

#endif  // FLASHLANE_DISPATCH_FLAT_CALL_H_
