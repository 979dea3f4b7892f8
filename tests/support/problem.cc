#include "tests/support/problem.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "dispatch/dtype.h"
#include "dispatch/registry.h"
#include "dispatch/target.h"

namespace flashlane::testing {
namespace {

int64_t Count(const ConstTensorView& view) {
  int64_t count = 1;
  for (int d = 0; d < view.rank; ++d) count *= view.shape[d];
  return count;
}

// Element offset of the flat row-major index.
int64_t Offset(const ConstTensorView& view, int64_t flat) {
  int64_t offset = 0;
  for (int d = view.rank - 1; d >= 0; --d) {
    offset += flat % view.shape[d] * view.strides[d];
    flat /= view.shape[d];
  }
  return offset;
}

double Read(const void* data, DType dtype, int64_t i) {
  const std::byte* at = static_cast<const std::byte*>(data) + i * int64_t(DTypeSize(dtype));
  double value = 0;
  if (ConvertElements(at, dtype, &value, DType::kF64, 1)) return value;
  if (dtype == DType::kBool) return static_cast<double>(std::to_integer<int>(*at));
  if (dtype == DType::kI64) {
    int64_t integer = 0;
    std::memcpy(&integer, at, sizeof integer);
    return static_cast<double>(integer);
  }
  int32_t integer = 0;
  std::memcpy(&integer, at, sizeof integer);
  return dtype == DType::kU32 ? static_cast<uint32_t>(integer) : integer;
}

void Write(void* data, DType dtype, int64_t i, double value) {
  std::byte* at = static_cast<std::byte*>(data) + i * int64_t(DTypeSize(dtype));
  if (ConvertElements(&value, DType::kF64, at, dtype, 1)) return;
  if (dtype == DType::kBool) {
    *at = value != 0 ? std::byte{1} : std::byte{0};
  } else if (dtype == DType::kI64) {
    const int64_t integer = static_cast<int64_t>(value);
    std::memcpy(at, &integer, sizeof integer);
  } else {
    const int64_t integer = static_cast<int64_t>(value);
    std::memcpy(at, &integer, 4);  // I32 and U32: the low half
  }
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : engine_(seed) {}

  std::vector<double> Normal(int64_t count, double deviation) {
    std::normal_distribution<double> normal(0.0, deviation);
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) value = normal(engine_);
    return values;
  }

