// Judged coefficients: what estimates make of them, and that they decide how work is spread over
// threads but no bit of a result.

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/cost.h"
#include "dispatch/fkc/time_model.h"
#include "dispatch/judged.h"
#include "dispatch/target.h"
#include "flashlane/info.h"
#include "tests/support/fkc_document.h"

// oneTBB forgets the 40 bytes of an observer when a process ends while a worker lingers in its
// arena.
extern "C" const char* __lsan_default_suppressions();   // NOLINT: the sanitizer's name
extern "C" const char* __lsan_default_suppressions() {  // NOLINT
  return "leak:tbb::detail::*::observe";
}

namespace flashlane::testing {
namespace {

constexpr char kFlash[] = "flashlane::fkc::attention_flash";
const FkcSizes kManyTiles = {2, 4, 2, 300, 310, 32, 16};
const FkcSizes kSplitKeys = {1, 8, 4, 40, 1700, 32, 16};
const FkcSizes kStreamed = {2, 8, 2, 1, 1700, 64, 16};
const FkcSizes kSmall = {2, 4, 2, 7, 40, 16, 16};

std::string Text(const YAML::Node& node) { return node.as<std::string>(); }

class FkcCoefficientsTest : public ::testing::TestWithParam<FkcSection> {
 protected:
  FkcCoefficientsTest() { fkc::ClearCoefficients(); }
  ~FkcCoefficientsTest() override { fkc::ClearCoefficients(); }

