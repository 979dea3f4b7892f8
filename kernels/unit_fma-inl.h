// The multiply-add unit: both products in Compute<T>, K and V as they lie in memory or promoted
// once per block, weights in place of the scores.

#if defined(FLASHLANE_KERNELS_UNIT_FMA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_UNIT_FMA_INL_H_
#undef FLASHLANE_KERNELS_UNIT_FMA_INL_H_
#else
#define FLASHLANE_KERNELS_UNIT_FMA_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/online_softmax-inl.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// True if any of the rows holds a NaN or an infinity.
template <typename C>
HWY_NOINLINE bool AnyNonFinite(const MatrixRows<C>& rows, int64_t num_rows, int64_t width) {
  const Tag<C> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // 0 * NaN and 0 * inf are NaN, and a sum stays NaN. Four sums, for the latency of a multiply-add.
  hn::Vec<Tag<C>> zeros[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  C tail = 0;
  for (int64_t j = 0; j < num_rows; ++j) {
    const C* row = rows.data + j * rows.stride;
    int64_t i = 0;
    for (; i + 4 * lanes <= width; i += 4 * lanes) {
      HWY_UNROLL(4)
      for (int64_t u = 0; u < 4; ++u) {
        zeros[u] = hn::MulAdd(hn::LoadU(d, row + i + u * lanes), hn::Zero(d), zeros[u]);
      }
    }
    for (; i + lanes <= width; i += lanes) {
      zeros[0] = hn::MulAdd(hn::LoadU(d, row + i), hn::Zero(d), zeros[0]);
    }
    for (; i < width; ++i) tail += row[i] * C{0};
  }
  const auto sum = hn::Add(hn::Add(zeros[0], zeros[1]), hn::Add(zeros[2], zeros[3]));
  return !hn::AllTrue(d, hn::Eq(sum, hn::Zero(d))) || tail != C{0};
}

// How rows are promoted and multiplied by a factor while TileRows packs them.
template <typename T>
struct FoldingPack {
  using C = Compute<T>;
  FoldingPack(C factor, int64_t width)
      : fold(hn::Set(Tag<C>(), factor)), fold_one(factor), whole(width) {}
  HWY_INLINE hn::Vec<Tag<C>> Load(const T* row, int64_t at) const {
    return hn::Mul(LoadPromoted(Tag<C>(), row + at), fold);
  }
  HWY_INLINE C One(const T* row, int64_t at) const { return LoadScalar(row + at) * fold_one; }

  hn::Vec<Tag<C>> fold;
  C fold_one;
  int64_t whole;
};

template <typename T_>
class FmaUnit {
 public:
  using T = T_;
  using C = Compute<T>;
  using Panel = FmaPanel<C>;
  struct Session {};  // what a tile must hold while it multiplies: nothing
  static constexpr const char* kName = "fma";
  // The factor of the scores is multiplied into q.
  static constexpr bool kFoldsScale = true;
  static constexpr bool kRoundsWeights = false;
  // Weights stand where the scores were, which are then those of a whole block.
  static constexpr bool kWeighsInPlace = true;
  // Keys per step of the second product.
  static constexpr int64_t kKeyGranule = 1;

  static FlashBlocks Blocks(const ForwardArgs& args) {
    return ChooseFlashBlocks(args.head_dim, args.head_dim_v, Panel::kRows,
                             static_cast<int64_t>(sizeof(C)));
  }
  static int64_t OutRows(int64_t head_dim_v) { return head_dim_v; }

  FmaUnit(const ForwardArgs& args, const FlashBlocks& blocks, int64_t num_panels, Carver* carver)
      : head_dim_(args.head_dim), head_dim_v_(args.head_dim_v) {
    q_ = carver->Take<C>(num_panels * Panel::kRows * head_dim_);
    if (kPromotes<T> || args.block_table.data != nullptr) {
      promoted_k_ = carver->Take<C>(blocks.block_k * head_dim_);
      promoted_v_ = carver->Take<C>(blocks.block_k * head_dim_v_);
    }
  }

  void PackQueries(const TileRows<Panel>& rows, C fold) {
    rows.template PackQueries<T>(FoldingPack<T>(fold, head_dim_), head_dim_,
                                 head_dim_ * Panel::kRows, q_);
  }

  // Makes keys [step.begin, step.end) ready for the products. Returns whether their values hold a
  // NaN or an infinity.
  bool LoadBlock(const KvRows<T>& k, const KvRows<T>& v, const KeyRange& step,
                 int64_t block_begin) {
    block_begin_ = block_begin;
    first_key_ = step.begin;
    k_ = PromoteRows<T>(k, step.begin, step.end, head_dim_, promoted_k_);
    v_ = PromoteRows<T>(v, step.begin, step.end, head_dim_v_, promoted_v_);
    return AnyNonFinite(v_, step.size(), head_dim_v_);
  }

  // S^T = K Q^T for the keys of `span`.
  template <size_t kVecs>
  void Scores(int64_t panel, const KeyRange& span, C* scores) const {
    MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
        Product<C>{k_.data + (span.begin - first_key_) * k_.stride, k_.stride,
                   q_ + panel * head_dim_ * Panel::kRows, head_dim_, scores, nullptr},
        span.size(), Accumulate::kNothing);
  }

  template <Domain kDomain, size_t kVecs>
  void Weigh(const PanelState<C>& state, C /*unit*/, const KeyRange& span, C* scores) {
    WeighInPlace<Panel, kDomain, kVecs>(state, span.size(), scores);
    weights_ = scores - (span.begin - block_begin_) * Panel::kRows;
  }

  // O^T += V^T P^T for the keys of `span`, which were weighed.
  template <size_t kVecs>
  void AddValues(const KeyRange& span, Accumulate accumulate, const C* scale, C* o) const {
    MultiplyPanel<LeftLayout::kDepthMajor, kVecs>(ValueProduct(span, scale, o), head_dim_v_,
                                                  accumulate);
  }

  // The same where V holds a NaN or an infinity; `hidden`: the scores of these keys.
  template <size_t kVecs>
  void AddValuesSelecting(const KvRows<T>& /*v*/, const KeyRange& span, Accumulate accumulate,
                          const C* scale, const C* hidden, C* o) const {
    MultiplyPanelSelecting<kVecs>(ValueProduct(span, scale, o), hidden, head_dim_v_, accumulate);
  }

 private:
  Product<C> ValueProduct(const KeyRange& span, const C* scale, C* o) const {
    return {v_.data + (span.begin - first_key_) * v_.stride,
            v_.stride,
            weights_ + (span.begin - block_begin_) * Panel::kRows,
            span.size(),
            o,
            scale};
  }

  const int64_t head_dim_;
  const int64_t head_dim_v_;
  C* q_;                     // panels of [head_dim][kRows]
  C* promoted_k_ = nullptr;  // [block_k][head_dim]
  C* promoted_v_ = nullptr;  // [block_k][head_dim_v]
  int64_t block_begin_ = 0;
  int64_t first_key_ = 0;
  MatrixRows<C> k_{};
  MatrixRows<C> v_{};
  const C* weights_ = nullptr;  // of the first key of the block
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_UNIT_FMA_INL_H_
