#include "dispatch/registry.h"

#include "hwy/base.h"

namespace flashlane {
namespace {

constexpr char kFlashName[] = "attention_flash";
constexpr char kNaiveName[] = "attention_naive";

template <typename T>
kernels::ForwardEntry Naive(int64_t /*target*/) {
  return kernels::AttentionNaive<T>();
}

constexpr KernelRow kRows[] = {
    {Kernel::kFlash, kFlashName, DType::kF32, true, &kernels::AttentionFlash<float>},
    {Kernel::kFlash, kFlashName, DType::kF64, true, &kernels::AttentionFlash<double>},
    {Kernel::kNaive, kNaiveName, DType::kF32, false, &Naive<float>},
    {Kernel::kNaive, kNaiveName, DType::kF64, false, &Naive<double>},
    {Kernel::kNaive, kNaiveName, DType::kBF16, false, &Naive<hwy::bfloat16_t>},
    {Kernel::kNaive, kNaiveName, DType::kF16, false, &Naive<hwy::float16_t>},
};

}  // namespace

std::span<const KernelRow> Registry() { return kRows; }

const KernelRow* FindKernel(Kernel kernel, DType dtype) {
  for (const KernelRow& row : kRows) {
    if (row.kernel == kernel && row.dtype == dtype) return &row;
  }
  return nullptr;
}

const char* KernelName(Kernel kernel) {
  for (const KernelRow& row : kRows) {
    if (row.kernel == kernel) return row.name;
  }
  return "?";
}

}  // namespace flashlane
