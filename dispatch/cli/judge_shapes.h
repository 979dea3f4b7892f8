// The shapes that kernels are judged by: those that coefficients are fitted to, and others that
// they must predict.
#ifndef FLASHLANE_DISPATCH_CLI_JUDGE_SHAPES_H_
#define FLASHLANE_DISPATCH_CLI_JUDGE_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/registry.h"

namespace flashlane::cli {

struct JudgeShape {
  std::int64_t batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim;
  bool causal = false;  // paged calls always are, with their queries last
  bool held_out = false;

  std::string Name() const;  // "b1 h8/2 q1 k2048 d128 causal"
};

// Of a row, less of them where `quick`.
std::vector<JudgeShape> ShapesFor(const KernelRow& row, bool quick);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_JUDGE_SHAPES_H_
