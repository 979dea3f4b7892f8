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
  return {"attention_flash", &kernels::AttentionFlash<T>, nullptr, Kernel::kFlash, dtype, true};
}
template <typename T>
constexpr KernelRow NaiveRow(DType dtype) {
  return {"attention_naive", &Naive<T>, nullptr, Kernel::kNaive, dtype, false};
}
template <typename T>
constexpr KernelRow MergeRow(DType dtype) {
  return {"merge_states", nullptr, &kernels::MergeStates<T>, Kernel(), dtype, true};
}
template <typename T>
constexpr KernelRow KvAppendRow(DType dtype) {
  return {"kv_append", nullptr, nullptr, Kernel(), dtype, false, &kernels::KvAppend<T>, nullptr};
}
template <typename T>
constexpr KernelRow KvBlocksRow(const char* name, DType dtype) {
  return {name, nullptr, nullptr, Kernel(), dtype, false, nullptr, &kernels::KvBlocks<T>};
}

// Forward kernels first.
constexpr KernelRow kRows[] = {
    FlashRow<float>(DType::kF32),
    FlashRow<double>(DType::kF64),
    FlashRow<hwy::bfloat16_t>(DType::kBF16),
    FlashRow<hwy::float16_t>(DType::kF16),
    NaiveRow<float>(DType::kF32),
    NaiveRow<double>(DType::kF64),
    NaiveRow<hwy::bfloat16_t>(DType::kBF16),
    NaiveRow<hwy::float16_t>(DType::kF16),
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
};

}  // namespace

std::span<const KernelRow> Registry() { return kRows; }

std::span<const KernelRow> ForwardKernels() {
  const auto end = std::find_if(std::begin(kRows), std::end(kRows),
                                [](const KernelRow& row) { return row.forward == nullptr; });
  return {std::begin(kRows), end};
}

const KernelRow* FindKernel(Kernel kernel, DType dtype) {
  for (const KernelRow& row : ForwardKernels()) {
    if (row.kernel == kernel && row.dtype == dtype) return &row;
  }
  return nullptr;
}

const KernelRow* FindMerge(DType dtype) {
  for (const KernelRow& row : kRows) {
    if (row.merge != nullptr && row.dtype == dtype) return &row;
  }
  return nullptr;
}

const KernelRow* FindKernel(std::string_view name, DType dtype) {
  for (const KernelRow& row : kRows) {
    if (row.name == name && row.dtype == dtype) return &row;
  }
  return nullptr;
}

const char* KernelName(Kernel kernel) {
  for (const KernelRow& row : ForwardKernels()) {
    if (row.kernel == kernel) return row.name;
  }
  return "?";
}

}  // namespace flashlane
