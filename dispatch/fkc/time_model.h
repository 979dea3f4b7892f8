// What the time of a call is taken to be linear in: the one place that says how work is counted for
// Coefficients. Plain visible_flops and bytes_moved miss half of the time of small and causal
// calls.
#ifndef FLASHLANE_DISPATCH_FKC_TIME_MODEL_H_
#define FLASHLANE_DISPATCH_FKC_TIME_MODEL_H_

#include <cstdint>

#include "dispatch/registry.h"
#include "flashlane/fkc.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"

namespace flashlane::fkc {

struct TimeTerms {
  double tiles = 0;         // of query rows and their keys, with what it takes to begin and end one
  double flops = 0;         // of the pairs that whole panels of rows compute, and of the softmax
  double bytes = 0;         // q and out once, K and V once for every tile of rows
  double stream_flops = 0;  // of sequences that stream
  double stream_bytes = 0;  // likewise, K and V once

  void Add(const TimeTerms& other, double times);
};

double Nanoseconds(const Coefficients& coefficients, const TimeTerms& terms);

// Of a call on one thread: O(1) where sequences are alike, else O(batch).
TimeTerms ForwardTerms(const kernels::ForwardArgs& args, const KernelRow& row, int64_t target);
// What it adds to the forward that it runs where it needs one's results.
TimeTerms BackwardTerms(const kernels::BackwardArgs& args, const KernelRow& row, int64_t target);

// Of a call by arrays, for the target it would get; as EstimateCost.
Status EstimateTerms(const char* symbol, const KernelCall& call, TimeTerms* terms);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_TIME_MODEL_H_
