// What the flat modules refuse, function by function: the right status, and nothing written.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "flashlane/flat.h"
#include "tests/support/flat.h"

namespace flashlane::testing {
namespace {

using flat::AttnStatus;
using flat::Buffer;
using flat::ConstBuffer;
using flat::WorkBudget;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kHuge = std::int64_t{1} << 40;

TEST(FlatContract, NamesBothWays) {
  std::set<std::string> names;
  for (std::int32_t number = -1000; number < 1000; ++number) {
    const char* name = flat::AttnStatusName(number);
    EXPECT_EQ(name != nullptr, number >= 360 && number <= 382) << number;
    if (name == nullptr) continue;
    EXPECT_EQ(std::string(name).rfind("ATTN_", 0), 0u);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(flat::AttnStatusFromName(name), number);
  }
  for (std::int32_t number = 0; number < 5; ++number) {
    EXPECT_EQ(flat::BackendFromName(flat::BackendName(number)), number);
  }
  EXPECT_EQ(flat::BackendName(5), nullptr);
  EXPECT_EQ(flat::BackendName(-1), nullptr);
  for (const char* name : {"", "attn_ok", "ATTN_OK ", static_cast<const char*>(nullptr)}) {
    EXPECT_EQ(flat::AttnStatusFromName(name), -1);
    EXPECT_EQ(flat::BackendFromName(name), -1);
  }
}

TEST(FlatContract, OneStatusPerRule) {
  EXPECT_EQ(flat::AttnDimsCheck(0, 2, 1, 4, 4, 8), AttnStatus::kBadBatch);
  EXPECT_EQ(flat::AttnDimsCheck(1, 0, 1, 4, 4, 8), AttnStatus::kBadHeadsQ);
  EXPECT_EQ(flat::AttnDimsCheck(1, 2, -1, 4, 4, 8), AttnStatus::kBadHeadsKv);
  EXPECT_EQ(flat::AttnDimsCheck(1, 3, 2, 4, 4, 8), AttnStatus::kHeadsNotDivisible);
  EXPECT_EQ(flat::AttnDimsCheck(1, 1, 2, 4, 4, 8), AttnStatus::kHeadsNotDivisible);
  EXPECT_EQ(flat::AttnDimsCheck(1, 2, 1, 0, 4, 8), AttnStatus::kBadTokensQ);
  EXPECT_EQ(flat::AttnDimsCheck(1, 2, 1, 4, 0, 8), AttnStatus::kBadTokensK);
  EXPECT_EQ(flat::AttnDimsCheck(1, 2, 1, 4, 4, 0), AttnStatus::kBadHeadDim);
  EXPECT_EQ(flat::AttnDimsCheck(1, 2, 1, kHuge, 4, kHuge), AttnStatus::kSizeOverflow);
  EXPECT_EQ(flat::AttnDimsCheck(1, 2, 1, 4, kHuge, kHuge), AttnStatus::kSizeOverflow);
  EXPECT_EQ(flat::AttnDimsCheck(1, 2, 1, kHuge, kHuge, 1), AttnStatus::kSizeOverflow);
  EXPECT_EQ(flat::AttnDimsCheck(INT64_MAX, INT64_MAX, 1, INT64_MAX, 1, INT64_MAX),
            AttnStatus::kSizeOverflow);
}

TEST(FlatContract, Scalars) {
  for (const double bad : {kNan, kInf, -kInf, 0.0, -1.0}) {
    EXPECT_EQ(flat::AttnScaleCheck(bad), AttnStatus::kBadScale);
    EXPECT_EQ(flat::AttnStepCheck(bad), AttnStatus::kBadStep);
    EXPECT_EQ(flat::AttnThetaCheck(bad), AttnStatus::kBadTheta);
  }
  EXPECT_EQ(flat::AttnThetaCheck(1.0), AttnStatus::kBadTheta);
  EXPECT_EQ(flat::AttnScaleCheck(1e-300), AttnStatus::kOk);
  EXPECT_EQ(flat::AttnWindowCheck(0), AttnStatus::kBadWindow);
  EXPECT_EQ(flat::AttnWindowCheck(1), AttnStatus::kOk);
  EXPECT_EQ(flat::AttnBudgetCheck(10, 20, {10, 20}), AttnStatus::kOk);
  EXPECT_EQ(flat::AttnBudgetCheck(11, 20, {10, 20}), AttnStatus::kBudgetExceeded);
  EXPECT_EQ(flat::AttnBudgetCheck(10, 21, {10, 20}), AttnStatus::kBudgetExceeded);
}

// A function over FlatAttention. Everything it could write is in `written`, all kUntouched.
struct Written {
  std::vector<double> buffers[3];
};
struct Function {
  const char* name;
  std::function<AttnStatus(const flat::FlatAttention&, Written*, const WorkBudget&)> call;
  std::size_t outputs;
};

std::vector<Function> Functions() {
  using In = flat::FlatAttention;
  const auto to = [](Written* w) {
    return flat::FlatOutputs{Buffer(w->buffers[0]), Buffer(w->buffers[1])};
  };
  static const std::vector<double> dout(1000, 1.0);
  return {
      {"sdpa_forward_flat",
       [=](const In& in, Written* w, const WorkBudget& budget) {
         return flat::SdpaForwardFlat(in, to(w), budget);
       },
       2},
      {"flash_forward_flat",
       [=](const In& in, Written* w, const WorkBudget& budget) {
         return flat::FlashForwardFlat(in, 2, to(w), budget);
       },
       2},
      {"tiled_forward_flat",
       [=](const In& in, Written* w, const WorkBudget& budget) {
         return flat::TiledForwardFlat(in, 2, to(w), budget);
       },
       2},
      {"direct_forward_flat",
       [=](const In& in, Written* w, const WorkBudget& budget) {
         return flat::DirectForwardFlat(in, to(w), budget);
       },
       2},
      {"unstable_forward_flat",
       [=](const In& in, Written* w, const WorkBudget& budget) {
         return flat::UnstableForwardFlat(in, to(w), budget);
       },
       2},
      {"flash_agrees_with_sdpa",
       [=](const In& in, Written*, const WorkBudget& budget) {
         return flat::FlashAgreesWithSdpa(in, 2, budget).status;
       },
       0},
      {"sdpa_bwd_flat",
       [=](const In& in, Written* w, const WorkBudget& budget) {
         return flat::SdpaBwdFlat(
             in, ConstBuffer(dout),
             {Buffer(w->buffers[0]), Buffer(w->buffers[1]), Buffer(w->buffers[2])}, budget);
       },
       3},
      {"attn_bwd_gradcheck_flat",
       [=](const In& in, Written*, const WorkBudget& budget) {
         return flat::AttnBwdGradcheckFlat(in, 1e-4, budget).status;
       },
       0},
  };
}

constexpr FlatShape kShape{3, 4, 2, 1, 2};

class FlatRefusal : public ::testing::TestWithParam<Function> {
 protected:
  // `change` makes a call wrong.
  void Expect(AttnStatus wanted, const std::function<void(flat::FlatAttention*)>& change,
              const WorkBudget& budget = {}) const {
    FlatProblem problem(kShape, /*with_bias=*/true);
    change(&problem.in);
    Written written;
    for (auto& buffer : written.buffers) buffer.assign(12, kUntouched);
    EXPECT_EQ(GetParam().call(problem.in, &written, budget), wanted)
        << flat::AttnStatusName(static_cast<int>(wanted));
    if (wanted == AttnStatus::kOk) return;
    for (const auto& buffer : written.buffers) {
      for (const double x : buffer) EXPECT_EQ(x, kUntouched);
    }
  }
};

TEST_P(FlatRefusal, RightCallsPass) {
  Expect(AttnStatus::kOk, [](flat::FlatAttention*) {});
  Expect(AttnStatus::kOk, [](flat::FlatAttention* in) { in->bias = {}; });
}

TEST_P(FlatRefusal, Dimensions) {
  Expect(AttnStatus::kBadTokensQ, [](auto* in) { in->n_tok_q = 0; });
  Expect(AttnStatus::kBadTokensK, [](auto* in) { in->n_tok_k = -1; });
  Expect(AttnStatus::kBadHeadsQ, [](auto* in) { in->h_q = INT64_MIN; });
  Expect(AttnStatus::kBadHeadsKv, [](auto* in) { in->h_kv = 0; });
  Expect(AttnStatus::kHeadsNotDivisible, [](auto* in) { in->h_kv = 4; });
  Expect(AttnStatus::kBadHeadDim, [](auto* in) { in->head_dim = 0; });
  Expect(AttnStatus::kSizeOverflow, [](auto* in) { in->head_dim = INT64_MAX; });
  Expect(AttnStatus::kSizeOverflow, [](auto* in) { in->n_tok_q = in->n_tok_k = kHuge; });
}

TEST_P(FlatRefusal, ScalesThatAreNone) {
  for (const double bad : {kNan, kInf, -kInf, 0.0, -0.5}) {
    Expect(AttnStatus::kBadScale, [=](auto* in) { in->scale = bad; });
  }
}

TEST_P(FlatRefusal, ShortBuffersAndNull) {
  for (ConstBuffer flat::FlatAttention::*operand :
       {&flat::FlatAttention::q, &flat::FlatAttention::k, &flat::FlatAttention::v,
        &flat::FlatAttention::bias}) {
    Expect(AttnStatus::kBadBuffer, [=](auto* in) { --(in->*operand).size; });
    Expect(AttnStatus::kBadBuffer, [=](auto* in) { (in->*operand).data = nullptr; });
    Expect(AttnStatus::kBadBuffer, [=](auto* in) { (in->*operand).size = -5; });
  }
  Expect(AttnStatus::kBadBuffer, [](auto* in) { in->q = {}; });
}

TEST_P(FlatRefusal, ShortOutputs) {
  FlatProblem problem(kShape, true);
  for (std::size_t output = 0; output < GetParam().outputs; ++output) {
    Written written;
    for (auto& buffer : written.buffers) buffer.assign(12, kUntouched);
    written.buffers[output].resize(1);
    EXPECT_EQ(GetParam().call(problem.in, &written, {}), AttnStatus::kBadBuffer) << output;
    for (const auto& buffer : written.buffers) {
      for (const double x : buffer) EXPECT_EQ(x, kUntouched);
    }
  }
}

TEST_P(FlatRefusal, BudgetsThatAreTooSmall) {
  const std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
  Expect(AttnStatus::kBudgetExceeded, [](auto*) {}, {1, any});
  Expect(AttnStatus::kBudgetExceeded, [](auto*) {}, {any, 100});
  // Before anything of that size is allocated or read.
  Expect(AttnStatus::kBudgetExceeded, [](auto* in) { in->n_tok_q = 1 << 28; }, {1 << 20, any});
  Expect(AttnStatus::kOk, [](auto*) {}, {1 << 20, 1 << 20});
}

INSTANTIATE_TEST_SUITE_P(All, FlatRefusal, ::testing::ValuesIn(Functions()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FlatRefusals, OverlappingOutputs) {
  FlatProblem problem(kShape);
  const flat::FlatOutputs over_q = {{problem.q.data(), 12}, {}};
  std::vector<double> lse(6, kUntouched);
  const std::vector<double> q = problem.q;
  EXPECT_EQ(flat::SdpaForwardFlat(problem.in, {over_q.out, Buffer(lse)}), AttnStatus::kBadBuffer);
  EXPECT_EQ(problem.q, q);
  EXPECT_EQ(lse, std::vector<double>(6, kUntouched));
}

TEST(FlatRefusals, TilesStepsBackends) {
  FlatProblem problem(kShape);
  FlatResult result(problem);
  for (const std::int64_t tile : {std::int64_t{0}, INT64_MIN}) {
    EXPECT_EQ(flat::FlashForwardFlat(problem.in, tile, result.Outputs()), AttnStatus::kBadTile);
    EXPECT_EQ(flat::FlashAgreesWithSdpa(problem.in, tile).status, AttnStatus::kBadTile);
  }
  for (const double x : result.out) EXPECT_EQ(x, kUntouched);
  for (const double step : {0.0, -1.0, kNan, kInf}) {
    EXPECT_EQ(flat::AttnBwdGradcheckFlat(problem.in, step).status, AttnStatus::kBadStep);
  }
  EXPECT_EQ(flat::ReferenceDeltaFlat(static_cast<flat::Backend>(9), problem.in, 1).status,
            AttnStatus::kBadBackend);
}

TEST(FlatRefusals, Masks) {
  std::vector<double> bias(12, kUntouched);
  const Buffer to(bias);
  EXPECT_EQ(flat::MaskCausalFlat(0, 4, 0, to), AttnStatus::kBadTokensQ);
  EXPECT_EQ(flat::MaskCausalFlat(3, 0, 0, to), AttnStatus::kBadTokensK);
  EXPECT_EQ(flat::MaskCausalFlat(3, 4, INT64_MAX, to), AttnStatus::kBadOffset);
  EXPECT_EQ(flat::MaskCausalFlat(3, 5, 0, to), AttnStatus::kBadBuffer);
  EXPECT_EQ(flat::MaskCausalFlat(3, 4, 0, to, {0, 95}), AttnStatus::kBudgetExceeded);
  EXPECT_EQ(flat::MaskCausalFlat(kHuge, kHuge, 0, to), AttnStatus::kSizeOverflow);
  EXPECT_EQ(flat::MaskSlidingWindowFlat(3, 4, 0, 0, to), AttnStatus::kBadWindow);
  EXPECT_EQ(flat::MaskSlidingWindowFlat(3, 4, 1, INT64_MIN, to), AttnStatus::kBadOffset);
  EXPECT_EQ(flat::MaskPaddingFlat(3, 4, 5, to), AttnStatus::kBadLength);
  EXPECT_EQ(flat::MaskPaddingFlat(3, 4, -1, to), AttnStatus::kBadLength);
  const std::vector<std::int64_t> negative = {2, -1}, none, huge = {INT64_MAX, INT64_MAX};
  EXPECT_EQ(flat::MaskBlockDiagonalFlat(negative, to), AttnStatus::kBadLength);
  EXPECT_EQ(flat::MaskBlockDiagonalFlat(none, to), AttnStatus::kBadTokensQ);
  EXPECT_EQ(flat::MaskBlockDiagonalFlat(huge, to), AttnStatus::kSizeOverflow);
  for (const double x : bias) EXPECT_EQ(x, kUntouched);
  AttentionParams params;
  EXPECT_EQ(flat::MaskCausalNative(INT64_MIN, &params), AttnStatus::kBadOffset);
  EXPECT_EQ(flat::MaskSlidingWindowNative(0, 0, &params), AttnStatus::kBadWindow);
  EXPECT_EQ(flat::MaskPaddingNative(-1, &params), AttnStatus::kBadLength);
  EXPECT_EQ(flat::MaskPaddingNative(1, nullptr), AttnStatus::kBadBuffer);
  EXPECT_FALSE(params.causal || params.k_len.has_value());
}

TEST(FlatRefusals, Rope) {
  std::vector<double> cos(8, kUntouched), sin(8, kUntouched), out(8, kUntouched);
  const flat::RopeTableBuffers table = {Buffer(cos), Buffer(sin)};
  EXPECT_EQ(flat::RopeInvFreqFlat(3, 10000, Buffer(out)), AttnStatus::kBadHeadDim);
  EXPECT_EQ(flat::RopeInvFreqFlat(4, kNan, Buffer(out)), AttnStatus::kBadTheta);
  EXPECT_EQ(flat::RopeInvFreqFlat(18, 10000, Buffer(out)), AttnStatus::kBadBuffer);
  EXPECT_EQ(flat::RopeTableFlat(4, 0, 10000, table), AttnStatus::kBadLength);
  EXPECT_EQ(flat::RopeTableFlat(5, 4, 10000, table), AttnStatus::kBadHeadDim);
  EXPECT_EQ(flat::RopeTableFlat(4, 5, 10000, table), AttnStatus::kBadBuffer);
  EXPECT_EQ(flat::RopeTableFlat(4, kHuge, 10000, table, {}, {0, 1000}),
            AttnStatus::kBudgetExceeded);
  EXPECT_EQ(flat::RopeTableFlat(INT64_MAX - 1, kHuge, 10000, table), AttnStatus::kSizeOverflow);
  EXPECT_EQ(flat::RopeTableFlat(4, 4, -kInf, table), AttnStatus::kBadTheta);
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::kLinear;
  scaling.factor = 0;
  EXPECT_EQ(flat::RopeTableFlat(4, 4, 10000, table, scaling), AttnStatus::kBadScaling);
  for (const double x : cos) EXPECT_EQ(x, kUntouched);
  ASSERT_EQ(flat::RopeTableFlat(4, 4, 10000, table), AttnStatus::kOk);

  const std::vector<double> x(8, 1.0);
  std::vector<std::int64_t> position = {3, 4};
  flat::FlatRope rope;
  rope.x = ConstBuffer(x);
  rope.cos = ConstBuffer(cos);
  rope.sin = ConstBuffer(sin);
  rope.n_tok = 2;
  rope.n_heads = 1;
  rope.head_dim = 4;
  rope.position = flat::ConstIndices(position);
  const Buffer to(out);
  EXPECT_EQ(flat::RopeApplyFlat(rope, to), AttnStatus::kBadPosition);
  position[1] = -1;
  EXPECT_EQ(flat::RopeApplyFlat(rope, to), AttnStatus::kBadPosition);
  position[1] = 0;
  const auto expect = [&](AttnStatus wanted, const std::function<void(flat::FlatRope*)>& change) {
    flat::FlatRope bad = rope;
    change(&bad);
    EXPECT_EQ(flat::RopeApplyFlat(bad, to), wanted);
    EXPECT_EQ(flat::RopeApplyInverseFlat(bad, to), wanted);
    for (const double value : out) EXPECT_EQ(value, kUntouched);
  };
  expect(AttnStatus::kBadTokensQ, [](auto* r) { r->n_tok = 0; });
  expect(AttnStatus::kBadHeadsQ, [](auto* r) { r->n_heads = -1; });
  expect(AttnStatus::kBadHeadDim, [](auto* r) { r->head_dim = 3; });
  expect(AttnStatus::kSizeOverflow, [](auto* r) { r->n_heads = INT64_MAX; });
  expect(AttnStatus::kBadBuffer, [](auto* r) { r->x.size = 7; });
  expect(AttnStatus::kBadBuffer, [](auto* r) { r->position.size = 1; });
  expect(AttnStatus::kBadBuffer, [](auto* r) { r->cos.data = nullptr; });
  expect(AttnStatus::kBadBuffer, [](auto* r) { r->sin.size = 1; });
  EXPECT_EQ(flat::RopeApplyFlat(rope, to, {1, 1 << 20}), AttnStatus::kBudgetExceeded);
  EXPECT_EQ(flat::RopeApplyFlat(rope, {out.data(), 7}), AttnStatus::kBadBuffer);
  EXPECT_EQ(flat::RopeApplyFlat(rope, to), AttnStatus::kOk);
}

}  // namespace
}  // namespace flashlane::testing
