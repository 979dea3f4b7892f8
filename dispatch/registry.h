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

enum class Operation : uint8_t {
  kForward,   // Attention, AttentionVarlen
  kPaged,     // AttentionPaged
  kMerge,     // MergeStates
  kCache,     // KvAppend, KvCopyBlocks, KvSwapBlocks
  kBackward,  // AttentionBackward, AttentionVarlenBackward
  kRope,      // ApplyRope, and KvAppend where it rotates
};

struct KernelRow {
  const char* name;
  Operation operation;
  Kernel kernel;  // of kForward, kPaged and kBackward
  DType dtype;
  kernels::ForwardEntry (*forward)(int64_t target) = nullptr;  // of kForward and kPaged
  kernels::MergeEntry (*merge)(int64_t target) = nullptr;      // of kMerge
  bool vectorised = false;                                     // the entry differs per target
  kernels::KvAppendEntry (*kv_append)() = nullptr;             // of kCache, one of the two
  kernels::KvBlocksEntry (*kv_blocks)() = nullptr;
  kernels::BackwardEntry (*backward)(int64_t target) = nullptr;  // of kBackward
  kernels::RopeEntry (*rope)(int64_t target) = nullptr;          // of kRope
};

std::span<const KernelRow> Registry();

// The rows of one operation: kernels x dtypes to compare with each other.
std::span<const KernelRow> KernelsOf(Operation operation);
inline std::span<const KernelRow> ForwardKernels() { return KernelsOf(Operation::kForward); }
inline std::span<const KernelRow> PagedKernels() { return KernelsOf(Operation::kPaged); }
inline std::span<const KernelRow> BackwardKernels() { return KernelsOf(Operation::kBackward); }

// The row of Attention, AttentionPaged or the backward, or that of MergeStates; null where there is
// none.
const KernelRow* FindKernel(Kernel kernel, DType dtype, Operation operation = Operation::kForward);
const KernelRow* FindMerge(DType dtype);
const KernelRow* FindKernel(std::string_view name, DType dtype);  // any row

// "attention_flash" and the like; "?" for a value that is no kernel.
const char* KernelName(Kernel kernel, Operation operation = Operation::kForward);

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_REGISTRY_H_