  const YAML::Node& block() const { return GetParam().block; }
  std::string symbol() const { return Text(block()["entry_point"]); }
  bool is_naive() const { return symbol().find("naive") != std::string::npos; }
  bool is_paged() const { return symbol().find("paged") != std::string::npos; }
  void Set(const fkc::Coefficients& coefficients) const {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      const Status status = fkc::SetCoefficients(symbol().c_str(), dtype, nullptr, coefficients);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  double Nanoseconds(const fkc::KernelCall& call) const {
    double nanoseconds = -1;
    const Status status = fkc::EstimateNanoseconds(symbol().c_str(), call, &nanoseconds);
    EXPECT_TRUE(status.ok()) << status.message();
    fkc::Cost cost;
    EXPECT_TRUE(fkc::EstimateCost(symbol().c_str(), call, &cost).ok());
    EXPECT_EQ(cost.nanoseconds, nanoseconds);
    return nanoseconds;
  }
};

fkc::Coefficients Only(double fkc::Coefficients::*which, double value) {
  fkc::Coefficients coefficients;
  coefficients.*which = value;
  return coefficients;
}

TEST_P(FkcCoefficientsTest, NoneUntilSet) {
  FkcCall call(block(), DType::kF32, kSmall);
  double nanoseconds = -1;
  const Status status = fkc::EstimateNanoseconds(symbol().c_str(), call.Call(), &nanoseconds);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("none are set"), std::string::npos) << status.message();
  EXPECT_EQ(nanoseconds, -1);
  fkc::Cost cost;
  cost.nanoseconds = 7;
  EXPECT_TRUE(fkc::EstimateCost(symbol().c_str(), call.Call(), &cost).ok());
  EXPECT_EQ(cost.nanoseconds, 0);
}

TEST_P(FkcCoefficientsTest, EstimatesAreTheModels) {
  for (const FkcSizes& sizes : {kManyTiles, kSplitKeys, kStreamed, kSmall}) {
    FkcCall call(block(), DType::kF32, sizes);
    fkc::Cost cost;
    ASSERT_TRUE(fkc::EstimateCost(symbol().c_str(), call.Call(), &cost).ok());
    const double visible = cost.visible_flops.ToDouble();
    Set(Only(&fkc::Coefficients::overhead_ns, 123));
    EXPECT_EQ(Nanoseconds(call.Call()), 123);
    fkc::Coefficients per_flop;
    per_flop.ns_per_flop = per_flop.stream_ns_per_flop = 1;
    Set(per_flop);
    // What panels and the softmax compute besides is not many times what was asked for.
    EXPECT_GE(Nanoseconds(call.Call()), visible);
    EXPECT_LE(Nanoseconds(call.Call()), 4 * visible);
    fkc::Coefficients per_byte;
    per_byte.ns_per_byte = per_byte.stream_ns_per_byte = 1;
    Set(per_byte);
    EXPECT_GE(Nanoseconds(call.Call()), cost.bytes_moved.ToDouble() / 2);
    Set(Only(&fkc::Coefficients::tile_ns, 1));
    EXPECT_GE(Nanoseconds(call.Call()), static_cast<double>(sizes.batch));
    EXPECT_EQ(Nanoseconds(call.Call()), std::floor(Nanoseconds(call.Call())));
  }
}

TEST_P(FkcCoefficientsTest, OfShapesAloneAndOfAnySize) {
  Set({10, 1, 1, 1, 1, 1});
  FkcCall call(block(), DType::kBF16, kStreamed, false);
  for (ConstTensorView& view : call.inputs) view.data = nullptr;
  call.outputs.clear();
  const double small = Nanoseconds(call.Call());
  const int64_t huge = int64_t{1} << 40;
  // Longer sequences; of a paged call more queries.
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    ConstTensorView& view = call.inputs[i];
    if (view.rank != 4 || (is_paged() && i > 0)) continue;
    view.shape[2] = huge;
    view = ConstTensorView(nullptr, view.dtype, view.rank, view.shape);
  }
  const double large = Nanoseconds(call.Call());
  EXPECT_TRUE(std::isfinite(large));
  EXPECT_GT(large, 1e6 * small);
}

TEST_P(FkcCoefficientsTest, NoBitDependsOnThem) {
  const tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 8);
  tbb::task_arena arena(4);
  const std::vector<FkcSizes> sizes =
      is_naive() ? std::vector{kSmall} : std::vector{kManyTiles, kSplitKeys, kStreamed};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const FkcSizes& s : sizes) {
      FkcCall call(block(), dtype, s);
      const auto bits = [&] {
        arena.execute([&] { EXPECT_TRUE(call.Run().ok()); });
        return call.Bits();
      };
      fkc::ClearCoefficients();
      const std::vector<std::byte> plain = bits();
      for (const double ns_per_flop : {1e-9, 1e9}) {
        Set(Only(&fkc::Coefficients::ns_per_flop, ns_per_flop));
        EXPECT_TRUE(bits() == plain) << DTypeName(dtype) << " " << ns_per_flop;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FkcCoefficientsTest, ::testing::ValuesIn(AllFkcSections()),
                         [](const auto& info) { return info.param.title; });

class CoefficientsTest : public ::testing::Test {
 protected:
  CoefficientsTest() { fkc::ClearCoefficients(); }
  ~CoefficientsTest() override { fkc::ClearCoefficients(); }
};

TEST_F(CoefficientsTest, AreKeptPerKernelDTypeAndTarget) {
  const std::vector<std::string> targets = SupportedTargets();
  const char* const first = targets.front().c_str();
  fkc::Coefficients found;
  EXPECT_EQ(fkc::FindCoefficients(kFlash, DType::kF32, first, &found).code(),
            StatusCode::kUnsupported);
  ASSERT_TRUE(fkc::SetCoefficients(kFlash, DType::kF32, first, {1, 2, 3, 4, 5, 6}).ok());
  ASSERT_TRUE(fkc::FindCoefficients(kFlash, DType::kF32, first, &found).ok());
  EXPECT_EQ(found.overhead_ns, 1);
  EXPECT_EQ(found.stream_ns_per_byte, 6);
  EXPECT_FALSE(fkc::FindCoefficients(kFlash, DType::kF64, first, &found).ok());
  EXPECT_FALSE(
      fkc::FindCoefficients("flashlane::fkc::attention_paged", DType::kF32, first, &found).ok());
  if (targets.size() > 1) {
    EXPECT_FALSE(fkc::FindCoefficients(kFlash, DType::kF32, targets[1].c_str(), &found).ok());
  }
  // One gradient, and all.
  const char backward[] = "flashlane::fkc::attention_flash_backward";
  const std::string one = std::string(backward) + "_k";
  ASSERT_TRUE(fkc::SetCoefficients(one.c_str(), DType::kF16, nullptr, {7, 0, 0, 0, 0, 0}).ok());
  for (const std::string& target : targets) {
    ASSERT_TRUE(fkc::FindCoefficients(backward, DType::kF16, target.c_str(), &found).ok());
    EXPECT_EQ(found.overhead_ns, 7);
  }
  fkc::ClearCoefficients();
  EXPECT_FALSE(fkc::FindCoefficients(kFlash, DType::kF32, first, &found).ok());
}

TEST_F(CoefficientsTest, AreRefused) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto message = [](const char* symbol, DType dtype, const char* target,
                          const fkc::Coefficients& coefficients) {
    const Status status = fkc::SetCoefficients(symbol, dtype, target, coefficients);
    EXPECT_FALSE(status.ok());
    fkc::Coefficients found;
    EXPECT_FALSE(fkc::FindCoefficients(kFlash, DType::kF32, nullptr, &found).ok());
    return status.message();
  };
  const fkc::Coefficients fine = {1, 1, 1, 1, 1, 1};
  EXPECT_NE(message("flashlane::fkc::rope", DType::kF32, nullptr, fine).find("entry_point"),
            std::string::npos);
  EXPECT_NE(message(nullptr, DType::kF32, nullptr, fine).find("entry_point"), std::string::npos);
  EXPECT_NE(message(kFlash, DType::kU32, nullptr, fine).find("dtype"), std::string::npos);
  EXPECT_NE(message(kFlash, DType::kF32, "Z80", fine).find("Z80"), std::string::npos);
  EXPECT_NE(message(kFlash, DType::kF32, nullptr, {}).find("all 0"), std::string::npos);
  EXPECT_NE(message(kFlash, DType::kF32, nullptr, {1, 1, -1, 1, 1, 1}).find("ns_per_flop"),
            std::string::npos);
  EXPECT_NE(message(kFlash, DType::kF32, nullptr, {1, 1, 1, 1, 1, kNaN}).find("stream_ns_per_byte"),
            std::string::npos);
}

