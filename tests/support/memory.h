// Memory with something special about it: guarded by inaccessible pages, or sparse.
#ifndef FLASHLANE_TESTS_SUPPORT_MEMORY_H_
#define FLASHLANE_TESTS_SUPPORT_MEMORY_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

namespace flashlane::testing {

// `bytes` of memory with an inaccessible page on either side, flush with the one after it (kEnd) or
// with the one before it (kBegin).
class GuardedBuffer {
 public:
  enum class Flush { kBegin, kEnd };

  GuardedBuffer(size_t bytes, Flush flush) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (bytes + page - 1) / page * page;
    size_ = body + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) abort();
    // qemu-user refuses to protect nothing.
    if (body != 0 && mprotect(base_ + page, body, PROT_READ | PROT_WRITE) != 0) abort();
    data_ = base_ + page + (flush == Flush::kEnd ? body - bytes : 0);
  }
  ~GuardedBuffer() { munmap(base_, size_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  void* data() { return data_; }

 private:
  std::byte* base_;
  std::byte* data_;
  size_t size_;
};

// Address space without memory behind it until it is written; reads give zeros.
class SparseBuffer {
 public:
  explicit SparseBuffer(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseBuffer() {
    if (ok()) munmap(data_, bytes_);
  }
  SparseBuffer(const SparseBuffer&) = delete;
  SparseBuffer& operator=(const SparseBuffer&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  size_t bytes_;
};

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_MEMORY_H_
