// Cost: the documents' formulas, the cost query, arithmetic written out here, and what the work
// budget counts when a call runs, all say the same; for any shape, in 128 bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "dispatch/fkc/formula.h"
#include "dispatch/visible_pairs.h"
#include "dispatch/wide.h"
#include "tests/support/fkc_document.h"

namespace flashlane::testing {
namespace {

std::string Text(const YAML::Node& node) { return node.as<std::string>(); }

Uint128 Wide(const fkc::Count& count) { return Uint128{count.high} << 64 | count.low; }

class FkcCostTest : public ::testing::TestWithParam<FkcSection> {
 protected:
  const YAML::Node& block() const { return GetParam().block; }
  std::string symbol() const { return Text(block()["entry_point"]); }
  bool is_paged() const { return Text(block()["fused_op"]) == "PAGED_ATTN"; }
  bool has_k_len() const { return Text(block()["fused_op"]) == "FLASH_ATTN"; }
  std::string variant() const { return Text(block()["accept"]["op_params"]["variant"]); }

  fkc::Cost Estimate(const fkc::KernelCall& call) const {
    fkc::Cost cost;
    const Status status = fkc::EstimateCost(symbol().c_str(), call, &cost);
    EXPECT_TRUE(status.ok()) << status.message();
    return cost;
  }

  // Flops per pair and element of D (== Dv), from what each entry computes.
  int FlopsPerPair() const {
    if (variant() != "FlashAttnBackward") return 4;
    const std::string kernel = Text(block()["kernel"]);
    const bool flash = kernel.find("flash") != std::string::npos;
    const bool bundle = block()["return"]["bundle"].IsDefined();
    const bool only_v = !bundle && Text(block()["return"]["outputs"][0]["name"]) == "dv";
    // S, dP, dV, dQ, dK; S, dP, dQ (or dK); S, dV. And the forward's S and PV.
    return 2 * ((bundle ? 5 : only_v ? 2 : 3) + (flash ? 2 : 0));
  }
};

std::map<std::string, double> SymbolsOf(const FkcCall& call, const FkcSizes& s, double k_len,
                                        double tokens) {
  std::map<std::string, double> symbols = {
      {"b", static_cast<double>(s.batch)},
      {"hq", static_cast<double>(s.num_heads)},
      {"hkv", static_cast<double>(s.num_kv_heads)},
      {"sq", static_cast<double>(s.seqlen_q)},
      {"sk", static_cast<double>(s.seqlen_k)},
      {"d", static_cast<double>(s.head_dim)},
      {"dtype_bytes", static_cast<double>(DTypeSize(call.inputs[0].dtype))},
      {"k_len", k_len},
      {"v.dim[3]", static_cast<double>(s.head_dim)},
      {"v_cache.dim[3]", static_cast<double>(s.head_dim)},
      {"block_table.dim[1]", static_cast<double>((s.seqlen_k + s.block_size - 1) / s.block_size)},
      {"block_size", static_cast<double>(s.block_size)},
      {"sum(context_lens)", tokens}};
  return symbols;
}

FkcSizes RandomSizes(std::mt19937_64* random) {
  const auto pick = [random](int64_t most) {
    return static_cast<int64_t>((*random)() % static_cast<uint64_t>(most)) + 1;
  };
  FkcSizes sizes;
  sizes.batch = pick(3);
  sizes.num_kv_heads = pick(3);
  sizes.num_heads = sizes.num_kv_heads * pick(4);
  sizes.seqlen_q = pick(9);
  sizes.seqlen_k = pick(40);
  sizes.head_dim = pick(20);
  sizes.block_size = pick(9);
  return sizes;
}

TEST_P(FkcCostTest, TheDocumentsFormulasAreTheQuerysAndTheHandsArithmetic) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 40; ++trial) {
    const FkcSizes s = RandomSizes(&random);
    const DType dtype = static_cast<DType>(trial % 4);
    FkcCall call(block(), dtype, s);
    double tokens = 0, live = static_cast<double>(s.seqlen_k);
    for (int64_t b = 0; b < s.batch; ++b) tokens += std::max<int64_t>(s.seqlen_k - 3 * b, 0);
    if (has_k_len() && trial % 2 == 1) {
      live = static_cast<double>(random() % static_cast<uint64_t>(s.seqlen_k + 1));
      for (fkc::Param& param : call.params) {
        if (std::string(param.name) == "k_len") {
          param = fkc::Param::Usize("k_len", static_cast<uint64_t>(live));
        }
      }
    }
    const auto symbols = SymbolsOf(call, s, live, tokens);
    const YAML::Node cost = block()["cost"];
    const auto said = [&](const std::string& key, bool is_live) {
      const std::string full = is_live && cost[key + "_live"] ? key + "_live" : key;
      return EvaluateText(Text(cost[full]), symbols);
    };
    const fkc::Cost at_live = Estimate(call.Call());
    EXPECT_EQ(at_live.flops.ToDouble(), said("flops", true));
    EXPECT_EQ(at_live.bytes_moved.ToDouble(), said("bytes_moved", true));
    EXPECT_EQ(at_live.host_bytes.ToDouble(),
              EvaluateText(Text(cost["memory"]["host_bytes"]), symbols));

    const double d = static_cast<double>(s.head_dim);
    const double rows = static_cast<double>(s.batch * s.num_heads * s.seqlen_q);
    const double keys = is_paged() ? tokens : static_cast<double>(s.batch) * live;
    const double pairs = static_cast<double>(s.num_heads * s.seqlen_q) * keys;
    EXPECT_EQ(at_live.flops.ToDouble(), FlopsPerPair() * pairs * d);
    const double kv_rows = keys * static_cast<double>(s.num_kv_heads);
    double outputs = 0;
    for (const TensorView& output : call.outputs) {
      outputs += static_cast<double>(output.shape[0] * output.shape[1] * output.shape[2]) * d;
    }
    // q, k, v; dout as well; the outputs.
    const double inputs = (rows + 2 * kv_rows + (variant() == "FlashAttnBackward" ? rows : 0)) * d;
    EXPECT_EQ(at_live.bytes_moved.ToDouble(),
              (inputs + outputs) * static_cast<double>(DTypeSize(dtype)));
    EXPECT_EQ(at_live.host_bytes.ToDouble(), outputs * static_cast<double>(DTypeSize(dtype)));

    // At capacity: the lengths are not known yet, nor is any data.
    for (ConstTensorView& view : call.inputs) view.data = nullptr;
    for (fkc::Param& param : call.params) {
      if (std::string(param.name) == "k_len") param = fkc::Param::None("k_len");
    }
    const fkc::Cost at_capacity = Estimate(call.Call());
    EXPECT_EQ(at_capacity.flops.ToDouble(), said("flops", false));
    EXPECT_EQ(at_capacity.bytes_moved.ToDouble(), said("bytes_moved", false));
    EXPECT_GE(at_capacity.flops.ToDouble(), at_live.flops.ToDouble());
  }
}

