// The steps of a unit, one by one and together, on operands that come from L2 as in the kernel.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/tile_probes.h"
#include "kernels/amx_config.h"
#include "kernels/simd_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/unit_probes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; must come before highway.h and *-inl.h

#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/flash-inl.h"
#include "kernels/tile_amx-inl.h"
#include "kernels/tile_dot-inl.h"
#include "kernels/unit_fma-inl.h"
#include "kernels/unit_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::bench {
namespace HWY_NAMESPACE {

namespace fk = kernels::HWY_NAMESPACE;

// A number that the compiler does not know: the kernels know no size either.
HWY_INLINE int64_t Opaque(int64_t value) {
  hwy::PreventElision(value);
  return value;
}

template <typename T>
std::shared_ptr<T[]> Filled(int64_t count, double value) {
  std::shared_ptr<T[]> memory = hwy::AllocateAligned<T>(static_cast<size_t>(count));
  std::fill(memory.get(), memory.get() + count, hwy::ConvertScalarTo<T>(value));
  return memory;
}

// One tile of rows and one block of keys, both as large as the kernel takes them.
template <class Unit, int64_t kWidth>
class Workbench {
 public:
  using T = typename Unit::T;
  using C = typename Unit::C;
  using Panel = typename Unit::Panel;

  Workbench()
      : args_(Args()),
        blocks_(Unit::Blocks(args_)),
        panels_(blocks_.block_q / Panel::kRows),
        q_(Filled<T>(blocks_.block_q * kWidth, 0.01)),
        k_(Filled<T>(blocks_.block_k * kWidth, 0.01)),
        v_(Filled<T>(blocks_.block_k * kWidth, 0.01)) {
    args_.q = q_.get();
    args_.seqlen_q = blocks_.block_q;
    args_.seqlen_k = blocks_.block_k;
    kernels::Carver measure(nullptr);
    fk::FlashTile<Unit>::Carve(args_, blocks_, panels_, &measure);
    memory_ = Filled<uint8_t>(static_cast<int64_t>(measure.bytes()), 0);
    kernels::Carver carver(memory_.get());
    scratch_ = std::make_unique<kernels::FlashScratch<Panel>>(
        &carver, blocks_, panels_, Unit::OutRows(kWidth), Unit::kRoundsWeights,
        Unit::kWeighsInPlace);
    unit_ = std::make_unique<Unit>(args_, blocks_, panels_, &carver);
    scratch_->Reset();
    [[maybe_unused]] const typename Unit::Session session{};
    Pack();
    Load();
    for (int64_t panel = 0; panel < panels_; ++panel) Step(panel);
  }

  void Pack() const {
    const kernels::Tile tile{0, 0, 0, blocks_.block_q};
    const fk::TileRows<Panel> rows(args_, tile, kernels::Sequence::Of(args_, 0));
    unit_->PackQueries(rows, C{1});
  }
  void Load() const {
    const kernels::KvRows<T> k{k_.get(), kWidth};
    const kernels::KvRows<T> v{v_.get(), kWidth};
    bool found = unit_->LoadBlock(k, v, kernels::KeyRange{0, Opaque(blocks_.block_k)}, 0);
    hwy::PreventElision(found);
  }
  void Scores(int64_t panel, const kernels::KeyRange& span) const {
    unit_->template Scores<Panel::kVectors>(panel, span, ScoresOf(span));
  }
  void Softmax(int64_t panel, const kernels::KeyRange& span) const {
    const int64_t row = panel * Panel::kRows;
    C* exact_l = scratch_->exact_l == nullptr ? nullptr : scratch_->exact_l + row;
    const fk::PanelState<C> state{scratch_->m + row, scratch_->l + row, exact_l,
                                  scratch_->scale[0]};
    fk::UpdateMaximum<Panel, fk::Domain::kFast, Panel::kVectors>(state, C{1}, span.size(),
                                                                 ScoresOf(span));
    unit_->template Weigh<fk::Domain::kFast, Panel::kVectors>(state, C{1}, span, ScoresOf(span));
  }
  void Values(int64_t panel) const {
    unit_->template AddValues<Panel::kVectors>(
        {0, Opaque(blocks_.block_k)}, fk::Accumulate::kOld, nullptr,
        scratch_->o + panel * Unit::OutRows(kWidth) * Panel::kRows);
  }
  template <class Function>
  void ForChunks(Function function) const {
    for (int64_t chunk = 0; chunk < Opaque(blocks_.block_k); chunk += blocks_.chunk_k) {
      function(kernels::KeyRange{chunk, chunk + blocks_.chunk_k});
    }
  }
  // The inner loop of the kernel, without masks: what is lost beyond this is lost between blocks.
  void Step(int64_t panel) const {
    ForChunks([&](const kernels::KeyRange& span) {
      Scores(panel, span);
      Softmax(panel, span);
    });
    Values(panel);
  }

  int64_t panels() const { return panels_; }
  double scores() const { return static_cast<double>(blocks_.block_q * blocks_.block_k); }
  double query_elements() const { return static_cast<double>(blocks_.block_q * kWidth); }
  double block_elements() const { return 2.0 * static_cast<double>(blocks_.block_k * kWidth); }

 private:
  C* ScoresOf(const kernels::KeyRange& span) const {
    return scratch_->scores + (Unit::kWeighsInPlace ? span.begin * Panel::kRows : 0);
  }
  static kernels::ForwardArgs Args() {
    kernels::ForwardArgs args;
    args.q_strides = {0, 0, kWidth};
    args.batch = args.num_heads = args.num_kv_heads = 1;
    args.head_dim = args.head_dim_v = kWidth;
    return args;
  }

