// The public headers, in C++17 and on their own: this file compiles or the test build fails.
#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/export.h"
#include "flashlane/fkc.h"
#include "flashlane/flat.h"
#include "flashlane/info.h"
#include "flashlane/kv_cache.h"
#include "flashlane/paged.h"
#include "flashlane/rope.h"
#include "flashlane/status.h"
#include "flashlane/tensor.h"

#include <vector>

static_assert(__cplusplus < 202002L, "this file must be compiled as C++17");

// Flat buffers come from containers and from pointers; what is left out draws no warning.
bool FlatWorks() {
  using namespace flashlane::flat;
  const std::vector<double> q = {1}, k = {1};
  const double v[1] = {3};
  std::vector<double> out(1);
  const AttnStatus status = sdpa_forward_flat({q, k, {v, 1}}, {1, 1, 1, 1, 1}, {}, {out});
  return status == ATTN_OK && out[0] == 3;
}

int main() {
  if (!FlatWorks()) return 1;
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
  if (!flashlane::AttentionBackward(backward, {}, gradients).ok() || dv != 2) return 1;
  const flashlane::fkc::KernelRef run = flashlane::fkc::Resolve("flashlane::fkc::attention_naive");
  const flashlane::ConstTensorView operands[] = {inputs.q, inputs.k, inputs.v};
  const flashlane::fkc::Param params[] = {flashlane::fkc::Param::F32("softmax_scale", 1.0f),
                                          flashlane::fkc::Param::Bool("causal", false)};
  flashlane::fkc::KernelCall call;
  call.inputs = operands;
  call.num_inputs = 3;
  call.outputs = &outputs.out;
  call.num_outputs = 1;
  call.params = params;
  call.num_params = 2;
  out = 0;
  return run != nullptr && run(call).ok() && out == 3 ? 0 : 1;
}
