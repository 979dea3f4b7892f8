#include "bench/peer_api.h"

#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>

#include "bench/shapes.h"
#include "dispatch/contract.h"
#include "dispatch/cost.h"
#include "dispatch/dtype.h"
#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/info.h"

namespace flashlane::bench {
namespace {

constexpr int64_t kNone = -1;

std::optional<int64_t> ToOptional(int64_t value) {
  return value == kNone ? std::nullopt : std::optional(value);
}

AttentionParams ParamsOf(const FlashlanePeerShape& shape) {
  AttentionParams params;
  params.causal = shape.causal != 0;
  params.q_start = shape.bottom_right != 0 ? QStart::BottomRight() : QStart(shape.q_start);
  params.window_size_left = ToOptional(shape.window_size_left);
  params.window_size_right = ToOptional(shape.window_size_right);
  params.k_len = ToOptional(shape.k_len);
  if (shape.softcap != 0) params.softcap = shape.softcap;
  if (!std::isnan(shape.softmax_scale)) params.softmax_scale = shape.softmax_scale;
  return params;
}

FlashlanePeerShape PeerShapeOf(const Shape& shape) {
  const AttentionParams& params = shape.params;
  FlashlanePeerShape peer = {};
  peer.batch = shape.batch;
  peer.num_heads = shape.num_heads;
  peer.num_kv_heads = shape.num_kv_heads;
  peer.seqlen_q = shape.seqlen_q;
  peer.seqlen_k = shape.seqlen_k;
  peer.head_dim = shape.head_dim;
  peer.head_dim_v = shape.head_dim_v;
  peer.causal = params.causal ? 1 : 0;
  peer.bottom_right = params.q_start.kind == QStart::Kind::kBottomRight ? 1 : 0;
  peer.q_start = params.q_start.value;
  peer.window_size_left = params.window_size_left.value_or(kNone);
  peer.window_size_right = params.window_size_right.value_or(kNone);
  peer.k_len = params.k_len.value_or(kNone);
  const auto has = [&shape](ShapeExtra extra) { return (shape.extras & extra) != 0 ? 1 : 0; };
  peer.has_bias = has(kBias);
  peer.has_mask = has(kMask);
  peer.has_padding_mask = has(kPaddingMask);
  peer.has_alibi = has(kAlibi);
  peer.backward = shape.backward ? 1 : 0;
  peer.softcap = params.softcap.value_or(0);
  peer.softmax_scale = params.softmax_scale.value_or(std::nan(""));
  return peer;
}

struct Views {
  AttentionInputs inputs;
  AttentionOutputs outputs;
  BackwardInputs backward;
  BackwardOutputs gradients;
};

Views ViewsOf(const FlashlanePeerCall& call, DType dtype) {
  const FlashlanePeerShape& s = call.shape;
  Views views;
  views.inputs.q = {call.q, dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim}};
  views.inputs.k = {call.k, dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim}};
  views.inputs.v = {call.v, dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim_v}};
  if (s.has_bias != 0) views.inputs.bias = {call.bias, dtype, {1, 1, s.seqlen_q, s.seqlen_k}};
  if (s.has_mask != 0) {
    views.inputs.mask = {call.mask, DType::kBool, {1, 1, s.seqlen_q, s.seqlen_k}};
  }
  if (s.has_padding_mask != 0) {
    views.inputs.mask = {call.mask, DType::kBool, {s.batch, 1, 1, s.seqlen_k}};
  }
  if (s.has_alibi != 0) views.inputs.alibi_slopes = {call.alibi_slopes, DType::kF32, {s.num_heads}};
  views.outputs.out = {call.out, dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim_v}};
  if (call.lse != nullptr) {
    const DType lse_dtype = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    views.outputs.lse = {call.lse, lse_dtype, {s.batch, s.num_heads, s.seqlen_q}};
  }
  if (s.backward == 0) return views;
  views.backward.forward = views.inputs;
  views.backward.out = views.outputs.out;
  views.backward.lse = views.outputs.lse;
  views.backward.dout = {call.dout, dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim_v}};
  views.gradients.dq = {call.dq, dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim}};
  views.gradients.dk = {call.dk, dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim}};
  views.gradients.dv = {call.dv, dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim_v}};
  return views;
}

Status Run(const FlashlanePeerCall& call) {
  const std::optional<DType> dtype = ParseDType(call.dtype);
  if (!dtype) return Status::InvalidArgument("dtype: no type is called " + std::string(call.dtype));
  if (call.num_threads != static_cast<int>(call.num_threads)) {
    return Status::InvalidArgument("num_threads: " + std::to_string(call.num_threads));
  }
  ExecOptions options;
  options.num_threads = static_cast<int>(call.num_threads);
  options.target = call.target;
  const Views views = ViewsOf(call, *dtype);
  const AttentionParams params = ParamsOf(call.shape);
  if (call.shape.backward != 0) {
    return AttentionBackward(views.backward, params, views.gradients, options);
  }
  return Attention(views.inputs, params, views.outputs, options);
}

std::string Describe() {
  std::string targets;
  for (const std::string& target : SupportedTargets()) {
    targets += (targets.empty() ? "" : ",") + target;
  }
  std::string chosen;
  const Status status = ChosenTarget(&chosen);
  return std::string("flashlane ") + Version() + "\n" + CpuName() + "\n" + targets + "\n" +
         (status.ok() ? chosen : status.message());
}

}  // namespace
}  // namespace flashlane::bench

int FlashlanePeerAttention(const FlashlanePeerCall* call, char* message, size_t size) {
  const flashlane::Status status = flashlane::bench::Run(*call);
  std::snprintf(message, size, "%s", status.message().c_str());
  return static_cast<int>(status.code());
}

uint64_t FlashlanePeerFlops(const FlashlanePeerCall* call) {
  const std::optional<flashlane::DType> dtype = flashlane::ParseDType(call->dtype);
  if (!dtype) return 0;
  const flashlane::bench::Views views = flashlane::bench::ViewsOf(*call, *dtype);
  const flashlane::AttentionParams params = flashlane::bench::ParamsOf(call->shape);
  if (call->shape.backward != 0) {
    if (!flashlane::CheckBackward(views.backward, params, views.gradients).ok()) return 0;
    return flashlane::BackwardFlops(
        flashlane::ResolveBackward(views.backward, params, views.gradients));
  }
  if (!flashlane::CheckForward(views.inputs, params, views.outputs).ok()) return 0;
  return flashlane::ForwardFlops(flashlane::ResolveForward(views.inputs, params, views.outputs));
}

const char* FlashlanePeerShapeAt(int64_t index, FlashlanePeerShape* shape) {
  if (index < 0 || index >= std::ssize(flashlane::bench::kShapes)) return nullptr;
  const flashlane::bench::Shape& entry = flashlane::bench::kShapes[index];
  *shape = flashlane::bench::PeerShapeOf(entry);
  return entry.name;
}

int FlashlanePeerByDefault(int64_t index, const char* dtype) {
  const std::optional<flashlane::DType> parsed = flashlane::ParseDType(dtype);
  if (index < 0 || index >= std::ssize(flashlane::bench::kShapes) || !parsed) return 0;
  return flashlane::bench::ByDefault(flashlane::bench::kShapes[index], *parsed) ? 1 : 0;
}

void FlashlanePeerDescribe(char* text, size_t size) {
  std::snprintf(text, size, "%s", flashlane::bench::Describe().c_str());
}
