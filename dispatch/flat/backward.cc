// attnk.backward: gradients over flat buffers, and their check by finite differences.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "dispatch/cost.h"
#include "dispatch/flat/checks.h"
#include "flashlane/backward.h"
#include "flashlane/flat.h"

namespace flashlane::flat {
namespace {

// Of a backward in forwards: five products for two.
constexpr std::uint64_t kBackwardPasses = 3;

std::vector<double> CopyOf(const ConstBuffer& from, std::int64_t size) {
  return {from.data, from.data + size};
}

// Inputs that can be moved, and the outputs of a forward.
struct Perturbed {
  std::vector<double> q, k, v, out, lse;

  explicit Perturbed(const FlatAttention& in) {
    const FlatSizes sizes = SizesOf(in);
    q = CopyOf(in.q, sizes.q);
    k = CopyOf(in.k, sizes.k);
    v = CopyOf(in.v, sizes.k);
    out.resize(static_cast<std::size_t>(sizes.q));
    lse.resize(static_cast<std::size_t>(sizes.lse));
  }

  FlatAttention Of(FlatAttention in) const {
    in.q = ConstBuffer(q);
    in.k = ConstBuffer(k);
    in.v = ConstBuffer(v);
    return in;
  }

  AttnStatus Forward(const FlatAttention& in) {
    return SdpaForwardFlat(Of(in), {Buffer(out), Buffer(lse)});
  }
};

// Compares one operand's gradient with differences of the loss.
AttnStatus CheckOperand(const FlatAttention& in, double step, const std::vector<double>& gradient,
                        std::vector<double> Perturbed::*operand, Perturbed* at, Gradcheck* result) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double& x = (at->*operand)[i];
    const double kept = x;
    x = kept + step;
    AttnStatus status = at->Forward(in);
    const std::vector<double> above = at->out;
    x = kept - step;
    if (status == AttnStatus::kOk) status = at->Forward(in);
    x = kept;
    if (status != AttnStatus::kOk) return status;
    // The step that was taken, after rounding.
    const double distance = (kept + step) - (kept - step);
    // Element by element, so that the sum's own rounding does not drown the difference.
    double difference = 0;
    for (std::size_t j = 0; j < above.size(); ++j) difference += above[j] - at->out[j];
    const double error = std::fabs(difference / distance - gradient[i]);
    // Once NaN, it stays.
    if (std::isnan(error) || error > result->max_error) result->max_error = error;
  }
  return AttnStatus::kOk;
}

AttnStatus RunGradcheck(const FlatAttention& in, double step, Gradcheck* result) {
  const FlatSizes sizes = SizesOf(in);
  Perturbed at(in);
  std::vector<double> dq(at.q.size()), dk(at.k.size()), dv(at.v.size());
  const std::vector<double> dout(at.out.size(), 1.0);
  AttnStatus status = SdpaBwdFlat(in, ConstBuffer(dout), {Buffer(dq), Buffer(dk), Buffer(dv)});
  if (status == AttnStatus::kOk) status = CheckOperand(in, step, dq, &Perturbed::q, &at, result);
  if (status == AttnStatus::kOk) status = CheckOperand(in, step, dk, &Perturbed::k, &at, result);
  if (status == AttnStatus::kOk) status = CheckOperand(in, step, dv, &Perturbed::v, &at, result);
  double largest = 0;
  bool finite = true;
  for (const auto* gradient : {&dq, &dk, &dv}) {
    for (const double x : *gradient) {
      largest = std::max(largest, std::fabs(x));
      finite = finite && std::isfinite(x);
    }
  }
  result->tolerance = 2 * step * step * (1 + largest);
  result->agrees =
      finite && std::isfinite(result->tolerance) && result->max_error <= result->tolerance;
  result->elements = sizes.q;
  return status;
}

}  // namespace

AttnStatus SdpaBwdFlat(const FlatAttention& in, const ConstBuffer& dout, const FlatGradients& to,
                       const WorkBudget& budget) noexcept {
  const Work work{kBackwardPasses, 2, 2, 3, 1};
  if (const AttnStatus s = CheckWork(in, work, budget); s != AttnStatus::kOk) return s;
  const FlatSizes sizes = SizesOf(in);
  const AttnStatus s =
      CheckBuffers({Needed::Input(in.q, sizes.q), Needed::Input(in.k, sizes.k),
                    Needed::Input(in.v, sizes.k), Needed::Input(in.bias, sizes.bias),
                    Needed::Input(dout, sizes.q), Needed::Output(to.dq, sizes.q),
                    Needed::Output(to.dk, sizes.k), Needed::Output(to.dv, sizes.k)});
  if (s != AttnStatus::kOk) return s;
  BackwardInputs inputs;
  inputs.forward = CoreInputs(in);
  inputs.dout = InputView(dout, in.n_tok_q, in.h_q, in.head_dim);
  BackwardOutputs outputs;
  outputs.dq = OutputView(to.dq.data, in.n_tok_q, in.h_q, in.head_dim);
  outputs.dk = OutputView(to.dk.data, in.n_tok_k, in.h_kv, in.head_dim);
  outputs.dv = OutputView(to.dv.data, in.n_tok_k, in.h_kv, in.head_dim);
  ExecOptions options;
  options.kernel = Kernel::kNaive;
  return FromCore(AttentionBackward(inputs, CoreParams(in), outputs, options));
}

Gradcheck AttnBwdGradcheckFlat(const FlatAttention& in, double step,
                               const WorkBudget& budget) noexcept {
  Gradcheck result;
  result.status = CheckWork(in, {}, {});
  if (result.status != AttnStatus::kOk) return result;
  const FlatSizes sizes = SizesOf(in);
  // Two forwards for every element of q, k and v.
  const auto forwards = static_cast<std::uint64_t>(2 * (sizes.q + 2 * sizes.k));
  const Work work{SaturatingSum(forwards, kBackwardPasses), 3, 6, 3, 1};
  result.status = CheckWork(in, work, budget);
  if (result.status == AttnStatus::kOk) result.status = AttnStepCheck(step);
  if (result.status == AttnStatus::kOk) {
    result.status =
        CheckBuffers({Needed::Input(in.q, sizes.q), Needed::Input(in.k, sizes.k),
                      Needed::Input(in.v, sizes.k), Needed::Input(in.bias, sizes.bias)});
  }
  if (result.status != AttnStatus::kOk) return result;
  try {
    result.status = RunGradcheck(in, step, &result);
  } catch (const std::bad_alloc&) {
    result.status = AttnStatus::kOutOfMemory;
  }
  return result;
}

}  // namespace flashlane::flat
