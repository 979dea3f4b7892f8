// Every kernel there is, by kernel and dtype. Tests, benchmarks and documents iterate it; a kernel
// that is not in it does not exist.
#ifndef FLASHLANE_DISPATCH_REGISTRY_H_
#define FLASHLANE_DISPATCH_REGISTRY_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "flashlane/attention.h"
#include "kernels/kernels.h"

namespace flashlane {

struct KernelRow {
  const char* name;
  // The one that is not null says what the kernel does.
  kernels::ForwardEntry (*forward)(int64_t target);
  kernels::MergeEntry (*merge)(int64_t target);
  Kernel kernel;  // of forward rows
  DType dtype;
  bool vectorised;  // the entry differs per target
  kernels::KvAppendEntry (*kv_append)() = nullptr;
  kernels::KvBlocksEntry (*kv_blocks)() = nullptr;
};

std::span<const KernelRow> Registry();

// The rows that compute attention: kernels x dtypes to compare with each other.
std::span<const KernelRow> ForwardKernels();

// The forward row, or the row of MergeStates; null where there is none.
const KernelRow* FindKernel(Kernel kernel, DType dtype);
const KernelRow* FindMerge(DType dtype);
const KernelRow* FindKernel(std::string_view name, DType dtype);  // any row

// "attention_flash" and the like; "?" for a value that is no kernel.
const char* KernelName(Kernel kernel);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_REGISTRY_H_
