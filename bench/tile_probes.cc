#include "bench/tile_probes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/tile_probes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/flash-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fk = kernels::HWY_NAMESPACE;

inline constexpr int64_t kHeadDim = 128;
template <typename C>
inline constexpr int64_t kPanel = static_cast<int64_t>(fk::kPanelRows<C>);
template <typename C>
inline constexpr Precision kPrecision =
    std::is_same_v<C, double> ? Precision::kF64 : Precision::kF32;
template <typename C, int64_t kWidth = kHeadDim>
inline constexpr kernels::FlashBlocks kBlocks =
    kernels::ChooseFlashBlocks(kWidth, kWidth, kPanel<C>, static_cast<int64_t>(sizeof(C)));

template <typename C>
std::shared_ptr<C[]> Filled(int64_t count, C value) {
  std::shared_ptr<C[]> memory = hwy::AllocateAligned<C>(static_cast<size_t>(count));
  std::fill(memory.get(), memory.get() + count, value);
  return memory;
}

// A number that the compiler does not know: the kernels know no size either.
HWY_INLINE int64_t Opaque(int64_t value) {
  hwy::PreventElision(value);
  return value;
}

// ---- register tiles

// Depth of a tile whose operands stay in L1: 16 KiB of panel at most.
inline constexpr int64_t kDepth = 64;
// A call costs nothing beside so many tiles.
inline constexpr int kTilesPerCall = 64;

template <fk::LeftLayout kLayout, size_t kRows, size_t kVecs, typename C>
HWY_NOINLINE void MultiplyTiles(const fk::Product<C>& product) {
  for (int i = 0; i < kTilesPerCall; ++i) {
    fk::MultiplyTile<kLayout, kRows, kVecs>(product, 0, fk::Accumulate::kNothing);
    hwy::PreventElision(*product.c);
  }
}

template <fk::LeftLayout kLayout, size_t kRows, size_t kVecs, typename C>
Part TilePart() {
  const auto a = Filled<C>(kDepth * kDepth, C(0.5));
  const auto b = Filled<C>(kDepth * kPanel<C>, C(0.5));
  const auto c = Filled<C>(static_cast<int64_t>(kRows) * kPanel<C>, C(0));
  Part part;
  part.precision = kPrecision<C>;
  part.flops = 2.0 * kTilesPerCall * kDepth * kRows * kVecs * hn::Lanes(fk::Tag<C>());
  part.call = [a, b, c] {
    MultiplyTiles<kLayout, kRows, kVecs>(
        fk::Product<C>{a.get(), Opaque(kDepth), b.get(), Opaque(kDepth), c.get(), nullptr});
  };
  return part;
}

// ---- whole panels, which come from L2 as they do in the kernel

template <typename C, int64_t kWidth>
struct PanelMemory {
  static constexpr int64_t kCount = kBlocks<C, kWidth>.block_q / kPanel<C>;
  static constexpr int64_t kKeys = kBlocks<C, kWidth>.block_k;

  std::shared_ptr<C[]> k = Filled<C>(kKeys * kWidth, C(0.01));
  std::shared_ptr<C[]> v = Filled<C>(kKeys * kWidth, C(0.01));
  std::shared_ptr<C[]> q = Filled<C>(kCount * kWidth * kPanel<C>, C(0.01));
  std::shared_ptr<C[]> o = Filled<C>(kCount * kWidth * kPanel<C>, C(0));
  std::shared_ptr<C[]> scores = Filled<C>(kKeys * kPanel<C>, C(0.01));
  std::shared_ptr<C[]> m = Filled<C>(kCount * kPanel<C>, C(0));
  std::shared_ptr<C[]> l = Filled<C>(kCount * kPanel<C>, C(0));
  std::shared_ptr<C[]> scale = Filled<C>(kPanel<C>, C(1));

  void MultiplyQK(int64_t panel) const {
    const int64_t width = Opaque(kWidth);
    const fk::Product<C> product{k.get(), width,        q.get() + panel * width * kPanel<C>,
                                 width,   scores.get(), nullptr};
    fk::MultiplyPanel<fk::LeftLayout::kRowMajor, fk::kPanelVectors>(product, Opaque(kKeys),
                                                                    fk::Accumulate::kNothing);
  }
  void Softmax(int64_t panel) const {
    const fk::PanelState<C> state{m.get() + panel * kPanel<C>, l.get() + panel * kPanel<C>,
                                  scale.get()};
    fk::SoftmaxPanel<fk::Domain::kFast, fk::kPanelVectors>(state, Opaque(kKeys), scores.get());
  }
  void MultiplyPV(int64_t panel) const {
    const int64_t width = Opaque(kWidth);
    const fk::Product<C> product{
        v.get(), width, scores.get(), Opaque(kKeys), o.get() + panel * width * kPanel<C>, nullptr};
    fk::MultiplyPanel<fk::LeftLayout::kDepthMajor, fk::kPanelVectors>(product, width,
                                                                      fk::Accumulate::kOld);
  }

