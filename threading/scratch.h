// Working memory that a thread borrows and gives back: after warm-up borrowing allocates nothing.
#ifndef FLASHLANE_THREADING_SCRATCH_H_
#define FLASHLANE_THREADING_SCRATCH_H_

#include <cstddef>

namespace flashlane::threading {

// One cache line, and one vector of the widest instruction set (AVX-512).
inline constexpr size_t kScratchAlignment = 64;

// Larger blocks go back to the heap at once: a kernel asks for at most 2 MiB per worker, so 8 MiB
// leaves room for growth, and one odd call cannot pin memory to every thread of the process.
inline constexpr size_t kMaxCachedScratchBytes = size_t{8} << 20;

// A loan from the current thread's cache, or from the heap where nothing there is large enough.
// While a block is lent it is not in the cache, so loans that nest on one thread never share
// memory, and one may end on another thread or out of order. The cache is freed at thread exit.
class Scratch {
 public:
  Scratch() noexcept = default;
  // Contents are undefined. 0 bytes is a loan of nothing and succeeds.
  explicit Scratch(size_t bytes) noexcept;
  ~Scratch();

  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(Scratch&& other) noexcept;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // False where memory ran out.
  bool ok() const noexcept { return ok_; }
  // Aligned to kScratchAlignment; null where nothing was asked for or memory ran out.
  void* data() const noexcept { return data_; }
  // What may be used: at least what was asked for.
  size_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool ok_ = true;
};

}  // namespace flashlane::threading

#endif  // FLASHLANE_THREADING_SCRATCH_H_
