// What the backward must not touch, or let through: bytes of hidden keys, memory outside the views.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "tests/support/backward.h"
#include "tests/support/memory.h"
#include "tests/support/numbers.h"
#include "tests/support/problem.h"
#include "tests/support/runs.h"
#include "tests/support/specs.h"

namespace flashlane::testing {
namespace {

class BackwardHygieneTest : public RunTest {
 protected:
  BackwardProblem Make(const ProblemSpec& spec) const {
    return BackwardProblem(spec, GetParam().dtype);
  }
  BackwardResult Run(const BackwardProblem& problem) const {
    BackwardResult result = problem.Run(GetParam().Options());
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    return result;
  }
};

ProblemSpec Small(int64_t seqlen_q = 70, int64_t seqlen_k = 150, int64_t head_dim = 8) {
  ProblemSpec spec = Shape(seqlen_q, seqlen_k, head_dim);
  spec.num_heads = 2;
  return spec;
}

// Bits are those with zeros in the hidden keys, and the keys' own gradients are 0.
TEST_P(BackwardHygieneTest, HiddenKeysContributeNothingWhateverTheyHold) {
  for (const double poison : {kNan, kInf}) {
    for (const HidingWay& way : HidingWays(150)) {
      ProblemSpec spec = Small();
      way.hide(spec);
      BackwardProblem clean = Make(spec);
      BackwardProblem dirty = Make(spec);
      for (int64_t j = way.first_hidden; j <= way.last_hidden; ++j) {
        FillKey(clean.problem, j, 0.0, 0.0);
        FillKey(dirty.problem, j, poison, poison);
      }
      const BackwardResult result = Run(dirty);
      EXPECT_EQ(Run(clean).bits(), result.bits()) << way.name << " " << poison;
      for (int64_t j = way.first_hidden; j <= way.last_hidden; ++j) {
        for (int64_t d = 0; d < 8; ++d) {
          EXPECT_EQ(result.dk.At({0, 0, j, d}), 0.0) << way.name << " key " << j;
          EXPECT_EQ(result.dv.At({0, 0, j, d}), 0.0) << way.name << " key " << j;
        }
      }
    }
  }
}

TEST_P(BackwardHygieneTest, KeysHiddenByTheBooleanMaskOrByAnInfiniteBias) {
  for (const bool by_bias : {false, true}) {
    ProblemSpec spec = Small(20, 110);
    (by_bias ? spec.bias_dims : spec.mask_dims) = 12;
    BackwardProblem clean = Make(spec);
    for (int64_t i = 0; i < 20; ++i) {
      for (const int64_t j : {0, 7, 100, 109}) {
        if (by_bias) {
          clean.problem.bias.Set({0, 0, i, j}, -kInf);
        } else {
          clean.problem.mask.Set({0, 0, i, j}, 0);
        }
      }
    }
    BackwardProblem dirty = clean;
    for (const int64_t j : {0, 7, 100, 109}) FillKey(dirty.problem, j, kNan, kNan);
    const BackwardResult result = Run(dirty);
    for (const double value : result.dq.Values()) EXPECT_TRUE(std::isfinite(value));
    EXPECT_TRUE(Agrees(ReferenceOf(clean), result));
    EXPECT_TRUE(Agrees(ReferenceOf(dirty), result));
  }
}

// A key that some rows see and others do not: only what those rows reach may change.
TEST_P(BackwardHygieneTest, APoisonedKeyReachesOnlyTheRowsThatSeeIt) {
  ProblemSpec spec = Small(90, 90);
  spec.params.causal = true;
  const BackwardProblem clean = Make(spec);
  BackwardProblem dirty = Make(spec);
  const int64_t key = 41;
  FillKey(dirty.problem, key, kNan, kNan);
  const BackwardResult before = Run(clean);
  const BackwardResult after = Run(dirty);
  for (int64_t i = 0; i < 90; ++i) {
    const bool sees = i >= key;
    EXPECT_EQ(std::isnan(after.dq.At({0, 1, i, 3})), sees) << i;
    if (!sees) {
      EXPECT_EQ(before.dq.At({0, 1, i, 3}), after.dq.At({0, 1, i, 3})) << i;
    }
  }
  // Every key is seen by the last row, which is NaN now.
  for (int64_t j = 0; j < 90; ++j) EXPECT_TRUE(std::isnan(after.dk.At({0, 0, j, 0}))) << j;
}

TEST_P(BackwardHygieneTest, ANanInDoutStaysInItsRowAndTheKeysItSees) {
  for (const double poison : {kNan, kInf}) {
    ProblemSpec spec = Small(80, 80);
    spec.params.causal = true;
    const BackwardProblem clean = Make(spec);
    BackwardProblem dirty = clean;
    dirty.dout.Set({0, 1, 37, 2}, poison);
    const BackwardResult before = Run(clean);
    const BackwardResult after = Run(dirty);
    for (int64_t i = 0; i < 80; ++i) {
      for (int64_t h = 0; h < 2; ++h) {
        const bool hit = i == 37 && h == 1;
        EXPECT_EQ(std::isfinite(after.dq.At({0, h, i, 0})), !hit) << i;
        if (!hit) {
          EXPECT_EQ(after.dq.At({0, h, i, 0}), before.dq.At({0, h, i, 0})) << i;
        }
      }
      EXPECT_EQ(std::isfinite(after.dv.At({0, 0, i, 2})), i > 37) << i;
      if (i > 37) {
        EXPECT_EQ(after.dk.At({0, 0, i, 0}), before.dk.At({0, 0, i, 0})) << i;
      }
    }
  }
}

TEST_P(BackwardHygieneTest, VisibleMinusInfinityWeighsNothing) {
  ProblemSpec spec = Small(6, 130, 1);
  spec.params.softmax_scale = 1.0;
  BackwardProblem problem = Make(spec);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t h = 0; h < 2; ++h) problem.problem.q.Set({0, h, i, 0}, 1.0);
  }
  for (const int64_t j : {0, 3, 100}) FillKey(problem.problem, j, -kInf, j == 3 ? kNan : 1.0);
  const BackwardResult result = Run(problem);
  for (const OwnedTensor* tensor : {&result.dq, &result.dk, &result.dv}) {
    for (const double value : tensor->Values()) EXPECT_TRUE(std::isfinite(value));
  }
  EXPECT_TRUE(Agrees(ReferenceOf(problem), result));
}

