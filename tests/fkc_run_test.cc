// Kernels called from their documents alone: results, determinism, alignment, precision; and what
// calls that are not strict may do besides.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "dispatch/dtype.h"
#include "dispatch/view.h"
#include "flashlane/backward.h"
#include "flashlane/info.h"
#include "flashlane/paged.h"
#include "kernels/key_splits.h"
#include "tests/support/fkc_document.h"

namespace flashlane::testing {
namespace {

constexpr DType kMain[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
const FkcSizes kTiled = {1, 4, 2, 37, 300, 64, 16};
const FkcSizes kStreamed = {2, 8, 2, 1, 300, 128, 16};
const FkcSizes kSmall = {2, 4, 2, 7, 40, 16, 16};  // for the oracles, which have one way only

std::string Text(const YAML::Node& node) { return node.as<std::string>(); }

class FkcRunTest : public ::testing::TestWithParam<FkcSection> {
 protected:
  const YAML::Node& block() const { return GetParam().block; }
  std::string kernel() const { return Text(block()["kernel"]); }
  bool is_naive() const { return kernel().find("naive") != std::string::npos; }
  bool is_paged() const { return Text(block()["fused_op"]) == "PAGED_ATTN"; }
  bool is_backward() const {
    return Text(block()["accept"]["op_params"]["variant"]) == "FlashAttnBackward";
  }
  std::vector<std::byte> BitsOf(const FkcCall& call) const {
    const Status status = call.Run();
    EXPECT_TRUE(status.ok()) << status.message();
    return call.Bits();
  }
  static void Set(FkcCall* call, const fkc::Param& param) {
    for (fkc::Param& slot : call->params) {
      if (std::string(slot.name) == param.name) slot = param;
    }
  }
};

// The same operands and parameters through the C++ interface.
Status RunDirectly(const FkcCall& call, const std::string& kernel, bool paged, bool backward) {
  AttentionParams params;
  for (const fkc::Param& param : call.params) {
    const std::string name = param.name;
    if (param.kind == fkc::Param::Kind::kNone) continue;
    if (name == "softmax_scale") params.softmax_scale = param.real;
    if (name == "softcap") params.softcap = param.real;
    if (name == "causal") params.causal = param.integer != 0;
    if (name == "window_size_left") params.window_size_left = param.integer;
    if (name == "window_size_right") params.window_size_right = param.integer;
    if (name == "k_len") params.k_len = param.integer;
  }
  ExecOptions options = call.options;
  const bool naive = kernel.find("naive") != std::string::npos;
  options.kernel = naive ? Kernel::kNaive : Kernel::kFlash;
  const auto& in = call.inputs;
  if (paged) {
    PagedInputs inputs;
    inputs.q = in[0], inputs.k_cache = in[1], inputs.v_cache = in[2];
    inputs.block_table = in[3], inputs.context_lens = in[4], inputs.alibi_slopes = in[5];
    AttentionOutputs outputs;
    outputs.out = call.outputs[0];
    return AttentionPaged(inputs, params, outputs, options);
  }
  AttentionInputs inputs;
  inputs.q = in[0], inputs.k = in[1], inputs.v = in[2], inputs.alibi_slopes = in.back();
  if (!backward) {
    AttentionOutputs outputs;
    outputs.out = call.outputs[0];
    return Attention(inputs, params, outputs, options);
  }
  BackwardInputs all;
  all.forward = inputs;
  all.dout = in[3];
  BackwardOutputs gradients;
  TensorView* const slots[] = {&gradients.dq, &gradients.dk, &gradients.dv};
  if (call.outputs.size() == 3) {
    for (size_t g = 0; g < 3; ++g) *slots[g] = call.outputs[g];
  } else {
    *slots[kernel.back() == 'q' ? 0 : kernel.back() == 'k' ? 1 : 2] = call.outputs[0];
  }
  return AttentionBackward(all, params, gradients, options);
}

// Every parameter of the document has its effect: each alone changes bits, as in the C++ call.
TEST_P(FkcRunTest, ResultsAreThoseOfTheInterface) {
  using fkc::Param;
  const std::vector<Param> changes = {Param::F32("softmax_scale", 0.7f),
                                      Param::Bool("causal", true),
                                      Param::Usize("window_size_left", 1),
                                      Param::Usize("window_size_right", 1),
                                      Param::F32("softcap", 0.5f),
                                      Param::Usize("k_len", 7),
                                      Param::None("")};
  for (const DType dtype : kMain) {
    FkcCall plain(block(), dtype, {});
    const std::vector<std::byte> plain_bits = BitsOf(plain);
    for (const Param& change : changes) {
      FkcCall call(block(), dtype, {}), direct(block(), dtype, {});
      const bool has = std::any_of(call.params.begin(), call.params.end(), [&](const Param& p) {
        return std::string(p.name) == change.name;
      });
      Set(&call, change);
      Set(&direct, change);
      const Status status = RunDirectly(direct, kernel(), is_paged(), is_backward());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(BitsOf(call), direct.Bits()) << change.name;
      EXPECT_EQ(call.Bits() != plain_bits, has) << change.name;
    }
    FkcCall without(block(), dtype, {}, false);
    EXPECT_NE(BitsOf(without), plain_bits) << "alibi_slopes";
  }
}

TEST_P(FkcRunTest, DeterminismIsAsSaid) {
  ASSERT_EQ(Text(block()["determinism"]), "same_hardware_bitwise");
  std::vector<std::string> targets = SupportedTargets();
  if (is_naive()) targets.resize(1);
  const std::vector<FkcSizes> all =
      is_naive() ? std::vector{kSmall} : std::vector{kTiled, kStreamed};
  for (const FkcSizes& sizes : all) {
    for (const DType dtype : kMain) {
      for (const std::string& target : targets) {
        FkcCall once(block(), dtype, sizes);
        once.options.target = target.c_str();
        once.options.num_threads = 1;
        const std::vector<std::byte> bits = BitsOf(once);
        for (const int threads : {1, 2, 3}) {
          FkcCall again(block(), dtype, sizes);
          again.options = once.options;
          again.options.num_threads = threads;
          EXPECT_EQ(BitsOf(again), bits) << target << ", " << threads << " threads";
        }
      }
    }
  }
}

// Any alignment of an element, of inputs and outputs, and the same bits; less is refused.
TEST_P(FkcRunTest, AlignmentIsAsSaid) {
  const YAML::Node caps = block()["caps"];
  EXPECT_EQ(caps["alignment_bytes"].as<size_t>(), kernels::kScratchAlignment);
  ASSERT_EQ(Text(caps["input_alignment_bytes"]), "dtype_bytes");
  const FkcSizes sizes = is_naive() ? kSmall : kStreamed;
  for (const DType dtype : kMain) {
    FkcCall aligned(block(), dtype, sizes);
    const std::vector<std::byte> bits = BitsOf(aligned);
    for (size_t i = 0; i < aligned.inputs.size(); ++i) {
      for (const size_t elements : {1u, 3u, 7u}) {
        FkcCall moved(block(), dtype, sizes);
        moved.MoveTo(i, elements * DTypeSize(moved.inputs[i].dtype));
        for (size_t o = 0; o < moved.outputs.size(); ++o) {
          moved.MoveOutputTo(o, elements * DTypeSize(dtype));
        }
        EXPECT_EQ(BitsOf(moved), bits);
      }
      FkcCall between(block(), dtype, sizes);
      between.MoveTo(i, 1);
      EXPECT_EQ(between.Run().code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(between.IsUntouched());
    }
  }
}

TEST_P(FkcRunTest, EntriesOfOneGradientHaveTheBitsOfTheBundle) {
  const YAML::Node bundle = block()["return"]["bundle"];
  if (!bundle) return;
  ASSERT_EQ(bundle.size(), 3u);
  for (const DType dtype : kMain) {
    FkcCall all(block(), dtype, is_naive() ? kSmall : kTiled);
    ASSERT_TRUE(all.Run().ok());
    for (size_t g = 0; g < bundle.size(); ++g) {
      int found = 0;
      for (const FkcSection& section : AllFkcSections()) {
        if (Text(section.block["entry_point"]) != Text(bundle[g]["entry_point"])) continue;
        ++found;
        FkcCall one(section.block, dtype, is_naive() ? kSmall : kTiled);
        ASSERT_EQ(Text(section.block["return"]["outputs"][0]["name"]), Text(bundle[g]["name"]));
        ASSERT_TRUE(one.Run().ok());
        EXPECT_EQ(one.OutputValues(0), all.OutputValues(g));
      }
      EXPECT_EQ(found, 1);
    }
  }
}

// The truth: the scalar oracle in F64, on the very numbers of the call.
std::vector<std::vector<double>> Truth(const YAML::Node& block, const FkcCall& call,
                                       const FkcSizes& sizes) {
  FkcCall truth(block, DType::kF64, sizes);
  for (size_t i = 0; i < truth.inputs.size(); ++i) {
    if (!IsAttentionDType(call.inputs[i].dtype)) continue;
    ConvertElements(call.inputs[i].data, call.inputs[i].dtype,
                    const_cast<void*>(truth.inputs[i].data), DType::kF64,
                    NumElements(call.inputs[i]));
  }
  std::string symbol = Text(block["entry_point"]);
  symbol = std::regex_replace(symbol, std::regex("attention_flash_backward"),
                              "attention_backward_naive");
  symbol = std::regex_replace(symbol, std::regex("attention_flash$"), "attention_naive");
  symbol = std::regex_replace(symbol, std::regex("attention_paged$"), "attention_paged_naive");
  const Status status = fkc::Resolve(symbol.c_str())(truth.Call());
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<std::vector<double>> values;
  for (size_t o = 0; o < truth.outputs.size(); ++o) values.push_back(truth.OutputValues(o));
  return values;
}

TEST_P(FkcRunTest, ErrorsStayBelowTheMeasuredMaximum) {
  std::vector<std::string> targets = SupportedTargets();
  if (is_naive()) targets.resize(1);
  for (const DType dtype : kMain) {
    double worst = 0;
    for (const FkcSizes& sizes : {kTiled, kStreamed}) {
      for (const std::string& target : targets) {
        FkcCall call(block(), dtype, sizes);
        call.options.target = target.c_str();
        ASSERT_TRUE(call.Run().ok());
        const auto truth = Truth(block(), call, sizes);
        for (size_t o = 0; o < truth.size(); ++o) {
          const std::vector<double> values = call.OutputValues(o);
          for (size_t i = 0; i < values.size(); ++i) {
            worst = std::max(worst, std::abs(values[i] - truth[o][i]));
          }
        }
      }
    }
    const YAML::Node said = block()["precision"]["measured_max_absolute"][DTypeName(dtype)];
    EXPECT_LE(worst, said.as<double>()) << DTypeName(dtype);
    // F64's oracle is the truth itself.
    EXPECT_TRUE(worst >= said.as<double>() / 16 || (dtype == DType::kF64 && is_naive()))
        << DTypeName(dtype) << " " << worst << " makes the statement a loose one";
    RecordProperty(DTypeName(dtype), std::to_string(worst));
  }
}

// What the document says of few rows is when the kernel takes those ways.
TEST_P(FkcRunTest, FastPathsOfFewRowsAreTheKernels) {
  int found = 0;
  for (const YAML::Node& path : block()["caps"]["fast_paths"]) {
    std::smatch match, keys;
    const std::string when = Text(path["when"]), note = Text(path["note"]);
    if (!std::regex_match(when, match, std::regex(R"(sq \* hq <= (\d+) \* hkv)"))) continue;
    ASSERT_TRUE(std::regex_search(note, keys, std::regex(R"(from (\d+) keys on)")));
    ++found;
    const auto ways = [](int64_t rows, int64_t num_keys) {
      kernels::ForwardArgs args;
      args.num_heads = args.num_kv_heads = 1;
      kernels::Sequence sequence;
      sequence.seqlen_q = rows;
      sequence.k_len = num_keys;
      return kernels::KeySplits::Of(args, sequence);
    };
    const int64_t most_rows = std::stoll(match[1]), least_keys = std::stoll(keys[1]);
    const auto taken = [&](int64_t rows, int64_t num_keys) {
      const kernels::KeySplits splits = ways(rows, num_keys);
      return note.find("split") != std::string::npos ? splits.count > 1 : splits.streams;
    };
    EXPECT_TRUE(taken(most_rows, least_keys)) << when;
    EXPECT_FALSE(taken(most_rows + 1, least_keys)) << when;
    EXPECT_FALSE(taken(most_rows, least_keys - 1)) << when;
  }
  EXPECT_EQ(found, is_naive() || is_backward() ? 0 : 2);
}

TEST_P(FkcRunTest, CallsThatAreNotStrictMayDoMore) {
  using fkc::Param;
  // No parameter is needed.
  FkcSizes sizes;
  sizes.head_dim = 16;  // whose scale is the same number in f32 and in f64
  FkcCall bare(block(), DType::kF32, sizes);
  FkcCall plain(block(), DType::kF32, sizes);
  bare.strict = false;
  bare.params.clear();
  EXPECT_EQ(BitsOf(bare), BitsOf(plain));
  // Parameters that the document does not have: refused in a strict call.
  const std::vector<Param> extra =
      is_paged() ? std::vector<Param>{Param::I64("window_size_left", 1)}
                 : std::vector<Param>{Param::I64("q_start", -1), Param::Bool("bottom_right", true)};
  for (const Param& param : extra) {
    FkcCall call(block(), DType::kF32, {});
    if (!is_paged()) Set(&call, Param::Bool("causal", true));
    const std::vector<std::byte> before = BitsOf(call);
    call.params.push_back(param);
    EXPECT_EQ(call.Run().code(), StatusCode::kInvalidArgument) << param.name;
    call.strict = false;
    EXPECT_NE(BitsOf(call), before) << param.name;
  }
  if (is_backward()) {
    FkcCall some(block(), DType::kF32, {});
    some.strict = false;
    if (some.outputs.size() == 3) {
      some.outputs[1] = {};
      EXPECT_TRUE(some.Run().ok());
      some.strict = true;
      EXPECT_EQ(some.Run().code(), StatusCode::kInvalidArgument);
    }
    return;
  }
  // lse as a second output.
  FkcCall call(block(), DType::kF32, {});
  std::vector<float> lse(2 * 4 * 3, -7.0f);
  call.outputs.emplace_back(lse.data(), DType::kF32, std::initializer_list<int64_t>{2, 4, 3});
  EXPECT_EQ(call.Run().code(), StatusCode::kInvalidArgument);
  call.strict = false;
  EXPECT_TRUE(call.Run().ok());
  EXPECT_TRUE(std::none_of(lse.begin(), lse.end(), [](float x) { return x == -7.0f; }));
}

INSTANTIATE_TEST_SUITE_P(All, FkcRunTest, ::testing::ValuesIn(AllFkcSections()),
                         [](const auto& info) { return info.param.title; });

}  // namespace
}  // namespace flashlane::testing
