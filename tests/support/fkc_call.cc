// FkcCall: operands, parameters and outputs of a call, as its block says.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "dispatch/dtype.h"
#include "dispatch/view.h"
#include "tests/support/fkc_document.h"

namespace flashlane::testing {
namespace {

constexpr std::byte kPoison{0xA5};
constexpr size_t kSlack = 256;  // before and after, for offsets

// Calls visit(offset of the element in elements, its row-major number).
void ForEach(const ConstTensorView& view, const std::function<void(int64_t, int64_t)>& visit) {
  const int64_t count = NumElements(view);
  for (int64_t flat = 0; flat < count; ++flat) {
    int64_t rest = flat, offset = 0;
    for (int d = view.rank - 1; d >= 0; --d) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    visit(offset, flat);
  }
}

std::vector<std::byte> Packed(const ConstTensorView& view) {
  const size_t size = DTypeSize(view.dtype);
  std::vector<std::byte> packed(static_cast<size_t>(NumElements(view)) * size);
  ForEach(view, [&](int64_t offset, int64_t flat) {
    std::memcpy(packed.data() + static_cast<size_t>(flat) * size,
                static_cast<const std::byte*>(view.data) + offset * static_cast<int64_t>(size),
                size);
  });
  return packed;
}

std::vector<int64_t> ShapeOf(const std::string& name, const FkcSizes& s) {
  const int64_t blocks_each = (s.seqlen_k + s.block_size - 1) / s.block_size;
  const int64_t num_blocks = s.batch * blocks_each;
  if (name == "q" || name == "dout") return {s.batch, s.num_heads, s.seqlen_q, s.head_dim};
  if (name == "k" || name == "v") return {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim};
  if (name == "k_cache" || name == "v_cache") {
    return {num_blocks, s.block_size, s.num_kv_heads, s.head_dim};
  }
  if (name == "block_table") return {s.batch, blocks_each};
  if (name == "context_lens") return {s.batch};
  if (name == "alibi_slopes") return {s.num_heads};
  ADD_FAILURE() << "no such operand: " << name;
  return {};
}

}  // namespace

std::byte* FkcCall::Memory::At(size_t past_boundary) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t boundary = (begin + kSlack / 2 + 63) / 64 * 64;
  return bytes.data() + (boundary - begin) + past_boundary;
}

FkcCall::FkcCall(const YAML::Node& block, DType dtype, const FkcSizes& sizes, bool with_optional)
    : block_(block) {
  for (const YAML::Node& operand : block["accept"]["inputs"]) {
    if (operand["optional"] && operand["optional"].as<bool>() && !with_optional) continue;
    MakeInput(operand, dtype, sizes);
  }
  MakeParams(sizes);
  MakeOutputs(dtype);
}

void FkcCall::MakeInput(const YAML::Node& operand, DType dtype, const FkcSizes& sizes) {
  const std::string name = operand["name"].as<std::string>();
  const std::vector<int64_t> shape = ShapeOf(name, sizes);
  const bool is_integer = name == "block_table" || name == "context_lens";
  const DType own = is_integer ? DType::kU32 : dtype;
  ConstTensorView view(nullptr, own, operand["rank"].as<int>(), shape.data());
  const auto count = static_cast<size_t>(NumElements(view));
  // Room for any dtype.
  Memory memory{std::vector<std::byte>(count * sizeof(double) + 2 * kSlack)};
  std::byte* data = memory.At(0);
  if (is_integer) {
    for (uint32_t i = 0; i < count; ++i) {
      // Blocks in falling order; contexts of different lengths, the first as long as it may be.
      const auto blocks = static_cast<uint32_t>(count);
      const auto longest = static_cast<uint32_t>(sizes.seqlen_k);
      const uint32_t value =
          name == "block_table" ? blocks - 1 - i : longest - std::min(longest, 3 * i);
      std::memcpy(data + i * 4, &value, 4);
    }
  } else {
    std::mt19937_64 random(std::hash<std::string>()(name));
    std::normal_distribution<double> normal(0, name == "alibi_slopes" ? 0.1 : 1);
    std::vector<double> values(count);
    for (double& value : values) value = normal(random);
    if (IsAttentionDType(own)) {
      ConvertElements(values.data(), DType::kF64, data, own, static_cast<int64_t>(count));
    }
  }
  view.data = data;
  inputs.push_back(view);
  input_memory_.push_back(std::move(memory));
}

void FkcCall::MakeParams(const FkcSizes& sizes) {
  for (const auto& field : block_["accept"]["op_params"]["fields"]) {
    names_.push_back(field.first.as<std::string>());
  }
  for (const std::string& name : names_) {
    const std::string kind =
        block_["accept"]["op_params"]["fields"][name]["kind"].as<std::string>();
    if (name == "block_size") {
      params.push_back(fkc::Param::Usize(name.c_str(), static_cast<uint64_t>(sizes.block_size)));
    } else if (kind == "f32") {
      params.push_back(
          fkc::Param::F32(name.c_str(), 1.0f / std::sqrt(static_cast<float>(sizes.head_dim))));
    } else if (kind == "bool") {
      params.push_back(fkc::Param::Bool(name.c_str(), false));
    } else {
      EXPECT_EQ(kind.rfind("Option<", 0), 0u) << kind;
      params.push_back(fkc::Param::None(name.c_str()));
    }
  }
}

