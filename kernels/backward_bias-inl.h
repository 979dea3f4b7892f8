// Gradients of bias and sinks. dbias is what dS is before it meets K and Q, summed over everything
// bias broadcasts over; so each unit owns some of its elements and computes dS again for all that
// falls on them, in one order. That costs two products more, for the few who train a bias.

#if defined(FLASHLANE_KERNELS_BACKWARD_BIAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_BIAS_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_BIAS_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_BIAS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/backward_strip-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/mask.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Blocks of strips of one panel.
template <class Unit>
BackwardBlocks BiasBlocksOf(const ForwardArgs& args) {
  BackwardBlocks blocks = Unit::Blocks(args);
  blocks.block_q = Unit::Panel::kRows;
  return blocks;
}

template <class Unit>
struct BiasScratch {
  using C = typename Unit::C;

  BiasScratch(const ForwardArgs& args, const BackwardBlocks& blocks, Carver* carver)
      : strip(args, blocks, Needs(), carver),
        sums(carver->Take<C>(blocks.block_k * Unit::Panel::kRows)) {
    strip.slope = nullptr;  // bias joins after softcap
  }
  static Wanted Needs() {
    Wanted wanted;
    wanted.ds = true;
    return wanted;
  }

  StripScratch<Unit> strip;
  C* sums;  // [columns of the tile][kRows]
};

template <typename T>
const void* AdvanceOperand(const void* data, bool is_f32, int64_t elements) {
  if (data == nullptr) return nullptr;
  if (is_f32) return static_cast<const float*>(data) + elements;
  return static_cast<const T*>(data) + elements;
}

// The call that is left when all query heads but one are.
template <typename T>
BackwardArgs OneHead(BackwardArgs args, int64_t head) {
  using C = Compute<T>;
  ForwardArgs& forward = args.forward;
  const int64_t kv_head = head / forward.group();
  forward.q = static_cast<const T*>(forward.q) + head * forward.q_strides.head;
  forward.k = static_cast<const T*>(forward.k) + kv_head * forward.k_strides.head;
  forward.v = static_cast<const T*>(forward.v) + kv_head * forward.v_strides.head;
  args.dout = static_cast<const T*>(args.dout) + head * args.dout_strides.head;
  args.row_terms.data =
      static_cast<RowTerms<C>*>(args.row_terms.data) + head * args.row_terms.strides.head;
  HeadOperand& slopes = forward.alibi_slopes;
  slopes.data = AdvanceOperand<T>(slopes.data, slopes.is_f32, head * slopes.stride);
  ScoreOperand& bias = forward.bias;
  bias.data = AdvanceOperand<T>(bias.data, bias.is_f32, head * bias.head);
  ScoreOperand& mask = forward.mask;
  mask.data = AdvanceOperand<uint8_t>(mask.data, false, head * mask.head);
  forward.num_heads = forward.num_kv_heads = 1;
  return args;
}

template <class Unit>
class BiasGradient {
 public:
  using T = typename Unit::T;
  using C = typename Unit::C;
  using Panel = typename Unit::Panel;
  static constexpr int64_t kRows = Panel::kRows;

  BiasGradient(const BackwardArgs& args, const BiasTile& tile, Carver carver)
      : args_(args),
        tile_(tile),
        blocks_(BiasBlocksOf<Unit>(args.forward)),
        scratch_(args.forward, blocks_, &carver) {}

  void Run() {
    const ForwardArgs& forward = args_.forward;
    const int64_t columns = tile_.col_end - tile_.col_begin;
    std::fill(scratch_.sums, scratch_.sums + columns * kRows, C{0});
    const bool all_batches = args_.dbias_batch == 0, all_heads = args_.dbias_head == 0;
    const int64_t batch_end = all_batches ? forward.batch : tile_.batch + 1;
    const int64_t head_end = all_heads ? forward.num_heads : tile_.head + 1;
    for (int64_t b = all_batches ? 0 : tile_.batch; b < batch_end; ++b) {
      for (int64_t h = all_heads ? 0 : tile_.head; h < head_end; ++h) AddHead(b, h);
    }
    Store();
  }