  kernels::ForwardArgs args_;
  kernels::FlashBlocks blocks_;
  int64_t panels_;
  std::shared_ptr<T[]> q_, k_, v_;
  std::shared_ptr<uint8_t[]> memory_;
  std::unique_ptr<kernels::FlashScratch<Panel>> scratch_;
  std::unique_ptr<Unit> unit_;
};

template <class Unit>
constexpr Peak PeakOf(const Unit*) {
  return std::is_same_v<typename Unit::C, double> ? Peak::kF64 : Peak::kF32;
}
#if FLASHLANE_HAS_PAIRS
constexpr Peak PeakOf(const fk::PairUnit<fk::DotTiles>*) { return Peak::kDotBF16; }
#if FLASHLANE_HAS_AMX
constexpr Peak PeakOf(const fk::PairUnit<fk::AmxTiles>*) { return Peak::kAmx; }
#endif
#endif

// A part that calls `step` on the workbench; per panel, or once.
template <class Unit, int64_t kWidth, class Step>
PartMaker UnitPart(const std::string& name, Step step) {
  return {name, [step] {
            const auto bench = std::make_shared<Workbench<Unit, kWidth>>();
            Part part;
            part.peak = PeakOf(static_cast<const Unit*>(nullptr));
            step(*bench, &part);
            part.call = [bench, call = std::move(part.call)] {
              [[maybe_unused]] const typename Unit::Session session{};
              call();
            };
            return part;
          }};
}

// Products and softmax of all panels.
template <class Unit, int64_t kWidth>
void AddPanels(const std::string& suffix, std::vector<PartMaker>* parts) {
  using Bench = Workbench<Unit, kWidth>;
  parts->push_back(UnitPart<Unit, kWidth>("panel_qk" + suffix, [](const Bench& bench, Part* part) {
    part->flops = 2.0 * kWidth * bench.scores();
    part->call = [&bench] {
      for (int64_t p = 0; p < bench.panels(); ++p) {
        bench.ForChunks([&](const kernels::KeyRange& span) { bench.Scores(p, span); });
      }
    };
  }));
  parts->push_back(UnitPart<Unit, kWidth>("panel_pv" + suffix, [](const Bench& bench, Part* part) {
    part->flops = 2.0 * kWidth * bench.scores();
    part->call = [&bench] {
      for (int64_t p = 0; p < bench.panels(); ++p) bench.Values(p);
    };
  }));
  parts->push_back(
      UnitPart<Unit, kWidth>("panel_step" + suffix, [](const Bench& bench, Part* part) {
        part->flops = 4.0 * kWidth * bench.scores();
        part->call = [&bench] {
          for (int64_t p = 0; p < bench.panels(); ++p) bench.Step(p);
        };
      }));
}

template <class Unit>
void AddUnit(const std::string& name, std::vector<PartMaker>* parts) {
  constexpr int64_t kHeadDim = 128;
  using Bench = Workbench<Unit, kHeadDim>;
  AddPanels<Unit, 64>("/" + name + "/d:64", parts);
  AddPanels<Unit, kHeadDim>("/" + name + "/d:128", parts);
  parts->push_back(UnitPart<Unit, kHeadDim>("softmax/" + name, [](const Bench& bench, Part* part) {
    part->elements = bench.scores();
    part->call = [&bench] {
      for (int64_t p = 0; p < bench.panels(); ++p) {
        bench.ForChunks([&](const kernels::KeyRange& span) { bench.Softmax(p, span); });
      }
    };
  }));
  parts->push_back(UnitPart<Unit, kHeadDim>("pack_q/" + name, [](const Bench& bench, Part* part) {
    part->elements = bench.query_elements();
    part->call = [&bench] { bench.Pack(); };
  }));
  parts->push_back(
      UnitPart<Unit, kHeadDim>("load_block/" + name, [](const Bench& bench, Part* part) {
        part->elements = bench.block_elements();
        part->call = [&bench] { bench.Load(); };
      }));
}

std::vector<PartMaker> VectorParts() {
  std::vector<PartMaker> parts;
  AddUnit<fk::FmaUnit<float>>("fma_f32", &parts);
  AddUnit<fk::FmaUnit<double>>("fma_f64", &parts);
  AddUnit<fk::FmaUnit<hwy::bfloat16_t>>("fma_bf16", &parts);
  AddUnit<fk::FmaUnit<hwy::float16_t>>("fma_f16", &parts);
#if FLASHLANE_HAS_PAIRS
  AddUnit<fk::PairUnit<fk::DotTiles>>("bf16_dot", &parts);
#endif
  return parts;
}

std::vector<PartMaker> AmxParts() {
  std::vector<PartMaker> parts;
#if FLASHLANE_HAS_PAIRS && FLASHLANE_HAS_AMX
  AddUnit<fk::PairUnit<fk::AmxTiles>>("amx", &parts);
#endif
  return parts;
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashlane::bench {

HWY_EXPORT(VectorParts);
HWY_EXPORT(AmxParts);

std::vector<PartMaker> UnitPartsOf(int64_t target) {
  return (target & kernels::kAmxBit) != 0 ? FLASHLANE_DISPATCH(AmxParts, target)()
                                          : FLASHLANE_DISPATCH(VectorParts, target)();
}

}  // namespace flashlane::bench
#endif  // HWY_ONCE