TEST_P(BackwardHygieneTest, ScoresFarApart) {
  ProblemSpec spec = Small(10, 100);
  spec.magnitude = 30.0;
  EXPECT_TRUE(Agrees(ReferenceOf(Make(spec)), Run(Make(spec))));
  spec.params.softcap = 20.0;
  EXPECT_TRUE(Agrees(ReferenceOf(Make(spec)), Run(Make(spec))));
}

class BackwardGuardPageTest : public RunTest {
 protected:
  using Flush = GuardedBuffer::Flush;

  struct Guarded {
    std::vector<std::unique_ptr<GuardedBuffer>> buffers;
    Flush flush;

    template <typename View>
    void Move(View* view, const OwnedTensor& tensor) {
      if (!view->present()) return;
      buffers.push_back(std::make_unique<GuardedBuffer>(tensor.storage.size(), flush));
      std::memcpy(buffers.back()->data(), tensor.storage.data(), tensor.storage.size());
      view->data = buffers.back()->data();
    }
  };

  // Runs the problem from and into guarded memory; the result must equal that of ordinary memory.
  static void Check(const BackwardProblem& of, Flush flush, bool keep, const ExecOptions& options) {
    const Result forward = of.problem.Run(options);
    BackwardResult expected = keep ? of.RunKept(options, forward) : of.Run(options);
    ASSERT_TRUE(expected.status.ok()) << expected.status.message();
    Guarded memory{{}, flush};
    BackwardInputs inputs = of.Inputs();
    AttentionInputs& in = inputs.forward;
    const Problem& problem = of.problem;
    memory.Move(&in.q, problem.q);
    memory.Move(&in.k, problem.k);
    memory.Move(&in.v, problem.v);
    memory.Move(&in.alibi_slopes, problem.alibi_slopes);
    memory.Move(&in.bias, problem.bias);
    memory.Move(&in.mask, problem.mask);
    memory.Move(&in.sinks, problem.sinks);
    memory.Move(&in.k_len, problem.k_len);
    memory.Move(&in.q_start, problem.q_start);
    memory.Move(&inputs.dout, of.dout);
    if (keep) {
      inputs.out = forward.out_tensor.View();
      inputs.lse = forward.lse_tensor.View();
      memory.Move(&inputs.out, forward.out_tensor);
      memory.Move(&inputs.lse, forward.lse_tensor);
    }
    BackwardResult result = MakeBackwardResult(problem, kAllGradients);
    BackwardOutputs outputs = result.Outputs();
    const OwnedTensor* tensors[] = {&result.dq, &result.dk, &result.dv, &result.dbias,
                                    &result.dsinks};
    TensorView* views[] = {&outputs.dq, &outputs.dk, &outputs.dv, &outputs.dbias, &outputs.dsinks};
    for (int i = 0; i < 5; ++i) memory.Move(views[i], *tensors[i]);
    const Status status = AttentionBackward(inputs, of.spec().params, outputs, options);
    ASSERT_TRUE(status.ok()) << status.message();
    const OwnedTensor* wanted[] = {&expected.dq, &expected.dk, &expected.dv, &expected.dbias,
                                   &expected.dsinks};
    for (int i = 0; i < 5; ++i) {
      if (!wanted[i]->view.present()) continue;
      EXPECT_EQ(0,
                std::memcmp(views[i]->data, wanted[i]->storage.data(), wanted[i]->storage.size()))
          << i << " " << of.spec().ToString();
    }
  }
};

