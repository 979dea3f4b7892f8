// The public headers, in C++17 and on their own: this file compiles or the test build fails.
#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/export.h"
#include "flashlane/flat.h"
#include "flashlane/info.h"
#include "flashlane/kv_cache.h"
#include "flashlane/paged.h"
#include "flashlane/rope.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

static_assert(__cplusplus < 202002L, "this file must be compiled as C++17");

int main() {
  float q = 1, k = 1, v = 3, out = 0;
  flashlane::AttentionInputs inputs;
  inputs.q = flashlane::ConstTensorView(&q, flashlane::DType::kF32, {1, 1, 1, 1});
  inputs.k = flashlane::ConstTensorView(&k, flashlane::DType::kF32, {1, 1, 1, 1});
  inputs.v = flashlane::ConstTensorView(&v, flashlane::DType::kF32, {1, 1, 1, 1});
  flashlane::AttentionOutputs outputs;
  outputs.out = flashlane::TensorView(&out, flashlane::DType::kF32, {1, 1, 1, 1});
  if (!flashlane::Attention(inputs, {}, outputs).ok() || out != 3) return 1;
  float dout = 2, dv = 0;
  flashlane::BackwardInputs backward;
  backward.forward = inputs;
  backward.dout = flashlane::ConstTensorView(&dout, flashlane::DType::kF32, {1, 1, 1, 1});
  flashlane::BackwardOutputs gradients;
  gradients.dv = flashlane::TensorView(&dv, flashlane::DType::kF32, {1, 1, 1, 1});
  return flashlane::AttentionBackward(backward, {}, gradients).ok() && dv == 2 ? 0 : 1;
}