  static double Scores() { return static_cast<double>(kCount * kPanel<C> * kKeys); }
};

template <typename C, int64_t kWidth, class Step>
Part PanelPart(double flops_per_score, Step step) {
  const PanelMemory<C, kWidth> memory;
  Part part;
  part.precision = kPrecision<C>;
  part.flops = flops_per_score * memory.Scores();
  part.elements = flops_per_score == 0 ? memory.Scores() : 0;
  part.call = [memory, step] {
    for (int64_t panel = 0; panel < memory.kCount; ++panel) step(memory, panel);
  };
  return part;
}

template <typename C, int64_t kWidth>
Part QKPart() {
  return PanelPart<C, kWidth>(2.0 * kWidth,
                              [](const auto& memory, int64_t p) { memory.MultiplyQK(p); });
}
template <typename C, int64_t kWidth>
Part PVPart() {
  return PanelPart<C, kWidth>(2.0 * kWidth,
                              [](const auto& memory, int64_t p) { memory.MultiplyPV(p); });
}
template <typename C>
Part SoftmaxPart() {
  return PanelPart<C, kHeadDim>(0, [](const auto& memory, int64_t p) { memory.Softmax(p); });
}
// The inner loop of the kernel, without masks: what is lost beyond this is lost between blocks.
template <typename C, int64_t kWidth>
Part StepPart() {
  return PanelPart<C, kWidth>(4.0 * kWidth, [](const auto& memory, int64_t p) {
    memory.MultiplyQK(p);
    memory.Softmax(p);
    memory.MultiplyPV(p);
  });
}

// ---- passes over elements

// Four vectors in lock step, relative to a base, as the softmax has them.
template <fk::WeightPrecision kWeights>
struct Exp2Step {
  template <class D, class V>
  HWY_INLINE void operator()(D d, V base, V (&x)[4]) const {
    for (V& v : x) v = hn::Sub(v, base);
    fk::WeightExp2<kWeights>(d, x);
  }
};

// As for softcap, without the division by it.
struct TanhStep {
  template <class D, class V>
  HWY_INLINE void operator()(D d, V /*base*/, V (&x)[4]) const {
    fk::Tanh(d, x);
  }
};

template <class Step, typename C>
HWY_NOINLINE void StepAll(const C* from, C* to, int64_t count) {
  const fk::Tag<C> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto base = hn::Load(d, from);
  for (int64_t i = 0; i < count; i += 4 * lanes) {
    hn::Vec<fk::Tag<C>> x[4];
    HWY_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) x[v] = hn::Load(d, from + i + v * lanes);
    Step()(d, base, x);
    HWY_UNROLL(4)
    for (int64_t v = 0; v < 4; ++v) hn::Store(x[v], d, to + i + v * lanes);
  }
}

template <class Step, typename C>
Part ElementsPart() {
  constexpr int64_t kCount = 8192 / sizeof(C);  // from and to take half of L1
  const auto from = Filled<C>(kCount, C(0));
  const auto to = Filled<C>(kCount, C(0));
  for (int64_t i = 0; i < kCount; ++i) from[i] = C(-0.01) * static_cast<C>(i);  // down to -20
  Part part;
  part.precision = kPrecision<C>;
  part.elements = kCount;
  part.call = [from, to] {
    StepAll<Step>(from.get(), to.get(), kCount);
    hwy::PreventElision(to[0]);
  };
  return part;
}

// Q of one tile into panels.
template <typename T>
Part PackPart() {
  using C = fk::Compute<T>;
  constexpr int64_t kRows = kBlocks<C>.block_q;
  const auto from = Filled<T>(kRows * kHeadDim, hwy::ConvertScalarTo<T>(0.5));
  const auto to = Filled<C>(kRows * kHeadDim, C(0));
  kernels::ForwardArgs args;
  args.q = from.get();
  args.q_strides = {kRows * kHeadDim, kRows * kHeadDim, kHeadDim};
  args.batch = args.num_heads = args.num_kv_heads = 1;
  args.seqlen_q = args.seqlen_k = kRows;
  args.head_dim = args.head_dim_v = kHeadDim;
  args.k_len.value = kRows;
  Part part;
  part.precision = kPrecision<C>;
  part.elements = static_cast<double>(kRows * kHeadDim);
  part.call = [from, to, args] {
    const kernels::Tile tile{0, 0, 0, kRows};
    fk::TileRows<C>(args, tile, kernels::Sequence::Of(args, tile.batch))
        .template PackQueries<T>(C(0.1), to.get());
    hwy::PreventElision(to[0]);
  };
  return part;
}

