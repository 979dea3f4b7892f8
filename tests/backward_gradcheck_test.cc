// The oracle of the backward against finite differences of the oracle of the forward, in f64: every
// gradient, under every feature.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/backward.h"
#include "tests/support/gradcheck.h"

namespace flashlane::testing {
namespace {

ExecOptions Oracle() {
  ExecOptions options;
  options.kernel = Kernel::kNaive;
  options.num_threads = 1;
  return options;
}

double Weighted(const std::vector<double>& out, const std::vector<double>& dout) {
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
  return sum;
}

void ExpectClose(const char* name, const std::vector<double>& analytic,
                 const std::vector<double>& numerical, const std::string& where) {
  ASSERT_EQ(analytic.size(), numerical.size()) << name << " " << where;
  double scale = 1.0;
  for (const double value : numerical) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < analytic.size(); ++i) {
    EXPECT_NEAR(analytic[i], numerical[i], 1e-8 * scale) << name << "[" << i << "] " << where;
  }
}

void Check(const ProblemSpec& spec) {
  BackwardProblem backward(spec, DType::kF64);
  Problem& problem = backward.problem;
  const std::vector<double> dout = backward.dout.Values();
  const BackwardResult result = backward.Run(Oracle());
  ASSERT_TRUE(result.status.ok()) << result.status.message() << " " << spec.ToString();
  const auto loss = [&] { return Weighted(problem.Run(Oracle()).out, dout); };
  const struct {
    const char* name;
    const OwnedTensor& analytic;
    OwnedTensor& operand;
  } gradients[] = {{"dq", result.dq, problem.q},
                   {"dk", result.dk, problem.k},
                   {"dv", result.dv, problem.v},
                   {"dbias", result.dbias, problem.bias},
                   {"dsinks", result.dsinks, problem.sinks}};
  for (const auto& [name, analytic, operand] : gradients) {
    if (!analytic.view.present()) continue;
    ExpectClose(name, analytic.Values(), NumericalGradient(&operand, loss), spec.ToString());
  }
}

ProblemSpec Small() {
  ProblemSpec spec;
  spec.batch = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.seqlen_q = 4;
  spec.seqlen_k = 5;
  spec.head_dim = 3;
  spec.head_dim_v = 2;
  return spec;
}

TEST(BackwardGradcheck, Plain) { Check(Small()); }

TEST(BackwardGradcheck, Visibility) {
  ProblemSpec spec = Small();
  spec.params.causal = true;
  Check(spec);
  spec.params.q_start = 2;
  Check(spec);
  spec.params.q_start = QStart::BottomRight();
  spec.params.window_size_left = 1;
  Check(spec);
  spec = Small();
  spec.params.window_size_left = 1;
  spec.params.window_size_right = 0;
  Check(spec);
  spec = Small();
  spec.per_sequence_k_len = spec.per_sequence_q_start = true;
  spec.params.causal = true;
  Check(spec);
  spec = Small();
  spec.mask_dims = 15;
  Check(spec);
}

TEST(BackwardGradcheck, Scores) {
  ProblemSpec spec = Small();
  spec.params.softcap = 0.8;
  spec.params.softmax_scale = -0.9;
  Check(spec);
  spec = Small();
  spec.alibi = true;
  spec.params.q_start = 1;
  Check(spec);
  spec = Small();
  spec.params.softmax_scale = 0.0;
  Check(spec);
}

TEST(BackwardGradcheck, BiasOfEveryShape) {
  for (int dims = 0; dims < 16; ++dims) {
    ProblemSpec spec = Small();
    spec.bias_dims = dims;
    spec.sinks = true;  // else a bias that is one for all keys has no gradient
    spec.params.softcap = 1.5;
    Check(spec);
  }
}

TEST(BackwardGradcheck, Sinks) {
  ProblemSpec spec = Small();
  spec.sinks = true;
  Check(spec);
  spec.params.causal = true;
  spec.params.q_start = -2;  // rows that see nothing but the sink
  Check(spec);
}

TEST(BackwardGradcheck, RandomConfigurations) {
  std::mt19937_64 random(71);
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  const auto maybe = [&] { return random() % 3 == 0; };
  for (int i = 0; i < 60; ++i) {
    ProblemSpec spec;
    spec.seed = random();
    spec.batch = 1 + upto(1);
    spec.num_kv_heads = 1 + upto(1);
    spec.num_heads = spec.num_kv_heads * (1 + upto(2));
    spec.seqlen_q = 1 + upto(4);
    spec.seqlen_k = 1 + upto(5);
    spec.head_dim = 1 + upto(3);
    spec.head_dim_v = 1 + upto(3);
    spec.layout = static_cast<Layout>(upto(3));
    spec.params.causal = maybe();
    if (maybe()) spec.params.window_size_left = upto(3);
    if (maybe()) spec.params.window_size_right = upto(3);
    if (maybe()) spec.params.softcap = 0.5 + static_cast<double>(upto(4));
    if (maybe()) spec.params.softmax_scale = static_cast<double>(upto(20)) / 10.0 - 1.0;
    spec.per_sequence_k_len = maybe();
    spec.per_sequence_q_start = maybe();
    if (!spec.per_sequence_q_start && maybe()) spec.params.q_start = QStart::BottomRight();
    spec.alibi = maybe();
    spec.sinks = maybe();
    if (maybe()) spec.bias_dims = static_cast<int>(upto(15));
    if (maybe()) spec.mask_dims = static_cast<int>(upto(15));
    Check(spec);
  }
}

TEST(BackwardGradcheck, PackedSequences) {
  PackedBackward packed({3, 0, 2, 1}, {4, 2, 0, 3}, DType::kF64);
  packed.slopes = OwnedTensor::Of(packed.slopes.Values(), DType::kF64, {4});
  packed.sinks = OwnedTensor::Of(packed.sinks.Values(), DType::kF64, {4});
  packed.dsinks = packed.sinks;
  AttentionParams params;
  params.causal = true;
  params.q_start = QStart::BottomRight();
  const Status status =
      AttentionVarlenBackward(packed.Inputs(), params, packed.Outputs(), Oracle());
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<double> dout = packed.dout.Values();
  const auto loss = [&] {
    OwnedTensor out = packed.dout;
    AttentionOutputs outputs;
    outputs.out = Writable(out);
    EXPECT_TRUE(AttentionVarlen(packed.Inputs().forward, params, outputs, Oracle()).ok());
    return Weighted(out.Values(), dout);
  };
  ExpectClose("dq", packed.dq.Values(), NumericalGradient(&packed.q, loss), "packed");
  ExpectClose("dk", packed.dk.Values(), NumericalGradient(&packed.k, loss), "packed");
  ExpectClose("dv", packed.dv.Values(), NumericalGradient(&packed.v, loss), "packed");
  ExpectClose("dsinks", packed.dsinks.Values(), NumericalGradient(&packed.sinks, loss), "packed");
}

// The check can fail: on a gradient that is off in one element by little.
TEST(BackwardGradcheck, TellsAWrongGradient) {
  double x[2] = {0.5, -0.25};
  const auto loss = [&] { return std::sin(x[0]) * x[1]; };
  const std::vector<double> gradient = NumericalGradient(x, 2, loss);
  EXPECT_NEAR(gradient[0], std::cos(0.5) * -0.25, 1e-11);
  EXPECT_NEAR(gradient[1], std::sin(0.5), 1e-11);
  EXPECT_EQ(x[0], 0.5);
  // Static, because EXPECT_FATAL_FAILURE cannot see locals.
  static std::vector<double> right, wrong;
  right = wrong = gradient;
  ExpectClose("x", wrong, right, "");
  wrong[1] += 1e-7;
  EXPECT_NONFATAL_FAILURE(ExpectClose("x", wrong, right, ""), "x[1]");
  wrong.pop_back();
  EXPECT_FATAL_FAILURE(ExpectClose("x", wrong, right, ""), "x");
}

}  // namespace
}  // namespace flashlane::testing
