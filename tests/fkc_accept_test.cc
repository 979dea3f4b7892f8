// What the documents accept runs, and what they refuse is refused: every operand by dtype, rank,
// layout and shape, every parameter by kind and value, as read from the documents alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/dtype.h"
#include "dispatch/view.h"
#include "tests/support/fkc_document.h"

namespace flashlane::testing {
namespace {

constexpr DType kMain[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
constexpr DType kAll[] = {DType::kF32,  DType::kF64, DType::kBF16, DType::kF16,
                          DType::kBool, DType::kI32, DType::kI64,  DType::kU32};

std::string Text(const YAML::Node& node) { return node.as<std::string>(); }

class FkcAcceptTest : public ::testing::TestWithParam<FkcSection> {
 protected:
  const YAML::Node& block() const { return GetParam().block; }
  size_t num_operands() const { return block()["accept"]["inputs"].size(); }
  YAML::Node operand(size_t i) const { return block()["accept"]["inputs"][i]; }

  // Runs and writes, or refuses and writes nothing; the check of shapes alone says the same.
  void Expect(const FkcCall& call, bool accepted, const std::string& what) const {
    const Status status = call.Run();
    EXPECT_EQ(status.ok(), accepted) << what << ": " << status.message();
    EXPECT_EQ(call.IsUntouched(), !accepted) << what;
    const StatusCode code = accepted ? StatusCode::kOk : StatusCode::kInvalidArgument;
    EXPECT_EQ(status.code(), code) << what;
    if (!call.strict) return;
    const Status admitted = fkc::Admits(Text(block()["entry_point"]).c_str(), call.Call());
    EXPECT_EQ(admitted.ok(), accepted) << what << ": " << admitted.message();
  }
};

TEST_P(FkcAcceptTest, OperandsByDType) {
  int accepted = 0;
  for (const bool strict : {true, false}) {
    for (const DType main : kMain) {
      for (size_t i = 0; i < num_operands(); ++i) {
        for (const DType own : kAll) {
          FkcCall call(block(), main, {});
          call.strict = strict;
          call.inputs[i].dtype = own;
          if (Text(operand(i)["name"]) == "context_lens" || !IsAttentionDType(own)) {
            // Bits of another dtype must be legal numbers of tokens and of blocks.
            std::memset(const_cast<void*>(call.inputs[i].data), 0,
                        static_cast<size_t>(NumElements(call.inputs[i])) * DTypeSize(own));
          }
          const bool admitted = DTypesAdmitted(block(), call.inputs);
          accepted += admitted;
          Expect(call, admitted,
                 Text(operand(i)["name"]) + " " + DTypeName(own) + " in " + DTypeName(main));
        }
      }
    }
  }
  EXPECT_GE(accepted, 2 * 4);
}

TEST_P(FkcAcceptTest, OperandsByRank) {
  for (const bool strict : {true, false}) {
    for (size_t i = 0; i < num_operands(); ++i) {
      for (int rank = 0; rank <= 5; ++rank) {
        FkcCall call(block(), DType::kF32, {});
        call.strict = strict;
        const bool optional = operand(i)["optional"] && operand(i)["optional"].as<bool>();
        const bool right = rank == operand(i)["rank"].as<int>();
        if (!right) {
          const int64_t shape[] = {1, 1, 1, 1, 1};
          const void* data = call.inputs[i].data;
          call.inputs[i] = {};
          if (rank > 0) call.inputs[i] = ConstTensorView(data, DType::kF32, rank, shape);
        }
        Expect(call, right || (optional && rank == 0),
               Text(operand(i)["name"]) + " of rank " + std::to_string(rank));
      }
    }
  }
}

// Accepted layouts give the bits of dense operands.
TEST_P(FkcAcceptTest, OperandsByLayout) {
  const struct {
    FkcLayout layout;
    const char* flag;
  } layouts[] = {{FkcLayout::kDense, "contiguous"},
                 {FkcLayout::kPadded, "strided"},
                 {FkcLayout::kTransposed, "strided"},
                 {FkcLayout::kInnerStride, "inner_stride"},
                 {FkcLayout::kBroadcast, "broadcast_stride0"},
                 {FkcLayout::kOffset, "start_offset"},
                 {FkcLayout::kReversed, "reverse_strides"}};
  for (const bool strict : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (size_t i = 0; i < num_operands(); ++i) {
        for (const auto& [layout, flag] : layouts) {
          const std::string said = Text(operand(i)["layout"][flag]);
          const bool accepted = said != "rejected" && said != "1";
          FkcCall call(block(), dtype, {}), dense(block(), dtype, {});
          call.strict = strict;
          call.LayOut(i, layout);
          if (layout == FkcLayout::kBroadcast) dense.Expand(i);
          Expect(call, accepted, Text(operand(i)["name"]) + ": " + flag);
          if (!accepted) continue;
          const Status status = dense.Run();
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_EQ(call.Bits(), dense.Bits()) << Text(operand(i)["name"]) << ": " << flag;
        }
      }
    }
  }
}

// Every size one up and one down, and 0: strict calls follow the document's constraints to the
// letter, and others accept at least what it does.
TEST_P(FkcAcceptTest, OperandsByShape) {
  int refused = 0;
  for (size_t i = 0; i < num_operands(); ++i) {
    for (int dim = 0; dim < operand(i)["rank"].as<int>(); ++dim) {
      for (const int change : {-1, 1, -100}) {
        FkcCall call(block(), DType::kF32, {});
        FkcSizes room;
        room.batch += 1, room.num_heads += 1, room.num_kv_heads += 1, room.seqlen_q += 1;
        room.seqlen_k += 5, room.head_dim += 1;
        FkcCall larger(block(), DType::kF32, room);  // whose memory has room
        const ConstTensorView old = call.inputs[i];
        int64_t shape[kMaxRank];
        std::copy_n(old.shape, kMaxRank, shape);
        shape[dim] = change == -100 ? 0 : shape[dim] + change;
        call.inputs[i] = ConstTensorView(larger.inputs[i].data, old.dtype, old.rank, shape);
        const std::string name = Text(operand(i)["name"]);
        if (Text(block()["fused_op"]) == "PAGED_ATTN") {
          // Values that suit any size: no tokens, block 0.
          const size_t lens = call.Position("context_lens");
          for (const size_t at : {i, lens}) {
            const ConstTensorView& view = call.inputs[at];
            std::memset(const_cast<void*>(view.data), 0,
                        static_cast<size_t>(NumElements(view)) * DTypeSize(view.dtype));
          }
        }
        // Outputs of the document's shapes, where q or k changed alone.
        bool outputs_fit = true;
        for (size_t o = 0; o < call.outputs.size(); ++o) {
          const TensorView& output = call.outputs[o];
          const YAML::Node bundle = block()["return"]["bundle"];
          const YAML::Node rule = bundle ? bundle[o] : block()["return"]["outputs"][o];
          const std::string like = Text(rule["dtype_rule"]);
          if (like != "passthrough(" + name + ")") continue;
          outputs_fit = outputs_fit && std::equal(shape, shape + output.rank, output.shape);
        }
        const bool admitted = ShapesAdmitted(block(), call.inputs) && outputs_fit;
        refused += !admitted;
        Expect(call, admitted, name + " " + ShapeString(call.inputs[i]));
      }
    }
  }
  EXPECT_GT(refused, 10);
}

// Random sizes that satisfy every constraint run, whole and empty ones.
TEST_P(FkcAcceptTest, SizesThatSatisfyTheConstraintsRun) {
  const FkcSizes sizes[] = {{1, 1, 1, 1, 1, 1, 1}, {3, 6, 2, 5, 33, 7, 16}, {2, 3, 3, 17, 2, 65, 1},
                            {0, 2, 1, 3, 4, 8, 4}, {2, 2, 2, 0, 4, 8, 4},   {2, 2, 1, 3, 0, 8, 4}};
  for (const FkcSizes& size : sizes) {
    for (const DType dtype : kMain) {
      for (const bool with_optional : {true, false}) {
        FkcCall call(block(), dtype, size, with_optional);
        ASSERT_TRUE(ShapesAdmitted(block(), call.inputs));
        const Status status = call.Run();
        EXPECT_TRUE(status.ok()) << status.message();
        for (size_t o = 0; o < call.outputs.size(); ++o) {
          for (const double value : call.OutputValues(o)) EXPECT_TRUE(std::isfinite(value));
        }
      }
    }
  }
}

TEST_P(FkcAcceptTest, OutputsByDTypeShapeAndLayout) {
  const FkcCall whole(block(), DType::kF32, {});
  for (size_t o = 0; o < whole.outputs.size(); ++o) {
    FkcCall dtype(block(), DType::kF32, {});
    dtype.outputs[o].dtype = DType::kBF16;
    Expect(dtype, false, "output of another dtype");
    for (int dim = 0; dim < 4; ++dim) {
      FkcCall shape(block(), DType::kF32, {});
      shape.outputs[o].shape[dim] -= 1;
      Expect(shape, false, "output of another shape");
    }
    FkcCall strides(block(), DType::kF32, {});
    std::swap(strides.outputs[o].strides[1], strides.outputs[o].strides[2]);
    strides.outputs[o].strides[1] = strides.outputs[o].shape[3];
    strides.outputs[o].strides[2] = strides.outputs[o].shape[1] * strides.outputs[o].shape[3];
    Expect(strides, false, "output with strides");
    strides.strict = false;
    Expect(strides, true, "output with strides, not strict");
  }
  FkcCall fewer(block(), DType::kF32, {});
  fewer.outputs.pop_back();
  EXPECT_EQ(fewer.Run().code(), StatusCode::kInvalidArgument);
  FkcCall more(block(), DType::kF32, {});
  more.outputs.push_back(more.outputs[0]);
  EXPECT_EQ(more.Run().code(), StatusCode::kInvalidArgument);
}

// in_place false, aliasing none.
TEST_P(FkcAcceptTest, OutputsShareNoMemory) {
  ASSERT_FALSE(block()["caps"]["in_place"].as<bool>());
  for (const bool strict : {true, false}) {
    for (size_t i = 0; i < num_operands(); ++i) {
      FkcCall call(block(), DType::kF32, {});
      call.strict = strict;
      const auto bytes = static_cast<size_t>(NumElements(call.inputs[i])) * 4;
      const std::vector<std::byte> before(
          static_cast<const std::byte*>(call.inputs[i].data),
          static_cast<const std::byte*>(call.inputs[i].data) + bytes);
      call.outputs[0].data = const_cast<void*>(call.inputs[i].data);
      const Status status = call.Run();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("shares memory"), std::string::npos) << status.message();
      EXPECT_EQ(std::memcmp(call.inputs[i].data, before.data(), bytes), 0);
    }
  }
}

TEST_P(FkcAcceptTest, NumbersOfOperands) {
  for (const bool strict : {true, false}) {
    FkcCall more(block(), DType::kF32, {});
    more.strict = strict;
    more.inputs.push_back(more.inputs[0]);
    Expect(more, false, "one operand more");
    FkcCall fewer(block(), DType::kF32, {}, false);
    fewer.strict = strict;
    Expect(fewer, true, "without the optional one");
  }
  FkcCall fewer(block(), DType::kF32, {}, false);
  fewer.inputs.pop_back();
  Expect(fewer, false, "one operand fewer");
  fkc::KernelCall nothing;
  const fkc::KernelRef run = fkc::Resolve(Text(block()["entry_point"]).c_str());
  EXPECT_EQ(run(nothing).code(), StatusCode::kInvalidArgument);
}

TEST_P(FkcAcceptTest, ArraysThatAreNull) {
  const std::string symbol = Text(block()["entry_point"]);
  const FkcCall call(block(), DType::kF32, {});
  for (const bool strict : {true, false}) {
    for (int array = 0; array < 3; ++array) {
      fkc::KernelCall null = call.Call();
      null.strict = strict;
      if (array == 0) null.inputs = nullptr;
      if (array == 1) null.outputs = nullptr;
      if (array == 2) null.params = nullptr;
      fkc::Cost cost;
      uint64_t bytes = 0;
      for (const Status& status :
           {fkc::Resolve(symbol.c_str())(null), fkc::Admits(symbol.c_str(), null),
            fkc::EstimateCost(symbol.c_str(), null, &cost),
            fkc::EstimateScratch(symbol.c_str(), null, &bytes)}) {
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << array;
        EXPECT_NE(status.message().find("array is null"), std::string::npos) << status.message();
      }
    }
  }
}

TEST_P(FkcAcceptTest, ParametersByKind) {
  using fkc::Param;
  const YAML::Node fields = block()["accept"]["op_params"]["fields"];
  for (size_t p = 0; p < fields.size(); ++p) {
    const FkcCall whole(block(), DType::kF32, {});
    const char* name = whole.params[p].name;
    const std::string kind = Text(fields[name]["kind"]);
    const bool option = kind.rfind("Option", 0) == 0;
    const bool is_f32 = kind == "f32" || kind == "Option<f32>";
    const bool is_size = kind == "usize" || kind == "Option<usize>" || kind == "Option<DynScalar>";
    const auto expect = [&](const Param& param, bool accepted, const char* what) {
      FkcCall call(block(), DType::kF32, {});
      call.params[p] = param;
      Expect(call, accepted, std::string(name) + ": " + what);
    };
    expect(Param::None(name), option, "None");
    expect(Param::F32(name, 0.5f), is_f32, "f32");
    expect(Param::F64(name, 0.5), false, "f64");
    expect(Param::Bool(name, true), kind == "bool", "bool");
    expect(Param::Usize(name, 5), is_size, "usize");  // also block_size
    expect(Param::I64(name, 5), false, "i64");
    expect(Param::None("sliding_window"), false, "unknown");
    expect(Param::None(nullptr), false, "without a name");
    FkcCall absent(block(), DType::kF32, {});
    absent.params.erase(absent.params.begin() + static_cast<std::ptrdiff_t>(p));
    Expect(absent, option, std::string(name) + ": left out");
    FkcCall twice(block(), DType::kF32, {});
    twice.params.push_back(twice.params[p]);
    Expect(twice, false, std::string(name) + ": twice");
    twice.strict = false;
    Expect(twice, false, std::string(name) + ": twice, not strict");
  }
}

// A document's words, and values on both sides of them; strict and not.
TEST_P(FkcAcceptTest, ParametersByValue) {
  using fkc::Param;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const YAML::Node fields = block()["accept"]["op_params"]["fields"];
  for (const auto& field : fields) {
    const std::string name = Text(field.first);
    const std::string words = field.second["constraint"] ? Text(field.second["constraint"]) : "";
    std::vector<Param> good, bad;
    const char* n = name.c_str();
    if (words == "finite") {
      good = {Param::F32(n, 0), Param::F32(n, -3)};
      bad = {Param::F32(n, nan), Param::F32(n, kInf), Param::F32(n, -kInf)};
    } else if (words == "finite and > 0") {
      good = {Param::F32(n, 1e-3f), Param::F32(n, 50)};
      bad = {Param::F32(n, 0), Param::F32(n, -1), Param::F32(n, nan), Param::F32(n, kInf)};
    } else if (words == "<= k.dim[2]") {
      good = {Param::Usize(n, 0), Param::Usize(n, 10)};
      bad = {Param::Usize(n, 11), Param::Usize(n, ~uint64_t{0})};
    } else if (words == "== k_cache.dim[1] == v_cache.dim[1]") {
      good = {Param::Usize(n, 5)};
      bad = {Param::Usize(n, 4), Param::Usize(n, 6), Param::Usize(n, 0)};
    } else {
      EXPECT_EQ(words, "") << name;
      if (Text(field.second["kind"]) == "bool") {
        good = {Param::Bool(n, true), Param::Bool(n, false)};
      } else {
        good = {Param::Usize(n, 0), Param::Usize(n, 3), Param::Usize(n, ~uint64_t{0})};
      }
    }
    for (const bool strict : {true, false}) {
      for (const bool is_good : {true, false}) {
        for (const Param& param : is_good ? good : bad) {
          FkcCall call(block(), DType::kF32, {});
          call.strict = strict;
          for (Param& slot : call.params) {
            if (slot.name == name) slot = param;
          }
          Expect(call, is_good,
                 name + " " + std::to_string(param.real) + " " + std::to_string(param.integer));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FkcAcceptTest, ::testing::ValuesIn(AllFkcSections()),
                         [](const auto& info) { return info.param.title; });

}  // namespace
}  // namespace flashlane::testing