TEST_F(CoefficientsTest, SayFromHowMuchWorkOnATaskIsWorthwhile) {
  for (const KernelRow& row : Registry()) {
    for (const Target& target : CompiledTargetList()) {
      EXPECT_EQ(MinTaskCost(row, target.bit), kMinTaskCost);
      // There is room for every row and target.
      ASSERT_TRUE(SetJudged(row, target.bit, Only(&fkc::Coefficients::ns_per_flop, 0.01)));
      EXPECT_EQ(MinTaskCost(row, target.bit), 1'000'000u);
      ASSERT_TRUE(SetJudged(row, target.bit, Only(&fkc::Coefficients::ns_per_flop, 1e9)));
      EXPECT_EQ(MinTaskCost(row, target.bit), 1u);
      ASSERT_TRUE(SetJudged(row, target.bit, Only(&fkc::Coefficients::ns_per_flop, 1e-300)));
      EXPECT_EQ(MinTaskCost(row, target.bit), uint64_t{1} << 62);
      ASSERT_TRUE(SetJudged(row, target.bit, Only(&fkc::Coefficients::overhead_ns, 1)));
      EXPECT_EQ(MinTaskCost(row, target.bit), kMinTaskCost);
    }
    EXPECT_FALSE(SetJudged(row, 0, {}));
    EXPECT_EQ(MinTaskCost(row, 0), kMinTaskCost);
  }
}

// Counts the workers that come to an arena.
class Workers : public tbb::task_scheduler_observer {
 public:
  explicit Workers(tbb::task_arena& arena) : task_scheduler_observer(arena) { observe(true); }
  ~Workers() override { observe(false); }
  void on_scheduler_entry(bool is_worker) override { count_ += is_worker ? 1 : 0; }
  int count() const { return count_; }

 private:
  std::atomic<int> count_{0};
};

