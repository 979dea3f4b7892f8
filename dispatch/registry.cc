#include "dispatch/registry.h"

#include <algorithm>
#include <iterator>

#include "hwy/base.h"

namespace flashlane {
namespace {

template <typename T>
kernels::ForwardEntry Naive(int64_t /*target*/) {
  return kernels::AttentionNaive<T>();
}

template <typename T>
constexpr KernelRow FlashRow(DType dtype) {
  return {.name = "attention_flash",
          .operation = Operation::kForward,
          .kernel = Kernel::kFlash,
          .dtype = dtype,
          .forward = &kernels::AttentionFlash<T>,
          .vectorised = true};
}
template <typename T>
constexpr KernelRow NaiveRow(DType dtype) {
  return {.name = "attention_naive",
          .operation = Operation::kForward,
          .kernel = Kernel::kNaive,
          .dtype = dtype,
          .forward = &Naive<T>};
}
template <typename T>
constexpr KernelRow KvAppendRow(DType dtype) {
  return {.name = "kv_append",
          .operation = Operation::kCache,
          .kernel = Kernel(),
          .dtype = dtype,
          .kv_append = &kernels::KvAppend<T>};
}
template <typename T>
constexpr KernelRow KvBlocksRow(const char* name, DType dtype) {
  return {.name = name,
          .operation = Operation::kCache,
          .kernel = Kernel(),
          .dtype = dtype,
          .kv_blocks = &kernels::KvBlocks<T>};
}

// The same entries: the arguments say where keys and values lie.
template <typename T>
constexpr KernelRow PagedRow(DType dtype) {
  KernelRow row = FlashRow<T>(dtype);
  row.name = "attention_paged";
  row.operation = Operation::kPaged;
  return row;
}
template <typename T>
constexpr KernelRow PagedNaiveRow(DType dtype) {
  KernelRow row = NaiveRow<T>(dtype);
  row.name = "attention_paged_naive";
  row.operation = Operation::kPaged;
  return row;
}

template <typename T>
constexpr KernelRow MergeRow(DType dtype) {
  return {.name = "merge_states",
          .operation = Operation::kMerge,
          .kernel = Kernel(),
          .dtype = dtype,
          .merge = &kernels::MergeStates<T>,
          .vectorised = true};
}

template <typename T>
constexpr KernelRow RopeRow(DType dtype) {
  return {.name = "rope",
          .operation = Operation::kRope,
          .kernel = Kernel(),
          .dtype = dtype,
          .vectorised = true,
          .rope = &kernels::Rope<T>};
}

template <typename T>
constexpr KernelRow BackwardRow(DType dtype) {
  return {.name = "attention_flash_backward",
          .operation = Operation::kBackward,
          .kernel = Kernel::kFlash,
          .dtype = dtype,
          .vectorised = true,
          .backward = &kernels::AttentionFlashBackward<T>};
}

template <typename T>
kernels::BackwardEntry NaiveBackward(int64_t /*target*/) {
  return kernels::AttentionNaiveBackward<T>();
}

template <typename T>
constexpr KernelRow NaiveBackwardRow(DType dtype) {
  return {.name = "attention_backward_naive",
          .operation = Operation::kBackward,
          .kernel = Kernel::kNaive,
          .dtype = dtype,
          .backward = &NaiveBackward<T>};
}

// Rows of one operation are neighbours.
constexpr KernelRow kRows[] = {
    FlashRow<float>(DType::kF32),
    FlashRow<double>(DType::kF64),
    FlashRow<hwy::bfloat16_t>(DType::kBF16),
    FlashRow<hwy::float16_t>(DType::kF16),
    NaiveRow<float>(DType::kF32),
    NaiveRow<double>(DType::kF64),
    NaiveRow<hwy::bfloat16_t>(DType::kBF16),
    NaiveRow<hwy::float16_t>(DType::kF16),
    PagedRow<float>(DType::kF32),
    PagedRow<double>(DType::kF64),
    PagedRow<hwy::bfloat16_t>(DType::kBF16),
    PagedRow<hwy::float16_t>(DType::kF16),
    PagedNaiveRow<float>(DType::kF32),
    PagedNaiveRow<double>(DType::kF64),
    PagedNaiveRow<hwy::bfloat16_t>(DType::kBF16),
    PagedNaiveRow<hwy::float16_t>(DType::kF16),
    BackwardRow<float>(DType::kF32),
    BackwardRow<double>(DType::kF64),
    BackwardRow<hwy::bfloat16_t>(DType::kBF16),
    BackwardRow<hwy::float16_t>(DType::kF16),
    NaiveBackwardRow<float>(DType::kF32),
    NaiveBackwardRow<double>(DType::kF64),
    NaiveBackwardRow<hwy::bfloat16_t>(DType::kBF16),
    NaiveBackwardRow<hwy::float16_t>(DType::kF16),
    MergeRow<float>(DType::kF32),
    MergeRow<double>(DType::kF64),
    MergeRow<hwy::bfloat16_t>(DType::kBF16),
    MergeRow<hwy::float16_t>(DType::kF16),
    KvAppendRow<float>(DType::kF32),
    KvAppendRow<double>(DType::kF64),
    KvAppendRow<hwy::bfloat16_t>(DType::kBF16),
    KvAppendRow<hwy::float16_t>(DType::kF16),
    KvBlocksRow<float>("kv_copy_blocks", DType::kF32),
    KvBlocksRow<double>("kv_copy_blocks", DType::kF64),
    KvBlocksRow<hwy::bfloat16_t>("kv_copy_blocks", DType::kBF16),
    KvBlocksRow<hwy::float16_t>("kv_copy_blocks", DType::kF16),
    KvBlocksRow<float>("kv_swap_blocks", DType::kF32),
    KvBlocksRow<double>("kv_swap_blocks", DType::kF64),
    KvBlocksRow<hwy::bfloat16_t>("kv_swap_blocks", DType::kBF16),
    KvBlocksRow<hwy::float16_t>("kv_swap_blocks", DType::kF16),
    RopeRow<float>(DType::kF32),
    RopeRow<double>(DType::kF64),
    RopeRow<hwy::bfloat16_t>(DType::kBF16),
    RopeRow<hwy::float16_t>(DType::kF16),
};

}  // namespace

std::span<const KernelRow> Registry() { return kRows; }

std::span<const KernelRow> KernelsOf(Operation operation) {
  const auto is_one = [operation](const KernelRow& row) { return row.operation == operation; };
  const auto begin = std::find_if(std::begin(kRows), std::end(kRows), is_one);
  return {begin, std::find_if_not(begin, std::end(kRows), is_one)};
}

const KernelRow* FindKernel(Kernel kernel, DType dtype, Operation operation) {
  for (const KernelRow& row : KernelsOf(operation)) {
    if (row.kernel == kernel && row.dtype == dtype) return &row;
  }
  return nullptr;
}

const KernelRow* FindMerge(DType dtype) { return FindKernel(Kernel(), dtype, Operation::kMerge); }

const KernelRow* FindKernel(std::string_view name, DType dtype) {
  for (const KernelRow& row : kRows) {
    if (row.name == name && row.dtype == dtype) return &row;
  }
  return nullptr;
}

const char* KernelName(Kernel kernel, Operation operation) {
  for (const KernelRow& row : KernelsOf(operation)) {
    if (row.kernel == kernel) return row.name;
  }
  return "?";
}

}  // namespace flashlane
