#include "bench/move_probe.h"

#include <cstring>
#include <iterator>
#include <memory>

#include "hwy/aligned_allocator.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/move_probe.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// `bytes` is a multiple of four vectors.
void MoveBytes(const uint8_t* from, size_t bytes, uint8_t* to) {
  const hn::ScalableTag<uint8_t> d;
  const size_t step = hn::Lanes(d);
  const auto one = hn::Set(d, uint8_t{1});
  for (size_t i = 0; i < bytes; i += 4 * step) {
    const auto a = hn::Xor(hn::LoadU(d, from + i), one);
    const auto b = hn::Xor(hn::LoadU(d, from + i + step), one);
    const auto c = hn::Xor(hn::LoadU(d, from + i + 2 * step), one);
    const auto e = hn::Xor(hn::LoadU(d, from + i + 3 * step), one);
    hn::StoreU(a, d, to + i);
    hn::StoreU(b, d, to + i + step);
    hn::StoreU(c, d, to + i + 2 * step);
    hn::StoreU(e, d, to + i + 3 * step);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::bench {

HWY_EXPORT(MoveBytes);

Probe MoveProbe(size_t bytes, bool in_place, int64_t target) {
  constexpr size_t kStep = 4 * 64;  // of the largest vectors
  bytes = bytes / kStep * kStep;
  const auto memory = [bytes] {
    std::shared_ptr<uint8_t[]> block = hwy::AllocateAligned<uint8_t>(bytes);
    std::memset(block.get(), 1, bytes);  // real pages
    return block;
  };
  const std::shared_ptr<uint8_t[]> from = memory();
  const std::shared_ptr<uint8_t[]> to = in_place ? from : memory();
  const auto move = FLASHLANE_DISPATCH(MoveBytes, target);
  return {[=](int64_t rounds) {
            for (int64_t r = 0; r < rounds; ++r) move(from.get(), bytes, to.get());
          },
          2.0 * static_cast<double>(bytes)};
}

}  // namespace flashlane::bench
#endif  // HWY_ONCE