// The largest budget that refuses a call, plus one.
TEST_P(FkcCostTest, TheBudgetCountsVisibleFlopsAndScratch) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 12; ++trial) {
    const FkcSizes s = RandomSizes(&random);
    FkcCall call(block(), static_cast<DType>(trial % 4), s);
    call.options.num_threads = 1 + trial % 2;
    for (fkc::Param& param : call.params) {
      const std::string name = param.name;
      if (name == "causal") param = fkc::Param::Bool("causal", trial % 3 == 1);
      if (name == "window_size_left" && trial % 3 == 2) {
        param = fkc::Param::Usize("window_size_left", random() % 5);
      }
    }
    const fkc::Cost cost = Estimate(call.Call());
    EXPECT_LE(cost.visible_flops.ToDouble(), cost.flops.ToDouble());
    EXPECT_TRUE(is_paged() || trial % 3 != 0 || Wide(cost.visible_flops) == Wide(cost.flops));
    uint64_t scratch = 0;
    const Status status = fkc::EstimateScratch(symbol().c_str(), call.Call(), &scratch);
    ASSERT_TRUE(status.ok()) << status.message();

    call.options.max_flops = cost.visible_flops.Saturated();
    call.options.max_scratch_bytes = scratch;
    EXPECT_TRUE(call.Run().ok());
    if (call.options.max_flops > 0) {
      call.options.max_flops -= 1;
      EXPECT_EQ(call.Run().code(), StatusCode::kBudgetExceeded);
      call.options.max_flops += 1;
    }
    if (scratch > 0) {
      call.options.max_scratch_bytes -= 1;
      EXPECT_EQ(call.Run().code(), StatusCode::kBudgetExceeded);
    }
  }
}