// One block of K or V to the compute type.
template <typename T>
HWY_NOINLINE void PromoteBlock(const T* from, int64_t keys, float* to) {
  const kernels::StridedRows<T> rows{from, kHeadDim};
  fk::PromoteRows<T>(rows, 0, keys, Opaque(kHeadDim), to);
}

template <typename T>
Part PromotePart() {
  constexpr int64_t kKeys = kBlocks<float>.block_k;
  const auto from = Filled<T>(kKeys * kHeadDim, hwy::ConvertScalarTo<T>(0.5));
  const auto to = Filled<float>(kKeys * kHeadDim, 0);
  Part part;
  part.elements = static_cast<double>(kKeys * kHeadDim);
  part.call = [from, to] {
    PromoteBlock(from.get(), kKeys, to.get());
    hwy::PreventElision(to[0]);
  };
  return part;
}

// The search for NaN and infinity in one block of V, once per tile and block.
template <typename C>
Part ScanPart() {
  constexpr int64_t kKeys = kBlocks<C>.block_k;
  const auto v = Filled<C>(kKeys * kHeadDim, C(0.5));
  Part part;
  part.precision = kPrecision<C>;
  part.elements = static_cast<double>(kKeys * kHeadDim);
  part.call = [v] {
    const int64_t width = Opaque(kHeadDim);
    bool found = fk::AnyNonFinite(fk::MatrixRows<C>{v.get(), width}, Opaque(kKeys), width);
    hwy::PreventElision(found);
  };
  return part;
}

// ---- the list

template <typename C, fk::LeftLayout kLayout>
void AddTiles(const std::string& layout, std::vector<PartMaker>* parts) {
  constexpr size_t kRows = kernels::kTileRows;
  const std::string name = "multiply_" + layout + (sizeof(C) == 8 ? "/f64" : "/f32");
  const std::string full = "/vecs:" + std::to_string(fk::kPanelVectors);
  if constexpr (fk::kPanelVectors > 2) {
    parts->push_back({name + "/rows:6" + full, &TilePart<kLayout, kRows, fk::kPanelVectors, C>});
  }
  parts->push_back({name + "/rows:6/vecs:2", &TilePart<kLayout, kRows, 2, C>});
  parts->push_back({name + "/rows:6/vecs:1", &TilePart<kLayout, kRows, 1, C>});
  parts->push_back({name + "/rows:4" + full, &TilePart<kLayout, 4, fk::kPanelVectors, C>});
  parts->push_back({name + "/rows:2" + full, &TilePart<kLayout, 2, fk::kPanelVectors, C>});
  parts->push_back({name + "/rows:1" + full, &TilePart<kLayout, 1, fk::kPanelVectors, C>});
}

template <typename C, int64_t kWidth>
void AddPanels(const std::string& suffix, std::vector<PartMaker>* parts) {
  parts->push_back({"panel_qk" + suffix, &QKPart<C, kWidth>});
  parts->push_back({"panel_pv" + suffix, &PVPart<C, kWidth>});
  parts->push_back({"panel_step" + suffix, &StepPart<C, kWidth>});
}

template <typename C>
void AddComputeType(std::vector<PartMaker>* parts) {
  const std::string type = sizeof(C) == 8 ? "/f64" : "/f32";
  AddTiles<C, fk::LeftLayout::kRowMajor>("row_major", parts);
  AddTiles<C, fk::LeftLayout::kDepthMajor>("depth_major", parts);
  AddPanels<C, 64>(type + "/d:64", parts);
  AddPanels<C, 128>(type + "/d:128", parts);
  parts->push_back({"exp2" + type, &ElementsPart<Exp2Step<fk::WeightPrecision::kFull>, C>});
  parts->push_back({"tanh" + type, &ElementsPart<TanhStep, C>});
  parts->push_back({"softmax" + type, &SoftmaxPart<C>});
  parts->push_back({"pack_q" + type, &PackPart<C>});
  parts->push_back({"scan_v" + type, &ScanPart<C>});
}

std::vector<PartMaker> AllParts() {
  std::vector<PartMaker> parts;
  AddComputeType<float>(&parts);
  AddComputeType<double>(&parts);
  parts.push_back({"exp2/half", &ElementsPart<Exp2Step<fk::WeightPrecision::kHalf>, float>});
  parts.push_back({"pack_q/bf16", &PackPart<hwy::bfloat16_t>});
  parts.push_back({"pack_q/f16", &PackPart<hwy::float16_t>});
  parts.push_back({"promote/bf16", &PromotePart<hwy::bfloat16_t>});
  parts.push_back({"promote/f16", &PromotePart<hwy::float16_t>});
  return parts;
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::bench {

HWY_EXPORT(AllParts);

std::vector<PartMaker> PartsOf(int64_t target) { return FLASHLANE_DISPATCH(AllParts, target)(); }

}  // namespace flashlane::bench
#endif  // HWY_ONCE