void FkcCall::MakeOutputs(DType dtype) {
  const YAML::Node bundle = block_["return"]["bundle"];
  for (const YAML::Node& result : bundle ? bundle : block_["return"]["outputs"]) {
    const std::string dtype_rule = result["dtype_rule"].as<std::string>();
    const std::string shape_rule = result["shape_rule"].as<std::string>();
    const size_t open = shape_rule.find('(');
    const std::string like = shape_rule.substr(open + 1, shape_rule.size() - open - 2);
    EXPECT_EQ(dtype_rule, "passthrough(" + like + ")");
    const ConstTensorView& operand = inputs[Position(like)];
    TensorView view(nullptr, dtype, operand.rank, operand.shape);
    Memory memory{std::vector<std::byte>(
        static_cast<size_t>(NumElements(view)) * DTypeSize(dtype) + 2 * kSlack, kPoison)};
    view.data = memory.At(0);
    outputs.push_back(view);
    output_memory_.push_back(std::move(memory));
  }
}

size_t FkcCall::Position(const std::string& operand) const {
  const YAML::Node operands = block_["accept"]["inputs"];
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i]["name"].as<std::string>() == operand) return i;
  }
  ADD_FAILURE() << "no operand " << operand;
  return 0;
}

void FkcCall::LayOut(size_t input, FkcLayout layout) {
  ConstTensorView view = inputs[input];
  const std::vector<std::byte> packed = Packed(view);
  const int inner = view.rank - 1;
  int64_t order[kMaxRank] = {0, 1, 2, 3};
  if (layout == FkcLayout::kTransposed && view.rank == 4) std::swap(order[1], order[2]);
  if (layout == FkcLayout::kTransposed && view.rank == 2) std::swap(order[0], order[1]);
  int64_t stride = layout == FkcLayout::kInnerStride ? 2 : 1;
  for (int at = inner; at >= 0; --at) {
    const auto dim = static_cast<size_t>(order[at]);
    view.strides[dim] = stride;
    stride *= view.shape[dim];
    if (layout == FkcLayout::kPadded && (at == inner || view.rank == 1)) stride += 7;
    if (layout == FkcLayout::kPadded && at != inner) stride += 5 * stride;
  }
  if (layout == FkcLayout::kPadded && view.rank == 1) view.strides[0] = 3;
  const int outer = view.rank == 1 ? 0 : inner - 1;
  if (layout == FkcLayout::kBroadcast) view.strides[0] = 0;
  int64_t first = 0, last = 0;
  if (layout == FkcLayout::kReversed) {
    first = (view.shape[outer] - 1) * view.strides[outer];
    view.strides[outer] = -view.strides[outer];
  }
  for (int d = 0; d < view.rank; ++d) {
    last += std::max<int64_t>(view.strides[d], 0) * (view.shape[d] - 1);
  }
  if (layout == FkcLayout::kOffset) first = 1;
  const size_t size = DTypeSize(view.dtype);
  Memory memory{std::vector<std::byte>(
      static_cast<size_t>(first + std::max(last, NumElements(view)) + 1) * size + 2 * kSlack)};
  std::byte* data = memory.At(0) + static_cast<size_t>(first) * size;
  view.data = data;
  // From the last to the first, so that where elements share memory that of index 0 stays.
  for (int64_t flat = NumElements(view) - 1; flat >= 0; --flat) {
    int64_t rest = flat, offset = 0;
    for (int d = inner; d >= 0; --d) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    std::memcpy(data + offset * static_cast<int64_t>(size),
                packed.data() + static_cast<size_t>(flat) * size, size);
  }
  inputs[input] = view;
  input_memory_[input] = std::move(memory);
}

void FkcCall::Expand(size_t input) {
  ConstTensorView& view = inputs[input];
  auto* data = static_cast<std::byte*>(const_cast<void*>(view.data));
  const size_t slice =
      static_cast<size_t>(NumElements(view) / view.shape[0]) * DTypeSize(view.dtype);
  for (int64_t i = 1; i < view.shape[0]; ++i) {
    std::memcpy(data + static_cast<size_t>(i) * slice, data, slice);
  }
}

void FkcCall::MoveTo(size_t input, size_t bytes) {
  const std::vector<std::byte> packed = Packed(inputs[input]);
  std::byte* data = input_memory_[input].At(bytes);
  std::memcpy(data, packed.data(), packed.size());
  inputs[input].data = data;
}

void FkcCall::MoveOutputTo(size_t output, size_t bytes) {
  outputs[output].data = output_memory_[output].At(bytes);
}

fkc::KernelCall FkcCall::Call() const {
  fkc::KernelCall call;
  call.inputs = inputs.data();
  call.num_inputs = inputs.size();
  call.outputs = outputs.data();
  call.num_outputs = outputs.size();
  call.params = params.data();
  call.num_params = params.size();
  call.strict = strict;
  call.options = options;
  return call;
}

Status FkcCall::Run() const {
  const std::string symbol = block_["entry_point"].as<std::string>();
  const fkc::KernelRef run = fkc::Resolve(symbol.c_str());
  if (run == nullptr) return Status::InvalidArgument("does not resolve: " + symbol);
  return run(Call());
}

std::vector<std::byte> FkcCall::Bits() const {
  std::vector<std::byte> bits;
  for (const TensorView& output : outputs) {
    const std::vector<std::byte> packed = Packed(output);
    bits.insert(bits.end(), packed.begin(), packed.end());
  }
  return bits;
}

bool FkcCall::IsUntouched() const {
  for (const Memory& memory : output_memory_) {
    for (const std::byte byte : memory.bytes) {
      if (byte != kPoison) return false;
    }
  }
  return true;
}

std::vector<double> FkcCall::OutputValues(size_t output) const {
  const std::vector<std::byte> packed = Packed(outputs[output]);
  std::vector<double> values(static_cast<size_t>(NumElements(outputs[output])));
  ConvertElements(packed.data(), outputs[output].dtype, values.data(), DType::kF64,
                  static_cast<int64_t>(values.size()));
  return values;
}

}  // namespace flashlane::testing