  std::vector<double> Integers(int64_t count, int64_t low, int64_t high) {
    std::uniform_int_distribution<int64_t> uniform(low, high);
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) value = static_cast<double>(uniform(engine_));
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

OwnedTensor InLayout(const OwnedTensor& dense, Layout layout, int64_t row_padding) {
  const int64_t heads = dense.view.shape[1], rows = dense.view.shape[2],
                width = dense.view.shape[3];
  if (layout == Layout::kBhsd) return dense;
  if (layout == Layout::kBshd) {
    return dense.WithStrides({rows * heads * width, width, heads * width, 1});
  }
  const int64_t row = width + row_padding;
  const int64_t head = rows * row + 3;
  return dense.WithStrides({heads * head + 5, head, row, 1});
}

// q, k and v as slices of one [B, S, Hq + 2 Hkv, D]. Each owns a whole copy, which is enough for
// strides.
OwnedTensor Slice(const OwnedTensor& dense, int64_t total_heads) {
  const int64_t rows = dense.view.shape[2], width = dense.view.shape[3];
  return dense.WithStrides({rows * total_heads * width, width, total_heads * width, 1});
}

int64_t Pick(int bits, int bit, int64_t size) { return (bits & bit) != 0 ? size : 1; }

}  // namespace

OwnedTensor Poisoned(DType dtype, const ConstTensorView& shape_and_strides) {
  OwnedTensor tensor;
  tensor.view = shape_and_strides;
  tensor.view.dtype = dtype;
  int64_t last = 0;
  for (int d = 0; d < tensor.view.rank; ++d) {
    last += std::max<int64_t>(tensor.view.shape[d] - 1, 0) * tensor.view.strides[d];
  }
  tensor.storage.assign(static_cast<size_t>(last + 1) * DTypeSize(dtype), std::byte{0xA5});
  return tensor;
}

OwnedTensor PoisonedRows(DType dtype, std::initializer_list<int64_t> shape, Layout layout) {
  OwnedTensor rows = Poisoned(dtype, ConstTensorView(nullptr, dtype, shape));
  if (layout == Layout::kBhsd) return rows;
  return InLayout(rows, layout == Layout::kPadded ? Layout::kPadded : Layout::kBshd, 4);
}

TensorView Writable(OwnedTensor& tensor) {
  TensorView view;
  if (!tensor.view.present()) return view;
  view.data = tensor.storage.data();
  view.dtype = tensor.view.dtype;
  view.rank = tensor.view.rank;
  std::copy(std::begin(tensor.view.shape), std::end(tensor.view.shape), view.shape);
  std::copy(std::begin(tensor.view.strides), std::end(tensor.view.strides), view.strides);
  return view;
}

ConstTensorView OwnedTensor::View() const {
  ConstTensorView current = view;
  current.data = current.present() ? storage.data() : nullptr;
  return current;
}

OwnedTensor OwnedTensor::Of(const std::vector<double>& values, DType dtype,
                            std::initializer_list<int64_t> shape) {
  OwnedTensor tensor = Poisoned(dtype, ConstTensorView(nullptr, dtype, shape));
  for (size_t i = 0; i < values.size(); ++i) {
    Write(tensor.storage.data(), dtype, static_cast<int64_t>(i), values[i]);
  }
  return tensor;
}

OwnedTensor OwnedTensor::WithStrides(std::initializer_list<int64_t> strides) const {
  ConstTensorView other = view;
  std::copy(strides.begin(), strides.end(), other.strides);
  OwnedTensor tensor = Poisoned(view.dtype, other);
  const size_t size = DTypeSize(view.dtype);
  for (int64_t i = 0; i < Count(view); ++i) {
    std::memcpy(tensor.storage.data() + static_cast<size_t>(Offset(other, i)) * size,
                storage.data() + static_cast<size_t>(Offset(view, i)) * size, size);
  }
  return tensor;
}

std::vector<double> OwnedTensor::Values() const {
  std::vector<double> values(static_cast<size_t>(Count(view)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Read(storage.data(), view.dtype, Offset(view, static_cast<int64_t>(i)));
  }
  return values;
}

double OwnedTensor::At(std::initializer_list<int64_t> index) const {
  int64_t offset = 0;
  int d = 0;
  for (const int64_t i : index) offset += i * view.strides[d++];
  return Read(storage.data(), view.dtype, offset);
}

void OwnedTensor::Set(std::initializer_list<int64_t> index, double value) {
  int64_t offset = 0;
  int d = 0;
  for (const int64_t i : index) offset += i * view.strides[d++];
  Write(storage.data(), view.dtype, offset, value);
}

std::string ProblemSpec::ToString() const {
  std::string text = "B" + std::to_string(batch) + " Hq" + std::to_string(num_heads) + " Hkv" +
                     std::to_string(num_kv_heads) + " Sq" + std::to_string(seqlen_q) + " Sk" +
                     std::to_string(seqlen_k) + " D" + std::to_string(head_dim) + " Dv" +
                     std::to_string(head_dim_v);
  if (params.causal) text += " causal";
  if (params.window_size_left) text += " left" + std::to_string(*params.window_size_left);
  if (params.window_size_right) text += " right" + std::to_string(*params.window_size_right);
  if (params.softcap) text += " softcap" + std::to_string(*params.softcap);
  if (params.k_len) text += " k_len" + std::to_string(*params.k_len);
  if (params.q_start.kind == QStart::Kind::kBottomRight) text += " bottom_right";
  if (params.q_start.value != 0) text += " q_start" + std::to_string(params.q_start.value);
  if (alibi) text += " alibi";
  if (sinks) text += " sinks";
  if (per_sequence_k_len) text += " k_lens";
  if (per_sequence_q_start) text += " q_starts";
  if (bias_dims >= 0) text += " bias" + std::to_string(bias_dims);
  if (mask_dims >= 0) text += " mask" + std::to_string(mask_dims);
  if (f32_terms) text += " f32_terms";
  return text + " layout" + std::to_string(static_cast<int>(layout)) + " seed" +
         std::to_string(seed);
}

Problem::Problem(const ProblemSpec& spec, DType dtype) : spec_(spec), dtype_(dtype) {
  Generator random(spec.seed);
  const int64_t b = spec.batch, hq = spec.num_heads, hkv = spec.num_kv_heads;
  const int64_t sq = spec.seqlen_q, sk = spec.seqlen_k, d = spec.head_dim, dv = spec.head_dim_v;
  const DType terms = spec.f32_terms ? DType::kF32 : dtype;
  const auto dense_q =
      OwnedTensor::Of(random.Normal(b * hq * sq * d, spec.magnitude), dtype, {b, hq, sq, d});
  const auto dense_k =
      OwnedTensor::Of(random.Normal(b * hkv * sk * d, spec.magnitude), dtype, {b, hkv, sk, d});
  const auto dense_v =
      OwnedTensor::Of(random.Normal(b * hkv * sk * dv, 1.0), dtype, {b, hkv, sk, dv});
  if (spec.layout == Layout::kPacked && sq == sk && d == dv) {
    q = Slice(dense_q, hq + 2 * hkv);
    k = Slice(dense_k, hq + 2 * hkv);
    v = Slice(dense_v, hq + 2 * hkv);
  } else {
    q = InLayout(dense_q, spec.layout, 1);
    k = InLayout(dense_k, spec.layout, 3);
    v = InLayout(dense_v, spec.layout, 2);
  }
  if (spec.alibi) alibi_slopes = OwnedTensor::Of(random.Normal(hq, 0.1), terms, {hq});
  if (spec.sinks) sinks = OwnedTensor::Of(random.Normal(hq, 1.0), terms, {hq});
  if (spec.bias_dims >= 0) {
    const int bits = spec.bias_dims;
    const int64_t s0 = Pick(bits, 1, b), s1 = Pick(bits, 2, hq), s2 = Pick(bits, 4, sq),
                  s3 = Pick(bits, 8, sk);
    bias = OwnedTensor::Of(random.Normal(s0 * s1 * s2 * s3, 1.0), terms, {s0, s1, s2, s3});
  }
  if (spec.mask_dims >= 0) {
    const int bits = spec.mask_dims;
    const int64_t s0 = Pick(bits, 1, b), s1 = Pick(bits, 2, hq), s2 = Pick(bits, 4, sq),
                  s3 = Pick(bits, 8, sk);
    mask =
        OwnedTensor::Of(random.Integers(s0 * s1 * s2 * s3, 0, 2), DType::kBool, {s0, s1, s2, s3});
  }
  if (spec.per_sequence_k_len) k_len = OwnedTensor::Of(random.Integers(b, 0, sk), DType::kU32, {b});
  if (spec.per_sequence_q_start)
    q_start = OwnedTensor::Of(random.Integers(b, -3, sk), DType::kI64, {b});
}

AttentionInputs Problem::Inputs() const {
  AttentionInputs inputs;
  inputs.q = q.View();
  inputs.k = k.View();
  inputs.v = v.View();
  inputs.alibi_slopes = alibi_slopes.View();
  inputs.bias = bias.View();
  inputs.mask = mask.View();
  inputs.sinks = sinks.View();
  inputs.k_len = k_len.View();
  inputs.q_start = q_start.View();
  return inputs;
}

Result Problem::Run(const ExecOptions& options) const {
  const int64_t b = spec_.batch, hq = spec_.num_heads, sq = spec_.seqlen_q, dv = spec_.head_dim_v;
  OwnedTensor out = PoisonedRows(dtype_, {b, hq, sq, dv}, spec_.layout);
  const DType lse_dtype = dtype_ == DType::kF64 ? DType::kF64 : DType::kF32;
  OwnedTensor lse = Poisoned(lse_dtype, ConstTensorView(nullptr, lse_dtype, {b, hq, sq}));
  AttentionOutputs outputs;
  outputs.out = Writable(out);
  outputs.lse = Writable(lse);
  Result result;
  result.status = Attention(Inputs(), spec_.params, outputs, options);
  result.out = out.Values();
  result.lse = lse.Values();
  for (const OwnedTensor* tensor : {&out, &lse}) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(tensor->storage.data());
    result.bits.insert(result.bits.end(), bytes, bytes + tensor->storage.size());
  }
  result.out_tensor = std::move(out);
  result.lse_tensor = std::move(lse);
  return result;
}

std::vector<std::string> TargetsOf(Kernel kernel) {
  for (const KernelRow& row : ForwardKernels()) {
    if (row.kernel == kernel && !row.vectorised) return {"scalar"};
  }
  std::vector<std::string> names;
  for (const Target& target : SupportedTargetList()) names.emplace_back(target.name);
  return names;
}

}  // namespace flashlane::testing