 private:
  void AddHead(int64_t batch, int64_t head) {
    const BackwardArgs args = OneHead<T>(args_, head);
    const Sequence sequence = Sequence::Of(args.forward, batch);
    const bool all_rows = args_.dbias_row == 0;
    const int64_t end = all_rows ? sequence.seqlen_q : tile_.row_end;
    for (int64_t row = all_rows ? 0 : tile_.row_begin; row < end; row += kRows) {
      BackwardStrip<Unit> strip(args, {batch, 0, row, std::min(row + kRows, end)}, sequence,
                                &scratch_.strip);
      AddStrip(&strip);
    }
  }

  void AddStrip(BackwardStrip<Unit>* strip) {
    KeyRange keys = strip->rows().VisibleToAny();
    if (args_.dbias_col != 0) {
      keys = {std::max(keys.begin, tile_.col_begin), std::min(keys.end, tile_.col_end)};
    }
    if (keys.empty()) return;
    strip->Pack(/*wants_ds=*/true);
    for (int64_t begin = keys.begin / blocks_.block_k * blocks_.block_k; begin < keys.end;
         begin += blocks_.block_k) {
      strip->Weigh(strip->LoadBlock(begin, keys));
      const KeyRange seen = strip->Seen(0);
      for (int64_t key = seen.begin; key < seen.end; ++key) {
        const C* ds = scratch_.strip.unit.ScoreGradients(0) + (key - begin) * kRows;
        C* sums = scratch_.sums + (args_.dbias_col == 0 ? 0 : key - tile_.col_begin) * kRows;
        for (int64_t lane = 0; lane < strip->num_rows(); ++lane) sums[lane] += ds[lane];
      }
    }
  }

  void Store() const {
    const int64_t matrix = tile_.batch * args_.dbias_batch + tile_.head * args_.dbias_head;
    for (int64_t col = tile_.col_begin; col < tile_.col_end; ++col) {
      const C* sums = scratch_.sums + (col - tile_.col_begin) * kRows;
      const int64_t column = matrix + col * args_.dbias_col;
      if (args_.dbias_row == 0) {
        C sum = 0;
        for (int64_t lane = 0; lane < kRows; ++lane) sum += sums[lane];
        StoreAt(column, sum);
        continue;
      }
      for (int64_t row = tile_.row_begin; row < tile_.row_end; ++row) {
        StoreAt(column + row * args_.dbias_row, sums[row - tile_.row_begin]);
      }
    }
  }

  void StoreAt(int64_t index, C value) const {
    StoreOperand<T>(args_.dbias, args_.forward.bias.is_f32, index, static_cast<double>(value));
  }

  const BackwardArgs& args_;
  const BiasTile& tile_;
  const BackwardBlocks blocks_;
  BiasScratch<Unit> scratch_;
};

template <class Unit>
void RunBiasGradient(const BackwardArgs& args, const BiasTile& tile, void* scratch) {
  [[maybe_unused]] const typename Unit::Session session;
  BiasGradient<Unit>(args, tile, Carver(scratch)).Run();
}

// What a sink takes from the keys of a row is its weight there times delta.
template <class Unit>
void RunSinkGradient(const BackwardArgs& args, int64_t head) {
  using T = typename Unit::T;
  using C = typename Unit::C;
  const ForwardArgs& forward = args.forward;
  const double unit = ScoreUnit<Unit>(forward);
  const double sink = LoadOperand<T>(forward.sinks, head * forward.sinks.stride);
  double sum = 0;
  // A sink of -inf weighs nothing, whatever delta is.
  const bool weighs = !(std::isinf(sink) && sink < 0);
  for (int64_t b = 0; weighs && b < forward.batch; ++b) {
    const Sequence sequence = Sequence::Of(forward, b);
    const RowStrides& strides = args.row_terms.strides;
    const auto* terms = static_cast<const RowTerms<C>*>(args.row_terms.data) + b * strides.batch +
                        head * strides.head;
    for (int64_t i = sequence.q_begin; i < sequence.q_begin + sequence.seqlen_q; ++i) {
      const RowTerms<C>& row = terms[i * strides.row];
      // Without a visible key the sink, too, weighs nothing.
      if (row.shift == -kInfinity<C>) continue;
      const double weight =
          static_cast<double>(row.factor) * std::exp(sink - static_cast<double>(row.shift) / unit);
      sum -= weight * static_cast<double>(row.delta);
    }
  }
  StoreOperand<T>(args.dsinks, forward.sinks.is_f32, head * args.dsinks_stride, sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_BIAS_INL_H_