// v with a head size of its own: not in a strict call, but a call all the same.
TEST_P(FkcCostTest, HeadSizesOfTheirOwn) {
  FkcCall call(block(), DType::kF32, {});
  const fkc::Cost alike = Estimate(call.Call());
  for (ConstTensorView& view : call.inputs) view.data = nullptr;
  call.inputs[2].shape[3] = 24;
  fkc::Cost cost;
  EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), call.Call(), &cost).ok());
  call.strict = false;
  if (variant() == "FlashAttnBackward") {  // dout has it, too
    EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), call.Call(), &cost).ok());
    call.inputs[3].shape[3] = 24;
  }
  cost = Estimate(call.Call());
  EXPECT_GT(cost.flops.ToDouble(), alike.flops.ToDouble());
}

// 2^40 queries and as many keys: 4 b hq sq sk d is beyond 64 bits.
TEST_P(FkcCostTest, HugeShapes) {
  FkcSizes small;
  small.batch = small.num_heads = small.num_kv_heads = 1;
  FkcCall call(block(), DType::kF32, small, false);
  const int64_t huge = int64_t{1} << 40;
  for (ConstTensorView& view : call.inputs) view.data = nullptr;
  call.outputs.clear();
  const auto resize = [&call](size_t i, int dim, int64_t size) {
    int64_t shape[kMaxRank];
    std::copy_n(call.inputs[i].shape, kMaxRank, shape);
    shape[dim] = size;
    const ConstTensorView& old = call.inputs[i];
    call.inputs[i] = ConstTensorView(nullptr, old.dtype, old.rank, shape);
  };
  resize(0, 2, huge);
  if (is_paged()) {
    resize(3, 1, huge / small.block_size);
  } else {
    resize(1, 2, huge);
    resize(2, 2, huge);
    if (variant() == "FlashAttnBackward") resize(3, 2, huge);
  }
  const Uint128 keys =
      static_cast<Uint128>(is_paged() ? huge / small.block_size * small.block_size : huge);
  const fkc::Cost cost = Estimate(call.Call());
  const Uint128 flops = static_cast<Uint128>(FlopsPerPair()) * static_cast<Uint128>(huge) * keys *
                        static_cast<Uint128>(small.head_dim);
  EXPECT_GT(cost.flops.high, 0u);
  EXPECT_TRUE(Wide(cost.flops) == flops);
  EXPECT_EQ(cost.flops.Saturated(), std::numeric_limits<uint64_t>::max());
  EXPECT_GT(cost.visible_flops.high, 0u);
  EXPECT_LE(cost.visible_flops.ToDouble(), cost.flops.ToDouble());
}

// Scratch is planned in the time of the batch, whatever the heads; a batch that is empty plans the
// bytes of a row, too.
TEST_P(FkcCostTest, ScratchOfHugeShapes) {
  const auto sizes = [&](int64_t batch, int64_t heads, int64_t head_dim) {
    FkcCall call(block(), DType::kF32, {}, false);
    call.outputs.clear();
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const ConstTensorView& old = call.inputs[i];
      if (old.rank != 4) continue;
      int64_t shape[kMaxRank];
      std::copy_n(old.shape, kMaxRank, shape);
      const bool pool = is_paged() && i > 0;
      if (!pool) shape[0] = batch;
      shape[pool ? 2 : 1] = heads;
      shape[3] = head_dim;
      call.inputs[i] = ConstTensorView(nullptr, old.dtype, old.rank, shape);
    }
    uint64_t bytes = 0;
    return fkc::EstimateScratch(symbol().c_str(), call.Call(), &bytes);
  };
  if (!is_paged()) {
    EXPECT_TRUE(sizes(2, int64_t{1} << 32, 8).ok());
  }
  EXPECT_FALSE(sizes(is_paged() ? 2 : 0, 4, int64_t{1} << 61).ok());
}

