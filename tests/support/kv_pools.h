// Caches in the memory layouts that servers have, over bytes that a test can compare as a whole.
#ifndef FLASHLANE_TESTS_SUPPORT_KV_POOLS_H_
#define FLASHLANE_TESTS_SUPPORT_KV_POOLS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "flashlane/kv_cache.h"

namespace flashlane::testing {

enum class PoolLayout {
  kApart,        // K, then V: [num_blocks, block_size, Hkv, D] each
  kBlockPairs,   // [num_blocks, 2, block_size * Hkv * max(D, Dv)]
  kRowPairs,     // [num_blocks, block_size, Hkv, D + Dv]
  kHeadsFirst,   // [num_blocks, Hkv, block_size, D] each
  kPadded,       // heads, slots and blocks further apart than they are long
  kPaddedSlots,  // slots only
  kKeysOnly,     // v_cache absent
};
inline constexpr PoolLayout kPoolLayouts[] = {
    PoolLayout::kApart,  PoolLayout::kBlockPairs,  PoolLayout::kRowPairs, PoolLayout::kHeadsFirst,
    PoolLayout::kPadded, PoolLayout::kPaddedSlots, PoolLayout::kKeysOnly};

struct PoolSpec {
  int64_t num_blocks = 6, block_size = 4, num_kv_heads = 2, head_dim = 8, head_dim_v = 8;
  PoolLayout layout = PoolLayout::kApart;
};

// Any bits, NaNs and denormals among them: a copy changes none.
inline std::vector<std::byte> RandomBytes(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t bits = engine();
    std::memcpy(bytes.data() + i, &bits, std::min(sizeof bits, bytes.size() - i));
  }
  return bytes;
}

// Bytes from the first to the last element of a view.
inline int64_t ByteExtent(const ConstTensorView& view) {
  if (!view.present()) return 0;
  int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] == 0) return 0;
    last += (view.shape[d] - 1) * view.strides[d];
  }
  return (last + 1) * static_cast<int64_t>(DTypeSize(view.dtype));
}

// Address of the elements of one head of one slot (of a pool), or of one token.
template <typename Ptr>
auto* RowAt(const BasicTensorView<Ptr>& view, int64_t a, int64_t b, int64_t c) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Ptr>>, const std::byte, std::byte>;
  const int64_t offset = view.rank == 4
                             ? a * view.strides[0] + b * view.strides[1] + c * view.strides[2]
                             : b * view.strides[0] + c * view.strides[1];
  return static_cast<Byte*>(view.data) + offset * static_cast<int64_t>(DTypeSize(view.dtype));
}

class PoolMemory {
 public:
  PoolMemory(const PoolSpec& spec, DType dtype, uint64_t seed) : spec_(spec), dtype_(dtype) {
    const KvPools pools = Views(nullptr);
    v_begin_ = spec.layout == PoolLayout::kBlockPairs ? HalfBlock() * Size()
               : spec.layout == PoolLayout::kRowPairs ? spec.head_dim * Size()
                                                      : ByteExtent(pools.k_cache);
    bytes = RandomBytes(std::max(ByteExtent(pools.k_cache), v_begin_ + ByteExtent(pools.v_cache)),
                        seed);
  }

  std::vector<std::byte> bytes;

  KvPools Views() { return Views(bytes.data()); }
  ConstKvPools ConstViews() {
    const KvPools pools = Views();
    return {pools.k_cache, pools.v_cache};
  }
  const PoolSpec& spec() const { return spec_; }
  DType dtype() const { return dtype_; }

  // The same over other memory, of bytes.size().
  KvPools Views(std::byte* base) const {
    KvPools pools;
    pools.k_cache = View(base, spec_.head_dim);
    if (spec_.layout == PoolLayout::kKeysOnly) return pools;
    pools.v_cache = View(base == nullptr ? nullptr : base + v_begin_, spec_.head_dim_v);
    return pools;
  }

 private:
  int64_t Size() const { return static_cast<int64_t>(DTypeSize(dtype_)); }
  int64_t HalfBlock() const {
    return spec_.block_size * spec_.num_kv_heads * std::max(spec_.head_dim, spec_.head_dim_v);
  }

  TensorView View(std::byte* data, int64_t width) const {
    const int64_t slots = spec_.block_size, heads = spec_.num_kv_heads;
    int64_t head = width, slot = heads * width, block = slots * slot;
    if (spec_.layout == PoolLayout::kBlockPairs) block = 2 * HalfBlock();
    if (spec_.layout == PoolLayout::kRowPairs) {
      head = spec_.head_dim + spec_.head_dim_v;
      slot = heads * head;
      block = slots * slot;
    }
    if (spec_.layout == PoolLayout::kHeadsFirst) {
      slot = width;
      head = slots * width;
    }
    if (spec_.layout == PoolLayout::kPaddedSlots) {
      slot += 5;
      block = slots * slot;
    }
    if (spec_.layout == PoolLayout::kPadded) {
      head = width + 3;
      slot = heads * head + 5;
      block = slots * slot + 1;
    }
    return TensorView(data, dtype_, {spec_.num_blocks, slots, heads, width},
                      {block, slot, head, 1});
  }

  PoolSpec spec_;
  DType dtype_;
  int64_t v_begin_ = 0;
};

// What the calls should do, one row after the other.
inline void ReferenceAppend(const ConstTensorView& tokens, const std::vector<int64_t>& slots,
                            const TensorView& pool) {
  if (!pool.present()) return;
  const size_t row = static_cast<size_t>(pool.shape[3]) * DTypeSize(pool.dtype);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == -1) continue;
    for (int64_t h = 0; h < pool.shape[2]; ++h) {
      std::memcpy(RowAt(pool, slots[i] / pool.shape[1], slots[i] % pool.shape[1], h),
                  RowAt(tokens, 0, static_cast<int64_t>(i), h), row);
    }
  }
}

using BlockPairs = std::vector<std::pair<int64_t, int64_t>>;

inline void ReferenceCopy(const ConstTensorView& src, const TensorView& dst,
                          const BlockPairs& pairs) {
  if (!dst.present()) return;
  const size_t row = static_cast<size_t>(dst.shape[3]) * DTypeSize(dst.dtype);
  for (const auto& [from, to] : pairs) {
    for (int64_t s = 0; s < dst.shape[1]; ++s) {
      for (int64_t h = 0; h < dst.shape[2]; ++h) {
        std::memmove(RowAt(dst, to, s, h), RowAt(src, from, s, h), row);
      }
    }
  }
}

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_KV_POOLS_H_
