#include "threading/scratch.h"

#include <cstdint>
#include <new>
#include <utility>

namespace flashlane::threading {
namespace {

// A call's task list, its worker's scratch, and the same two of one call nested inside it.
constexpr int kCachedBlocks = 4;

// Blocks grow in pages, so that shapes that differ by a few rows do not each reallocate.
constexpr size_t kPage = 4096;

struct Block {
  void* data;
  size_t bytes;
};

// Trivial on purpose: the fastest kind of thread_local, and still valid memory when destructors of
// other thread_locals run after Closer's.
struct Cache {
  Block blocks[kCachedBlocks];
  bool closed;
};
constinit thread_local Cache t_cache{};

void Free(Block block) noexcept {
  ::operator delete (block.data, std::align_val_t{kScratchAlignment});
}

// Frees the cache at thread exit; constructed when a thread first caches something.
struct Closer {
  Closer() noexcept = default;
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  ~Closer() {
    for (Block& block : t_cache.blocks) Free(std::exchange(block, Block{}));
    t_cache.closed = true;
  }
  void Arm() const noexcept {}
};
thread_local const Closer t_closer;

Block Allocate(size_t bytes) noexcept {
  // No allocator can serve more than PTRDIFF_MAX; rounding up must not wrap either.
  if (bytes > static_cast<size_t>(PTRDIFF_MAX) - kPage) return Block{};
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* data = ::operator new (bytes, std::align_val_t{kScratchAlignment}, std::nothrow);
  return data == nullptr ? Block{} : Block{data, bytes};
}

// The smallest cached block that fits. Where none does, the largest makes room for a new one (if
// that will be kept): the cache grows in size, not in number.
Block Take(size_t bytes) noexcept {
  Block* fit = nullptr;
  Block* outgrown = nullptr;
  for (Block& block : t_cache.blocks) {
    if (block.data == nullptr) continue;
    if (block.bytes >= bytes) {
      if (fit == nullptr || block.bytes < fit->bytes) fit = &block;
    } else if (outgrown == nullptr || block.bytes > outgrown->bytes) {
      outgrown = &block;
    }
  }
  if (fit != nullptr) return std::exchange(*fit, Block{});
  if (outgrown != nullptr && bytes <= kMaxCachedScratchBytes)
    Free(std::exchange(*outgrown, Block{}));
  return Allocate(bytes);
}

void GiveBack(Block block) noexcept {
  if (block.bytes <= kMaxCachedScratchBytes && !t_cache.closed) {
    for (Block& slot : t_cache.blocks) {
      if (slot.data != nullptr) continue;
      t_closer.Arm();
      slot = block;
      return;
    }
  }
  Free(block);
}

}  // namespace

Scratch::Scratch(size_t bytes) noexcept {
  if (bytes == 0) return;
  const Block block = Take(bytes);
  data_ = block.data;
  bytes_ = block.bytes;
  ok_ = data_ != nullptr;
}

Scratch::~Scratch() {
  if (data_ != nullptr) GiveBack(Block{data_, bytes_});
}

Scratch::Scratch(Scratch&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      ok_(std::exchange(other.ok_, true)) {}

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(ok_, other.ok_);
  return *this;
}

}  // namespace flashlane::threading
