// Plain copies into a paged cache: new tokens (reshape_and_cache), whose keys may be turned on
// their way (rope.cc), and whole blocks.
//
// Work is cut by place within an item, never by items: a byte of the pool is written by one task
// only, which goes through all items in order. So an item may name a destination again, or read
// what one before it wrote, and no task waits for another or looks for duplicates.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/base.h"
#include "kernels/kernels.h"

namespace flashlane::kernels {
namespace {

// Elements [begin, end) of every item of one part, whose rows are its [slots, heads].
template <typename T>
class Slice {
 public:
  Slice(const KvPart& part, int64_t begin, int64_t end) : part_(part) {
    begin = std::clamp<int64_t>(begin, 0, part.size());
    count_ = std::clamp<int64_t>(end, begin, part.size()) - begin;
    if (count_ == 0) return;
    const int64_t row = begin / part.width;
    first_column_ = begin % part.width;
    first_slot_ = row / part.heads;
    first_head_ = row % part.heads;
  }

  // From and to items that begin at these offsets.
  void Copy(int64_t src_offset, int64_t dst_offset) const {
    const KvStrides& from = part_.src_strides;
    const KvStrides& to = part_.dst_strides;
    int64_t slot = first_slot_, head = first_head_, column = first_column_;
    for (int64_t left = count_; left > 0; column = 0) {
      const int64_t run = std::min(part_.width - column, left);
      std::memcpy(
          static_cast<T*>(part_.dst) + dst_offset + slot * to.slot + head * to.head + column,
          static_cast<const T*>(part_.src) + src_offset + slot * from.slot + head * from.head +
              column,
          static_cast<size_t>(run) * sizeof(T));
      left -= run;
      if (++head == part_.heads) {
        head = 0;
        ++slot;
      }
    }
  }

 private:
  const KvPart& part_;
  int64_t count_ = 0;
  int64_t first_slot_ = 0, first_head_ = 0, first_column_ = 0;
};

// The heads of k that begin within elements [begin, end) of a token, turned: a head's two halves
// depend on each other, so that one task has all of it.
template <typename T>
class TurnedHeads {
 public:
  TurnedHeads(const KvAppendArgs& args, int64_t begin, int64_t end)
      : args_(args), first_(FirstHeadFrom(begin)), last_(FirstHeadFrom(end)) {}

  // As Slice::Copy.
  void Copy(int64_t token, int64_t dst_offset) const {
    if (first_ == last_) return;
    const KvPart& k = args_.k;
    const KvRotation& rotation = args_.rotation;
    const int64_t row = rotation.positions.At(token);
    for (int64_t head = first_; head < last_; ++head) {
      rotation.rotate(
          rotation.tables, row,
          static_cast<const T*>(k.src) + token * k.src_strides.item + head * k.src_strides.head,
          k.width, static_cast<T*>(k.dst) + dst_offset + head * k.dst_strides.head);
    }
  }

 private:
  int64_t FirstHeadFrom(int64_t element) const {
    const int64_t width = args_.k.width;
    return (std::clamp<int64_t>(element, 0, args_.k.size()) + width - 1) / width;
  }

  const KvAppendArgs& args_;
  int64_t first_, last_;
};

template <typename T>
void Append(const KvAppendArgs& args, int64_t begin, int64_t end) {
  const Slice<T> k(args.k, begin, end);
  const TurnedHeads<T> turned(args, begin, end);
  const Slice<T> v(args.v, begin - args.k.size(), end - args.k.size());
  const KvStrides& k_to = args.k.dst_strides;
  const KvStrides& v_to = args.v.dst_strides;
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const int64_t target = args.slots.At(token);
    if (target < 0) continue;
    const int64_t block = target / args.block_size;
    const int64_t slot = target - block * args.block_size;
    const int64_t k_offset = block * k_to.item + slot * k_to.slot;
    if (args.rotation.rotate == nullptr) {
      k.Copy(token * args.k.src_strides.item, k_offset);
    } else {
      turned.Copy(token, k_offset);
    }
    v.Copy(token * args.v.src_strides.item, block * v_to.item + slot * v_to.slot);
  }
}

template <typename T>
void CopyBlocks(const KvBlocksArgs& args, int64_t begin, int64_t end) {
  const Slice<T> k(args.k, begin, end);
  const Slice<T> v(args.v, begin - args.k.size(), end - args.k.size());
  const bool one_pool = args.k.src == args.k.dst;
  for (int64_t i = 0; i < args.num_pairs; ++i) {
    const int64_t src = args.src_blocks.At(i);
    const int64_t dst = args.dst_blocks.At(i);
    if (one_pool && src == dst) continue;  // memcpy may not be given one range twice
    k.Copy(src * args.k.src_strides.item, dst * args.k.dst_strides.item);
    v.Copy(src * args.v.src_strides.item, dst * args.v.dst_strides.item);
  }
}

}  // namespace

template <typename T>
KvAppendEntry KvAppend() {
  return {&Append<T>};
}

template <typename T>
KvBlocksEntry KvBlocks() {
  return {&CopyBlocks<T>};
}

template KvAppendEntry KvAppend<float>();
template KvAppendEntry KvAppend<double>();
template KvAppendEntry KvAppend<hwy::bfloat16_t>();
template KvAppendEntry KvAppend<hwy::float16_t>();
template KvBlocksEntry KvBlocks<float>();
template KvBlocksEntry KvBlocks<double>();
template KvBlocksEntry KvBlocks<hwy::bfloat16_t>();
template KvBlocksEntry KvBlocks<hwy::float16_t>();

}  // namespace flashlane::kernels
