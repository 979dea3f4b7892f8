#include "tests/support/paged.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "dispatch/dtype.h"

namespace flashlane::testing {
namespace {

constexpr int64_t kSpareBlocks = 3;
constexpr int64_t kSpareEntries = 2;

std::vector<double> Normal(std::mt19937_64& random, int64_t count, double deviation) {
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

DType LseType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Filled with bytes that no result has by chance.
OwnedTensor Poisoned(DType dtype, std::initializer_list<int64_t> shape) {
  OwnedTensor tensor = OwnedTensor::Of({}, dtype, shape);
  std::fill(tensor.storage.begin(), tensor.storage.end(), std::byte{0xA5});
  return tensor;
}

// The bytes of `count` neighbouring elements.
void Append(const OwnedTensor& tensor, int64_t offset, int64_t count,
            std::vector<std::byte>* bytes) {
  const size_t size = DTypeSize(tensor.view.dtype);
  const std::byte* begin = tensor.storage.data() + static_cast<size_t>(offset) * size;
  bytes->insert(bytes->end(), begin, begin + static_cast<size_t>(count) * size);
}

}  // namespace

std::string PagedSpec::ToString() const {
  std::string text = "contexts";
  for (const int64_t length : context_lens) text += " " + std::to_string(length);
  text += packed ? " packed" : " queries";
  for (const int64_t length : seqlens_q) text += " " + std::to_string(length);
  text += " Hq" + std::to_string(num_heads) + " Hkv" + std::to_string(num_kv_heads) + " D" +
          std::to_string(head_dim) + " Dv" + std::to_string(head_dim_v) + " block_size " +
          std::to_string(block_size);
  if (params.window_size_left) text += " left" + std::to_string(*params.window_size_left);
  if (params.softcap) text += " softcap" + std::to_string(*params.softcap);
  if (alibi) text += " alibi";
  if (sinks) text += " sinks";
  if (mask) text += " mask";
  if (f32_terms) text += " f32_terms";
  if (shared) text += " shared";
  return text + " layout" + std::to_string(static_cast<int>(layout));
}

PagedProblem::PagedProblem(const PagedSpec& spec, DType dtype) : spec_(spec), dtype_(dtype) {
  std::mt19937_64 random(spec.seed);
  const int64_t hq = spec.num_heads, d = spec.head_dim, batch = spec.batch();
  cu_.push_back(0);
  for (const int64_t length : spec.seqlens_q) cu_.push_back(cu_.back() + length);
  const int64_t total = cu_.back();
  const auto q_values = Normal(random, total * hq * d, 1.0);
  if (spec.packed) {
    q = OwnedTensor::Of(q_values, dtype, {total, hq, d});
    const std::vector<double> cu(cu_.begin(), cu_.end());
    cu_seqlens_q = OwnedTensor::Of(cu, DType::kI32, {batch + 1});
  } else {
    q = OwnedTensor::Of(q_values, dtype, {batch, hq, batch > 0 ? spec.seqlens_q[0] : 1, d});
  }
  const DType terms = spec.f32_terms ? DType::kF32 : dtype;
  if (spec.alibi) alibi_slopes = OwnedTensor::Of(Normal(random, hq, 0.1), terms, {hq});
  if (spec.sinks) sinks = OwnedTensor::Of(Normal(random, hq, 1.0), terms, {hq});
  if (spec.mask) {
    const int64_t sq = spec.seqlens_q[0];
    std::vector<double> allowed(static_cast<size_t>(batch * sq * sq));
    for (double& value : allowed) value = random() % 3 != 0 ? 1.0 : 0.0;
    mask = OwnedTensor::Of(allowed, DType::kBool, {batch, 1, sq, sq});
  }
  const std::vector<double> lens(spec.context_lens.begin(), spec.context_lens.end());
  context_lens = OwnedTensor::Of(lens, spec.lens_dtype, {batch});

  num_blocks_ = kSpareBlocks;
  for (const int64_t length : spec.context_lens) {
    const int64_t blocks = CeilDiv(length, spec.block_size);
    num_blocks_ += blocks;
    max_blocks_ = std::max(max_blocks_, blocks);
  }
  max_blocks_ += kSpareEntries;
  std::vector<int64_t> order(static_cast<size_t>(num_blocks_));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  FillTable(std::move(order));
  LayOut();
  FillPools(spec.seed + 1);
}

void PagedProblem::FillTable(std::vector<int64_t> order) {
  const bool is_signed = spec_.table_dtype == DType::kI32;
  const double garbage = is_signed ? -7.0 : double{std::numeric_limits<uint32_t>::max()};
  std::vector<double> table(static_cast<size_t>(spec_.batch() * max_blocks_), garbage);
  for (int64_t b = 0; b < spec_.batch(); ++b) {
    const int64_t count = CeilDiv(spec_.context_lens[b], spec_.block_size);
    std::vector<int64_t> blocks;
    if (spec_.shared && b > 0) {
      const auto common = std::min<int64_t>(count, static_cast<int64_t>(blocks_[0].size()));
      blocks.assign(blocks_[0].begin(), blocks_[0].begin() + common);
    }
    while (static_cast<int64_t>(blocks.size()) < count) {
      blocks.push_back(order.back());
      order.pop_back();
    }
    for (int64_t i = 0; i < count; ++i) {
      table[static_cast<size_t>(b * max_blocks_ + i)] = static_cast<double>(blocks[i]);
    }
    blocks_.push_back(std::move(blocks));
  }
  block_table = OwnedTensor::Of(table, spec_.table_dtype, {spec_.batch(), max_blocks_});
}

void PagedProblem::LayOut() {
  const int64_t n = num_blocks_, bs = spec_.block_size, h = spec_.num_kv_heads;
  const int64_t d = spec_.head_dim, dv = spec_.head_dim_v;
  const auto pool_of = [&](int64_t offset, int64_t width, std::initializer_list<int64_t> strides) {
    return Pool{offset, ConstTensorView(nullptr, dtype_, {n, bs, h, width}, strides)};
  };
  int64_t elements = 0;
  switch (spec_.layout) {
    case PoolLayout::kDense:
      k_layout_ = pool_of(0, d, {bs * h * d, h * d, d, 1});
      v_layout_ = pool_of(n * bs * h * d, dv, {bs * h * dv, h * dv, dv, 1});
      elements = n * bs * h * (d + dv);
      break;
    case PoolLayout::kInterleaved: {
      const int64_t w = std::max(d, dv);
      k_layout_ = pool_of(0, d, {2 * bs * h * w, h * w, w, 1});
      v_layout_ = pool_of(bs * h * w, dv, {2 * bs * h * w, h * w, w, 1});
      elements = 2 * n * bs * h * w;
      break;
    }
    case PoolLayout::kValueInKey:
      k_layout_ = pool_of(0, d, {bs * h * d, h * d, d, 1});
      v_layout_ = pool_of(d - dv, dv, {bs * h * d, h * d, d, 1});
      elements = n * bs * h * d;
      break;
    case PoolLayout::kHeadsFirst: {
      const int64_t k_head = bs * d + 5, v_head = bs * (dv + 1);
      k_layout_ = pool_of(0, d, {h * k_head, d, k_head, 1});
      v_layout_ = pool_of(n * h * k_head, dv, {h * v_head, dv + 1, v_head, 1});
      elements = n * h * (k_head + v_head);
      break;
    }
  }
  pool.resize(static_cast<size_t>(elements) * DTypeSize(dtype_));
}

void PagedProblem::FillPools(uint64_t seed) {
  const size_t size = DTypeSize(dtype_);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < pool.size(); i += size) {
    ConvertElements(&nan, DType::kF64, pool.data() + i, dtype_, 1);
  }
  std::mt19937_64 random(seed);
  for (const Pool* layout : {&k_layout_, &v_layout_}) {
    if (layout == &v_layout_ && spec_.layout == PoolLayout::kValueInKey) continue;
    const int64_t width = layout->view.shape[3];
    for (int64_t b = 0; b < spec_.batch(); ++b) {
      for (int64_t t = 0; t < spec_.context_lens[b]; ++t) {
        for (int64_t h = 0; h < spec_.num_kv_heads; ++h) {
          const auto values = Normal(random, width, 1.0);
          ConvertElements(values.data(), DType::kF64, Slot(*layout, b, t, h), dtype_, width);
        }
      }
    }
  }
}

ConstTensorView PagedProblem::View(const Pool& layout) const {
  ConstTensorView view = layout.view;
  view.data = pool.data() + static_cast<size_t>(layout.offset) * DTypeSize(dtype_);
  return view;
}

int64_t PagedProblem::BlockOf(int64_t b, int64_t token) const {
  return blocks_[static_cast<size_t>(b)][static_cast<size_t>(token / spec_.block_size)];
}

std::byte* PagedProblem::Slot(const Pool& layout, int64_t b, int64_t token, int64_t head) const {
  const int64_t* strides = layout.view.strides;
  const int64_t element = layout.offset + BlockOf(b, token) * strides[0] +
                          token % spec_.block_size * strides[1] + head * strides[2];
  return const_cast<std::byte*>(pool.data()) + static_cast<size_t>(element) * DTypeSize(dtype_);
}

std::size_t PagedProblem::LiveBytes() const {
  std::size_t live = 0;
  for (const Pool* layout : {&k_layout_, &v_layout_}) {
    const auto row_bytes = static_cast<size_t>(layout->view.shape[3]) * DTypeSize(dtype_);
    for (int64_t b = 0; b < spec_.batch(); ++b) {
      for (int64_t t = 0; t < spec_.context_lens[b]; ++t) {
        for (int64_t h = 0; h < spec_.num_kv_heads; ++h) {
          const auto begin = static_cast<size_t>(Slot(*layout, b, t, h) - pool.data());
          live = std::max(live, begin + row_bytes);
        }
      }
    }
  }
  return live;
}

PagedInputs PagedProblem::Inputs() const {
  PagedInputs inputs;
  inputs.q = q.View();
  inputs.k_cache = KCache();
  inputs.v_cache = VCache();
  inputs.block_table = block_table.View();
  inputs.context_lens = context_lens.View();
  inputs.cu_seqlens_q = cu_seqlens_q.View();
  inputs.alibi_slopes = alibi_slopes.View();
  inputs.sinks = sinks.View();
  inputs.mask = mask.View();
  return inputs;
}

PagedProblem::Outputs PagedProblem::Run(const PagedInputs& inputs,
                                        const ExecOptions& options) const {
  const int64_t batch = inputs.q.shape[0], hq = spec_.num_heads, dv = spec_.head_dim_v;
  Outputs outputs;
  if (spec_.packed) {
    outputs.out = Poisoned(dtype_, {cu_.back(), hq, dv});
    outputs.lse = Poisoned(LseType(dtype_), {hq, cu_.back()});
  } else {
    outputs.out = Poisoned(dtype_, {batch, hq, inputs.q.shape[2], dv});
    outputs.lse = Poisoned(LseType(dtype_), {batch, hq, inputs.q.shape[2]});
  }
  AttentionOutputs views;
  views.out = Writable(outputs.out);
  views.lse = Writable(outputs.lse);
  outputs.status = AttentionPaged(inputs, spec_.params, views, options);
  return outputs;
}

OwnedTensor PagedProblem::Gather(const Pool& layout, int64_t b) const {
  const int64_t length = spec_.context_lens[b], heads = spec_.num_kv_heads;
  const int64_t width = layout.view.shape[3];
  OwnedTensor rows = OwnedTensor::Of({}, dtype_, {1, heads, length, width});
  const size_t bytes = static_cast<size_t>(width) * DTypeSize(dtype_);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < length; ++t) {
      std::memcpy(rows.storage.data() + static_cast<size_t>(h * length + t) * bytes,
                  Slot(layout, b, t, h), bytes);
    }
  }
  return rows;
}