TEST_F(CoefficientsTest, SpreadWorkOrKeepItTogether) {
  const tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 8);
  for (const FkcSection& section : AllFkcSections()) {
    const std::string symbol = Text(section.block["entry_point"]);
    if (symbol != kFlash && symbol.find("paged") == std::string::npos &&
        symbol != "flashlane::fkc::attention_flash_backward") {
      continue;
    }
    const bool naive = symbol.find("naive") != std::string::npos;
    FkcCall call(section.block, DType::kF32,
                 naive ? FkcSizes{2, 8, 8, 32, 64, 32, 16} : kManyTiles);
    const auto set = [&](double ns_per_flop) {
      ASSERT_TRUE(fkc::SetCoefficients(symbol.c_str(), DType::kF32, nullptr,
                                       Only(&fkc::Coefficients::ns_per_flop, ns_per_flop))
                      .ok());
      // The forward that a backward runs first.
      ASSERT_TRUE(fkc::SetCoefficients(kFlash, DType::kF32, nullptr,
                                       Only(&fkc::Coefficients::ns_per_flop, ns_per_flop))
                      .ok());
    };
    set(1e-9);  // so fast that a task is never worth it
    tbb::task_arena alone(4);
    const Workers none(alone);
    for (int i = 0; i < 10; ++i) alone.execute([&] { EXPECT_TRUE(call.Run().ok()); });
    EXPECT_EQ(none.count(), 0) << symbol;

    set(1e9);  // so slow that every tile is
    tbb::task_arena together(4);
    const Workers some(together);
    // How soon one comes is the scheduler's to say: no limit but the test runner's.
    bool ok = true;
    while (ok && some.count() == 0) together.execute([&] { ok = call.Run().ok(); });
    EXPECT_TRUE(ok) << symbol;
  }
}

TEST_F(CoefficientsTest, MayBeSetWhileOthersCompute) {
  const FkcSection section = AllFkcSections().front();
  const std::string symbol = Text(section.block["entry_point"]);
  std::atomic<bool> done{false};
  std::thread setter([&] {
    for (double ns = 1e-3; !done; ns = ns > 1e3 ? 1e-3 : 2 * ns) {
      EXPECT_TRUE(
          fkc::SetCoefficients(symbol.c_str(), DType::kF32, nullptr, {ns, ns, ns, ns, ns, ns})
              .ok());
    }
  });
  FkcCall call(section.block, DType::kF32, kSmall);
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(call.Run().ok());
    fkc::Cost cost;
    EXPECT_TRUE(fkc::EstimateCost(symbol.c_str(), call.Call(), &cost).ok());
    EXPECT_GE(cost.nanoseconds, 0);
  }
  done = true;
  setter.join();
}

// Pairs of whole panels where nothing is masked: the flops are the contract's, with the softmax.
TEST_F(CoefficientsTest, WholePanelsComputeNothingInVain) {
  for (const FkcSection& section : AllFkcSections()) {
    if (Text(section.block["entry_point"]) != kFlash) continue;
    FkcCall call(section.block, DType::kF32, {1, 2, 2, 256, 300, 64, 16});
    fkc::Cost cost;
    fkc::TimeTerms terms;
    ASSERT_TRUE(fkc::EstimateCost(kFlash, call.Call(), &cost).ok());
    ASSERT_TRUE(fkc::EstimateTerms(kFlash, call.Call(), &terms).ok());
    EXPECT_DOUBLE_EQ(terms.flops, cost.visible_flops.ToDouble() * (256 + 16) / 256);
    EXPECT_EQ(terms.stream_flops, 0);
    FkcCall decode(section.block, DType::kF32, {2, 8, 2, 1, 1000, 64, 16});
    ASSERT_TRUE(fkc::EstimateCost(kFlash, decode.Call(), &cost).ok());
    ASSERT_TRUE(fkc::EstimateTerms(kFlash, decode.Call(), &terms).ok());
    EXPECT_EQ(terms.flops, 0);
    EXPECT_EQ(terms.bytes, 0);
    EXPECT_DOUBLE_EQ(terms.stream_flops, cost.visible_flops.ToDouble() * (256 + 16) / 256);
    EXPECT_EQ(terms.stream_bytes, cost.bytes_moved.ToDouble());
  }
}

}  // namespace
}  // namespace flashlane::testing