TEST_P(BackwardGuardPageTest, NothingOutsideTheViewsIsTouched) {
  for (const int64_t head_dim : {1, 5, 16, 33}) {
    for (const int64_t seqlen_k : {1, 7, 81}) {
      for (const Flush flush : {Flush::kBegin, Flush::kEnd}) {
        ProblemSpec spec;
        spec.num_heads = 3;
        spec.seqlen_q = 19;
        spec.seqlen_k = seqlen_k;
        spec.head_dim = head_dim;
        spec.head_dim_v = head_dim + 1;
        Check(BackwardProblem(spec, GetParam().dtype), flush, false, GetParam().Options());
        spec.batch = 2;
        spec.alibi = spec.sinks = spec.per_sequence_k_len = spec.per_sequence_q_start = true;
        spec.bias_dims = 15;
        spec.mask_dims = 13;
        spec.params.window_size_left = 5;
        Check(BackwardProblem(spec, GetParam().dtype), flush, true, GetParam().Options());
      }
    }
  }
}

// Keys at or past k_len are never read; their gradients are written.
TEST_P(BackwardGuardPageTest, KeysPastKLenAreNeverRead) {
  ProblemSpec spec;
  spec.num_heads = 2;
  spec.seqlen_q = 17;
  spec.head_dim = 9;
  spec.head_dim_v = 10;
  for (const int64_t k_len : {0, 1, 45}) {
    spec.seqlen_k = k_len;
    const BackwardProblem live(spec, GetParam().dtype);
    Guarded memory{{}, Flush::kEnd};
    BackwardInputs inputs = live.Inputs();
    inputs.forward.k.shape[2] = inputs.forward.v.shape[2] = 1000;
    OwnedTensor k = live.problem.k;
    OwnedTensor v = live.problem.v;
    const size_t size = DTypeSize(GetParam().dtype);
    k.storage.resize(static_cast<size_t>(k_len * 9) *
                     size);  // without the one that empty ones have
    v.storage.resize(static_cast<size_t>(k_len * 10) * size);
    memory.Move(&inputs.forward.k, k);
    memory.Move(&inputs.forward.v, v);
    ProblemSpec long_spec = spec;
    long_spec.seqlen_k = 1000;
    BackwardResult result =
        MakeBackwardResult(BackwardProblem(long_spec, GetParam().dtype).problem, kDq | kDk | kDv);
    AttentionParams params;
    params.k_len = k_len;
    const Status status = AttentionBackward(inputs, params, result.Outputs(), GetParam().Options());
    ASSERT_TRUE(status.ok()) << status.message();
    const BackwardResult expected = live.Run(GetParam().Options());
    EXPECT_EQ(result.dq.Values(), expected.dq.Values()) << k_len;
    std::vector<double> dk = expected.dk.Values();
    dk.resize(9 * 1000);
    EXPECT_EQ(result.dk.Values(), dk) << k_len;
    std::vector<double> dv = expected.dv.Values();
    dv.resize(10 * 1000);
    EXPECT_EQ(result.dv.Values(), dv) << k_len;
  }
}

// A NaN or an infinity in any operand reaches the gradients that it reaches in the oracle, and no
// others.
TEST_P(BackwardHygieneTest, NumbersThatAreNoneReachWhatTheyReachInTheOracle) {
  for (const double value : {kNan, kInf, -kInf}) {
    for (int operand = 0; operand < 4; ++operand) {
      BackwardProblem problem = Make(Small(20, 40));
      OwnedTensor* const tensors[] = {&problem.problem.q, &problem.problem.k, &problem.problem.v,
                                      &problem.dout};
      const bool of_keys = operand == 1 || operand == 2;  // there is one kv head
      tensors[operand]->Set({0, of_keys ? 0 : 1, 7, 3}, value);
      EXPECT_TRUE(Agrees(ReferenceOf(problem), Run(problem)))
          << "operand " << operand << " " << value;
    }
  }
}

FLASHLANE_INSTANTIATE_RUNS(BackwardHygieneTest, BackwardRuns());
FLASHLANE_INSTANTIATE_RUNS(BackwardGuardPageTest, BackwardRuns());

}  // namespace
}  // namespace flashlane::testing
