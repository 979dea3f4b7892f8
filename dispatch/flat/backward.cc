// attnk.backward: gradients.

#include "flashlane/flat/backward.h"

#include <cstdint>
#include <vector>

#include "dispatch/flat/call.h"
#include "dispatch/flat/gradcheck.h"
#include "flashlane/backward.h"

namespace flashlane::flat {
namespace {

// 5 products of the forward's 2.
uint64_t BackwardFlopsOf(const FlatDims& dims, bool causal) {
  const uint64_t forward = ForwardFlopsOf(dims, causal);
  return SaturatingSum(SaturatingProduct(2, forward), forward / 2);
}

TensorView GradientView(const Doubles& gradient, const ConstTensorView& of) {
  if (!gradient.present()) return {};
  return TensorView(gradient.data, DType::kF64, 4, of.shape, of.strides);
}

AttnStatus RunBackward(const FlatBackwardInputs& in, const FlatDims& dims, const FlatParams& params,
                       const FlatGradients& gradients, const FlatOptions& options) {
  BackwardInputs core;
  core.forward = ViewsOf(in.forward, dims);
  core.dout = ConstTensorView::FromBshd(in.dout.data, DType::kF64, 1, dims.n_tok_q, dims.h_q,
                                        dims.head_dim);
  BackwardOutputs outputs;
  outputs.dq = GradientView(gradients.dq, core.forward.q);
  outputs.dk = GradientView(gradients.dk, core.forward.k);
  outputs.dv = GradientView(gradients.dv, core.forward.v);
  return FromCore(
      AttentionBackward(core, ParamsOf(params), outputs, CoreOptions(options, Kernel::kFlash)));
}

}  // namespace

AttnStatus sdpa_bwd_flat(const FlatBackwardInputs& inputs, const FlatDims& dims,
                         const FlatParams& params, const FlatGradients& gradients,
                         const FlatOptions& options) noexcept {
  AttnStatus s = CheckSizesAndScale(inputs.forward, dims, params);
  if (s != ATTN_OK) return s;
  const Elements elements(dims);
  const ForwardBuffers need = BuffersOf(inputs.forward, dims);
  const Needed dout = Need(inputs.dout, elements.q);
  const Needed dq = NeedIfPresent(gradients.dq, elements.q);
  const Needed dk = NeedIfPresent(gradients.dk, elements.kv);
  const Needed dv = NeedIfPresent(gradients.dv, elements.kv);
  const uint64_t bytes = BytesOf({need.q, need.k, need.v, need.bias, dout, dq, dk, dv});
  s = attn_budget_check(BackwardFlopsOf(dims, params.causal), bytes, options);
  if (s == ATTN_OK) {
    s = CheckBuffers({need.q, need.k, need.v, need.bias, dout}, {dq, dk, dv});
  }
  if (s != ATTN_OK) return s;
  // An empty gradient has no address to be told by.
  if (elements.q == 0 && elements.kv == 0) return ATTN_OK;
  const bool any = gradients.dq.present() || gradients.dk.present() || gradients.dv.present();
  if (!any) return ATTN_NO_OUTPUT;
  return RunBackward(inputs, dims, params, gradients, options);
}

GradcheckResult attn_bwd_gradcheck_flat(const FlatInputs& inputs, const FlatDims& dims,
                                        const FlatParams& params, double step,
                                        const FlatOptions& options) noexcept {
  GradcheckResult result;
  result.status = WithoutThrowing([&] {
    AttnStatus s = CheckSizesAndScale(inputs, dims, params);
    if (s == ATTN_OK) s = attn_step_check(step);
    if (s != ATTN_OK) return s;
    const Elements elements(dims);
    const uint64_t moved = SaturatingSum(elements.q, SaturatingProduct(2, elements.kv));
    const uint64_t passes = SaturatingSum(2, SaturatingProduct(4, moved));
    const uint64_t flops =
        SaturatingSum(SaturatingProduct(passes, ForwardFlopsOf(dims, params.causal)),
                      BackwardFlopsOf(dims, params.causal));
    // Two results, the gradients and dout, |v|, a copy of the operand that moves, what rounding
    // does.
    const uint64_t buffers =
        SaturatingSum(SaturatingProduct(2, moved), SaturatingProduct(4, elements.q));
    const uint64_t own = SaturatingSum(SaturatingProduct(2, OwnOutputs::BytesFor(dims)),
                                       SaturatingProduct(buffers, sizeof(double)));
    s = CheckInputsOnly(inputs, dims, options, flops, own);
    if (s != ATTN_OK) return s;
    std::vector<double> dout(elements.q, 1.0);
    std::vector<double> dq(elements.q), dk(elements.kv), dv(elements.kv);
    // Without an element there is no gradient to ask for.
    if (moved > 0) s = RunBackward({inputs, dout}, dims, params, {dq, dk, dv}, options);
    if (s != ATTN_OK) return s;
    GradcheckResult checked;
    s = CheckGradients({inputs, dims, params, step, options}, {dq, dk, dv}, &checked);
    if (s == ATTN_OK) result = checked;
    return s;
  });
  return result;
}

}  // namespace flashlane::flat