TEST_P(FkcCostTest, WhatMakesNoSenseIsRefused) {
  fkc::Cost cost;
  for (const bool strict : {true, false}) {
    FkcCall heads(block(), DType::kF32, {});
    heads.strict = strict;
    heads.inputs[0].shape[1] = 3;
    EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), heads.Call(), &cost).ok());
    FkcCall rank(block(), DType::kF32, {});
    rank.strict = strict;
    rank.inputs[0].rank = 3;
    EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), rank.Call(), &cost).ok());
    FkcCall negative(block(), DType::kF32, {});
    negative.strict = strict;
    negative.inputs[0].shape[2] = -3;
    EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), negative.Call(), &cost).ok());
    FkcCall sound(block(), DType::kF32, {});
    sound.strict = strict;
    for (const Status& status :
         {fkc::EstimateCost(symbol().c_str(), sound.Call(), nullptr),
          fkc::EstimateScratch(symbol().c_str(), sound.Call(), nullptr),
          fkc::EstimateNanoseconds(symbol().c_str(), sound.Call(), nullptr)}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("is null"), std::string::npos) << status.message();
    }
    if (!strict && !is_paged()) {
      sound.params.push_back(fkc::Param::I64("q_start", 1));
      EXPECT_TRUE(fkc::EstimateCost(symbol().c_str(), sound.Call(), &cost).ok());
      sound.params.push_back(fkc::Param::Bool("bottom_right", true));
      EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), sound.Call(), &cost).ok());
      FkcCall far(block(), DType::kF32, {}, false);
      far.strict = false;
      far.params.push_back(fkc::Param::I64("q_start", std::numeric_limits<int64_t>::max()));
      EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), far.Call(), &cost).ok());
      FkcCall narrow(block(), DType::kF32, {});
      narrow.strict = false;
      narrow.inputs[2].shape[3] = 0;
      uint64_t bytes = 0;
      EXPECT_FALSE(fkc::EstimateScratch(symbol().c_str(), narrow.Call(), &bytes).ok());
    }
    if (!is_paged()) continue;
    FkcCall context(block(), DType::kF32, {});
    const uint32_t beyond = 1000;
    std::memcpy(const_cast<void*>(context.inputs[4].data), &beyond, 4);
    EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), context.Call(), &cost).ok());
  }
  uint64_t bytes = 0;
  FkcCall call(block(), DType::kF32, {});
  EXPECT_FALSE(fkc::EstimateCost("attention_flash", call.Call(), &cost).ok());
  EXPECT_FALSE(fkc::EstimateCost(nullptr, call.Call(), &cost).ok());
  EXPECT_FALSE(fkc::EstimateScratch(nullptr, call.Call(), &bytes).ok());
  EXPECT_FALSE(fkc::EstimateCost(symbol().c_str(), {}, &cost).ok());
}

INSTANTIATE_TEST_SUITE_P(All, FkcCostTest, ::testing::ValuesIn(AllFkcSections()),
                         [](const auto& info) { return info.param.title; });

TEST(FormulaTest, SumsAndProducts) {
  const auto symbols = [](std::string_view name, Uint128* value) {
    *value = name == "a" ? 3 : name == "k.dim[2]" ? 5 : name == "sum(c)" ? 7 : 0;
    return *value != 0;
  };
  const auto value = [&](const char* text) -> int64_t {
    Uint128 result = 0;
    return fkc::EvaluateFormula(text, symbols, &result) ? static_cast<int64_t>(result) : -1;
  };
  EXPECT_EQ(value("2 + 3 * a"), 11);
  EXPECT_EQ(value("(2 + 3) * a*k.dim[2]"), 75);
  EXPECT_EQ(value("2 * (sum(c) + (1))"), 16);
  for (const char* wrong : {"", "2 +", "2 3", "b", "(a", "a)", "* a", "a.dim[", "-1", "2 - 1"}) {
    EXPECT_EQ(value(wrong), -1) << wrong;
  }
  EXPECT_EQ(value(std::string(100000, '(').c_str()), -1);
  Uint128 most = 0;
  ASSERT_TRUE(
      fkc::EvaluateFormula("340282366920938463463374607431768211455 * 2 + 1", symbols, &most));
  EXPECT_TRUE(most == kMaxUint128);
}

TEST(VisiblePairsTest, AsCountedOneByOne) {
  std::mt19937_64 random(3);
  const auto pick = [&random](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int trial = 0; trial < 20000; ++trial) {
    kernels::SequenceMask mask;
    mask.k_len = pick(0, 12);
    mask.q_start = pick(-15, 15);
    if (trial & 1) mask.window_left = trial & 2 ? pick(0, 9) : kernels::kUnlimited - pick(1, 2);
    if (trial & 4) mask.window_right = trial & 8 ? pick(0, 9) : kernels::kUnlimited - pick(1, 2);
    mask.clamps_positions = trial & 16;
    const int64_t begin = pick(0, 5), end = begin + pick(0, 9);
    const kernels::KeyRange range{pick(0, 6), trial & 32 ? kernels::kUnlimited : pick(0, 14)};
    int64_t pairs = 0;
    for (int64_t i = begin; i < end; ++i) {
      const kernels::KeyRange keys = mask.Visible(i);
      for (int64_t j = std::max(keys.begin, range.begin); j < std::min(keys.end, range.end); ++j) {
        ++pairs;
      }
    }
    ASSERT_EQ(static_cast<int64_t>(VisiblePairs(mask, begin, end, range)), pairs)
        << "trial " << trial;
  }
}

}  // namespace
}  // namespace flashlane::testing