// Queries [first, first + count) against all keys of sequence b.
OwnedTensor PagedProblem::ExpandedMask(int64_t b, int64_t first, int64_t count) const {
  const int64_t length = spec_.context_lens[b];
  const int64_t start = length - spec_.seqlens_q[b];
  std::vector<double> allowed;
  for (int64_t i = first; i < first + count; ++i) {
    for (int64_t j = 0; j < length; ++j) {
      allowed.push_back(j < start ? 1.0 : mask.At({b, 0, i, j - start}));
    }
  }
  return OwnedTensor::Of(allowed, DType::kBool, {1, 1, count, length});
}

PagedProblem::Outputs PagedProblem::RunContiguous(int64_t b, const ExecOptions& options,
                                                  int64_t row) const {
  const int64_t hq = spec_.num_heads, d = spec_.head_dim, sq = spec_.seqlens_q[b];
  const int64_t first = std::max<int64_t>(row, 0), count = row < 0 ? sq : 1;
  const int64_t q_element = spec_.packed ? (cu_[b] + first) * hq * d : (cu_[b] * hq + first) * d;
  const OwnedTensor k = Gather(k_layout_, b);
  const OwnedTensor v = Gather(v_layout_, b);
  AttentionInputs inputs;
  inputs.q = ConstTensorView(q.storage.data() + static_cast<size_t>(q_element) * DTypeSize(dtype_),
                             dtype_, {1, hq, count, d},
                             {0, spec_.packed ? d : sq * d, spec_.packed ? hq * d : d, 1});
  inputs.k = k.View();
  inputs.v = v.View();
  inputs.alibi_slopes = alibi_slopes.View();
  inputs.sinks = sinks.View();
  OwnedTensor expanded;
  if (mask.view.present()) {
    expanded = ExpandedMask(b, first, count);
    inputs.mask = expanded.View();
  }
  AttentionParams params = spec_.params;
  params.causal = true;
  params.q_start = QStart::BottomRight();
  if (row >= 0) params.q_start = std::max<int64_t>(spec_.context_lens[b] - sq + row, 0);
  Outputs outputs;
  outputs.out = Poisoned(dtype_, {1, hq, count, spec_.head_dim_v});
  outputs.lse = Poisoned(LseType(dtype_), {1, hq, count});
  AttentionOutputs views;
  views.out = Writable(outputs.out);
  views.lse = Writable(outputs.lse);
  outputs.status = Attention(inputs, params, views, options);
  return outputs;
}

std::vector<std::byte> PagedProblem::RowBits(const Outputs& outputs, int64_t b, int64_t head,
                                             int64_t i) const {
  const int64_t hq = spec_.num_heads, dv = spec_.head_dim_v, sq = spec_.seqlens_q[b];
  const int64_t row = spec_.packed ? (cu_[b] + i) * hq + head : (b * hq + head) * sq + i;
  const int64_t lse = spec_.packed ? head * cu_.back() + cu_[b] + i : row;
  std::vector<std::byte> bits;
  Append(outputs.out, row * dv, dv, &bits);
  Append(outputs.lse, lse, 1, &bits);
  return bits;
}

std::vector<std::byte> PagedProblem::ContiguousRowBits(const Outputs& outputs, int64_t head,
                                                       int64_t i) {
  const int64_t rows = outputs.out.view.shape[2], dv = outputs.out.view.shape[3];
  std::vector<std::byte> bits;
  Append(outputs.out, (head * rows + i) * dv, dv, &bits);
  Append(outputs.lse, head * rows + i, 1, &bits);
  return bits;
}

}  // namespace flashlane::testing
