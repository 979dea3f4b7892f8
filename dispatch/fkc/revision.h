// kernel_revision_hash: what the build computed from the sources (cmake/kernel_revisions.cmake).
#ifndef FLASHLANE_DISPATCH_FKC_REVISION_H_
#define FLASHLANE_DISPATCH_FKC_REVISION_H_

#include <span>
#include <string_view>

namespace flashlane::fkc {

struct KernelRevision {
  const char* kernel;  // as in the registry
  const char* hash;    // 16 hexadecimal digits
};

// In a source file that the build writes.
std::span<const KernelRevision> KernelRevisions();

// Null for a kernel that the build computed none for.
inline const char* RevisionOf(std::string_view kernel) {
  for (const KernelRevision& revision : KernelRevisions()) {
    if (kernel == revision.kernel) return revision.hash;
  }
  return nullptr;
}

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_REVISION_H_
