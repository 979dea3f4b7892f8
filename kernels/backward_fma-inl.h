// The five products of the backward by multiply-adds in Compute<T>, with K and V as they lie in
// memory or promoted once per block, P and dS as the softmax leaves them.

#if defined(FLASHLANE_KERNELS_BACKWARD_FMA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_FMA_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_FMA_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_FMA_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/backward_rows-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/kv_source.h"
#include "kernels/mask.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/unit_fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T_>
class FmaGradients {
 public:
  using T = T_;
  using C = Compute<T>;
  using Panel = FmaPanel<C>;
  using Rows = TileRows<Panel>;
  struct Session {};  // what a unit of work must hold while it multiplies: nothing
  static constexpr const char* kName = "fma";
  static constexpr bool kFoldsScale = true;
  static constexpr int64_t kKeyGranule = 1;

  static BackwardBlocks Blocks(const ForwardArgs& args) {
    return ChooseBackwardFmaBlocks(args.head_dim, args.head_dim_v, Panel::kRows,
                                   static_cast<int64_t>(sizeof(C)));
  }
  // Rows of a panel of dQ^T.
  static int64_t OutRows(int64_t head_dim) { return head_dim; }

  FmaGradients(const ForwardArgs& args, const BackwardBlocks& blocks, const Wanted& wanted,
               Carver* carver)
      : head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        blocks_(blocks),
        q_columns_(args.head_dim),
        dout_columns_(args.head_dim_v) {
    const int64_t panel_size = blocks.block_q * Panel::kRows;
    q_ = carver->Take<C>(blocks.block_q * head_dim_);
    p_ = carver->Take<C>(blocks.block_q * blocks.block_k);
    if (kPromotes<T>) {
      promoted_k_ = carver->Take<C>(blocks.block_k * head_dim_);
      promoted_v_ = carver->Take<C>(blocks.block_k * head_dim_v_);
    }
    if (wanted.ds) {
      dout_ = carver->Take<C>(blocks.block_q * head_dim_v_);
      ds_ = carver->Take<C>(blocks.block_q * blocks.block_k);
    }
    if (wanted.dq) finite_k_ = carver->Take<C>(blocks.block_k * head_dim_);
    if (wanted.dk) q_rows_ = carver->Take<C>(q_columns_.count * panel_size);
    if (wanted.dv) dout_rows_ = carver->Take<C>(dout_columns_.count * panel_size);
  }

  // The right operands of S and dP. `fold`: the factor of the scores.
  void PackQueries(const Rows& rows, double fold) {
    rows.template PackQueries<T>(FoldingPack<T>(static_cast<C>(fold), head_dim_), head_dim_,
                                 head_dim_ * Panel::kRows, q_);
  }
  void PackDout(const Rows& rows, const typename Rows::RowSource& dout) {
    rows.template PackRows<T>(dout, FoldingPack<T>(C{1}, head_dim_v_), head_dim_v_,
                              head_dim_v_ * Panel::kRows, dout_);
  }

  // The right operands of dK and dV, where they are wanted, numbers that are not finite as 0.
  // Returns whether dO held any.
  bool PackColumns(const Rows& rows, int64_t num_rows, const typename Rows::RowSource& dout) {
    if (q_rows_ != nullptr) {
      CopyColumns<T>(rows, rows.Queries(), num_rows, q_columns_, blocks_.block_q, q_rows_);
    }
    if (dout_rows_ == nullptr) return false;
    return CopyColumns<T>(rows, dout, num_rows, dout_columns_, blocks_.block_q, dout_rows_);
  }

  // The left operands of S, dP and dQ: keys `step` of the block that begins at `block_begin`.
  // LoadKeys: of S alone.
  void LoadKeys(const KvRows<T>& k, const KeyRange& step, int64_t block_begin) {
    block_begin_ = block_begin;
    first_key_ = step.begin;
    k_ = PromoteRows<T>(k, step.begin, step.end, head_dim_, promoted_k_);
  }
  void LoadBlock(const KvRows<T>& k, const KvRows<T>& v, const KeyRange& step,
                 int64_t block_begin) {
    LoadKeys(k, step, block_begin);
    v_ = PromoteRows<T>(v, step.begin, step.end, head_dim_v_, promoted_v_);
    finite_ = k_;
    if (finite_k_ != nullptr && HWY_UNLIKELY(AnyNonFinite(k_, step.size(), head_dim_))) {
      CopyFiniteKeys(step.size());
    }
  }

  // S and dP of a panel, and what becomes of them, [key of the block][kRows].
  C* Weights(int64_t panel) const { return p_ + panel * panel_size(); }
  C* ScoreGradients(int64_t panel) const {
    return ds_ == nullptr ? nullptr : ds_ + panel * panel_size();
  }
  // Of row `r` of the strip, after Finish.
  C WeightAt(int64_t r, int64_t key) const {
    return Weights(r / Panel::kRows)[(key - block_begin_) * Panel::kRows + r % Panel::kRows];
  }

  // S^T = K Q^T and dP^T = V dO^T of the keys of `span`.
  template <size_t kVecs>
  void Scores(int64_t panel, const KeyRange& span, C* scores) const {
    MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
        Product<C>{k_.data + (span.begin - first_key_) * k_.stride, k_.stride,
                   q_ + panel * head_dim_ * Panel::kRows, head_dim_, scores, nullptr},
        span.size(), Accumulate::kNothing);
  }
  template <size_t kVecs>
  void WeightGradients(int64_t panel, const KeyRange& span, C* dp) const {
    MultiplyPanel<LeftLayout::kRowMajor, kVecs>(
        Product<C>{v_.data + (span.begin - first_key_) * v_.stride, v_.stride,
                   dout_ + panel * head_dim_v_ * Panel::kRows, head_dim_v_, dp, nullptr},
        span.size(), Accumulate::kNothing);
  }

  // P and dS of the first `rows` rows of the panel are complete.
  void Finish(int64_t /*panel*/, int64_t /*rows*/, const KeyRange& /*span*/) const {}

  // dQ^T += K^T dS^T, with 0 for numbers of K that are not finite: a row that sees one has a dS of
  // NaN, and to one that does not it must not come.
  template <size_t kVecs>
  void AddQueries(int64_t panel, const KeyRange& span, C* dq) const {
    MultiplyPanel<LeftLayout::kDepthMajor, kVecs>(
        Product<C>{finite_.data + (span.begin - first_key_) * finite_.stride, finite_.stride,
                   ScoreGradients(panel) + (span.begin - block_begin_) * Panel::kRows, span.size(),
                   dq, nullptr},
        head_dim_, Accumulate::kOld);
  }

  // dV += P^T dO and dK += dS^T Q, of the panels of `run`, which end with row `num_rows`.
  void AddToValues(const KeyRun& run, int64_t num_rows, const KeySums<C>& to) const {
    AddToKeys({p_, dout_rows_, dout_columns_}, run, num_rows, to);
  }
  void AddToKeys(const KeyRun& run, int64_t num_rows, const KeySums<C>& to) const {
    AddToKeys({ds_, q_rows_, q_columns_}, run, num_rows, to);
  }

 private:
  struct KeyOperands {
    const C* left;   // panels of [block_k][kRows]
    const C* right;  // panels of [block_q][kRows]
    const ColumnPanels<Panel>& columns;
  };

  int64_t panel_size() const { return blocks_.block_k * Panel::kRows; }

  void CopyFiniteKeys(int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) {
      const C* from = k_.data + j * k_.stride;
      C* to = finite_k_ + j * head_dim_;
      for (int64_t i = 0; i < head_dim_; ++i) to[i] = std::isfinite(from[i]) ? from[i] : C{0};
    }
    finite_ = {finite_k_, head_dim_};
  }

  void AddToKeys(const KeyOperands& operands, const KeyRun& run, int64_t num_rows,
                 const KeySums<C>& to) const {
    const int64_t first = run.panel_begin * Panel::kRows;
    const int64_t depth = std::min(run.panel_end * Panel::kRows, num_rows) - first;
    const C* left = operands.left + run.panel_begin * panel_size() +
                    (run.keys.begin - block_begin_) * Panel::kRows;
    for (int64_t panel = 0; panel < operands.columns.count; ++panel) {
      const int64_t width = operands.columns.Width(panel);
      const int64_t column = panel * operands.columns.step;
      const Product<C> product{left,
                               Panel::kRows,
                               operands.right + (panel * blocks_.block_q + first) * Panel::kRows,
                               depth,
                               nullptr,
                               nullptr,
                               panel_size()};
      const NextRows next = to.next.Columns(column, width, sizeof(T));
      WithVectors<Panel::kVectors>(hwy::DivCeil(width, Panel::kLanes), [&](auto vectors) {
        AddProduct<vectors()>(product, run.keys.size(),
                              SumTarget<C>{to.data + column, to.stride, width, to.factor}, next);
      });
    }
  }

  const int64_t head_dim_, head_dim_v_;
  const BackwardBlocks blocks_;
  const ColumnPanels<Panel> q_columns_, dout_columns_;
  C* q_;                     // panels of [head_dim][kRows]
  C* p_;                     // panels of [block_k][kRows]
  C* dout_ = nullptr;        // panels of [head_dim_v][kRows]
  C* ds_ = nullptr;          // as p_
  C* promoted_k_ = nullptr;  // [block_k][head_dim]
  C* promoted_v_ = nullptr;  // [block_k][head_dim_v]
  C* finite_k_ = nullptr;    // [block_k][head_dim], where K holds a NaN or an infinity
  C* q_rows_ = nullptr;      // [columns][block_q][kRows]
  C* dout_rows_ = nullptr;   // [columns][block_q][kRows]
  int64_t block_begin_ = 0;
  int64_t first_key_ = 0;
  MatrixRows<C> k_{}, v_{}, finite_{};
};

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_FMA_INL_H_
