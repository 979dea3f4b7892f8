#include "dispatch/fkc/time_model.h"

#include <algorithm>
#include <cmath>

#include "dispatch/cost.h"
#include "dispatch/dtype.h"
#include "dispatch/visible_pairs.h"
#include "kernels/key_splits.h"
#include "kernels/mask.h"

namespace flashlane::fkc {
namespace {

// Operations of the softmax per pair of a row and a key (kernels/flash-inl.h counts about 15).
constexpr double kSoftmaxFlops = 16;
// A panel that is not full computes the vectors it has, of which there are at most four
// (kernels/block_sizes.h).
constexpr double kPanelVectors = 4;
// Rows of queries of the gradients that sweep the keys together (kMaxRows of
// ChooseBackwardBlocks).
constexpr double kBackwardRows = 256;

struct Granularity {
  double panel = 1;  // rows that are computed for all keys that any of them sees
  double tile = 1;   // rows that K and V are read once for
};

// Head sizes beyond any block's and lengths and heads that no block depends on are left out, so
// that shapes of any size are safe to plan.
Granularity GranularityOf(const kernels::ForwardEntry& entry, const kernels::ForwardArgs& args) {
  constexpr int64_t kMaxHeadDim = 1 << 20;
  kernels::ForwardArgs small = args;
  small.num_heads = small.num_kv_heads = 1;
  small.seqlen_q = std::min<int64_t>(args.seqlen_q, 1);
  small.head_dim = std::min(args.head_dim, kMaxHeadDim);
  small.head_dim_v = std::min(args.head_dim_v, kMaxHeadDim);
  const kernels::TilePlan plan = entry.plan(small);
  return {static_cast<double>(plan.row_granule), static_cast<double>(plan.block_rows)};
}

// One sequence, in numbers that cannot overflow.
struct Shape {
  Shape(const kernels::ForwardArgs& args, const kernels::Sequence& of)
      : sequence(of),
        mask(kernels::SequenceMask::Of(args, of)),
        group(static_cast<double>(args.group())),
        kv_heads(static_cast<double>(args.num_kv_heads)),
        rows(static_cast<double>(of.seqlen_q) * group),
        width(static_cast<double>(args.head_dim) + static_cast<double>(args.head_dim_v)) {}

  // Keys that queries see, summed over queries, when every `rows_together` rows see what any of
  // them does: each then sees half as many queries' keys further, on either side.
  double KeysSeen(double rows_together) const {
    kernels::SequenceMask wide = mask;
    const double queries = std::min(rows_together, rows) / group;
    const auto further = static_cast<int64_t>(std::max(0.0, queries - 1) / 2);
    for (int64_t* window : {&wide.window_left, &wide.window_right}) {
      if (*window != kernels::kUnlimited) *window = kernels::SaturatingAdd(*window, further);
    }
    return static_cast<double>(VisiblePairs(wide, 0, sequence.seqlen_q, {0, sequence.k_len}));
  }

  // Rows with what the last panel computes in vain.
  double PaddedRows(const Granularity& granularity) const {
    const double vector = std::max(1.0, granularity.panel / kPanelVectors);
    return std::ceil(rows / vector) * vector;
  }

  double Tiles(double tile_rows) const { return std::ceil(rows / tile_rows); }

  const kernels::Sequence& sequence;
  kernels::SequenceMask mask;
  double group, kv_heads, rows, width;
};

// Pairs that panels compute, over those that count.
double PairsComputed(const Shape& shape, const Granularity& granularity) {
  return shape.KeysSeen(granularity.panel) * shape.PaddedRows(granularity) / shape.rows *
         shape.group * shape.kv_heads;
}

// Keys that tiles of so many rows read, of all kv heads.
double KeysRead(const Shape& shape, double tile_rows) {
  const double even = shape.rows / shape.Tiles(tile_rows);
  return shape.KeysSeen(even) * shape.group / even * shape.kv_heads;
}

kernels::KeySplits SplitsOf(const kernels::ForwardArgs& args, const kernels::ForwardEntry& entry,
                            const kernels::Sequence& sequence) {
  const bool few =  // so that their product cannot overflow
      sequence.seqlen_q <= kernels::kSplitRows && args.group() <= kernels::kSplitRows;
  if (entry.streams.run == nullptr || !few) return {};
  return kernels::KeySplits::Of(args, sequence);
}

TimeTerms SequenceTerms(const kernels::ForwardArgs& args, const kernels::ForwardEntry& entry,
                        const kernels::Sequence& sequence, double element_bytes) {
  TimeTerms terms;
  if (sequence.seqlen_q == 0) return terms;
  const Shape shape(args, sequence);
  const kernels::KeySplits splits = SplitsOf(args, entry, sequence);
  const double pair_flops = 2 * shape.width + kSoftmaxFlops;
  const double row_bytes = shape.width * element_bytes;
  if (splits.streams) {
    const auto keys = static_cast<double>(shape.mask.VisibleToAny(0, sequence.seqlen_q).size());
    terms.tiles = shape.kv_heads * static_cast<double>(splits.count);
    terms.stream_flops = shape.kv_heads * shape.rows * keys * pair_flops;
    terms.stream_bytes = shape.kv_heads * (keys + shape.rows) * row_bytes;
    return terms;
  }
  const Granularity granularity = GranularityOf(entry, args);
  const double tile_rows = std::max(granularity.tile, 1.0);
  terms.tiles = shape.kv_heads * shape.Tiles(tile_rows) * static_cast<double>(splits.count);
  terms.flops = PairsComputed(shape, granularity) * pair_flops;
  terms.bytes = (KeysRead(shape, tile_rows) + shape.kv_heads * shape.rows) * row_bytes;
  return terms;
}

// f(sequence), summed over all sequences.
template <class Function>
TimeTerms SumOverSequences(const kernels::ForwardArgs& args, const Function& terms_of) {
  TimeTerms sum;
  if (args.batch == 0) return sum;
  const bool alike = AlikeSequences(args);
  for (int64_t b = 0; b < (alike ? 1 : args.batch); ++b) {
    sum.Add(terms_of(kernels::Sequence::Of(args, b)),
            alike ? static_cast<double>(args.batch) : 1.0);
  }
  return sum;
}

}  // namespace

void TimeTerms::Add(const TimeTerms& other, double times) {
  tiles += other.tiles * times;
  flops += other.flops * times;
  bytes += other.bytes * times;
  stream_flops += other.stream_flops * times;
  stream_bytes += other.stream_bytes * times;
}

double Nanoseconds(const Coefficients& c, const TimeTerms& terms) {
  return c.overhead_ns + c.tile_ns * terms.tiles + c.ns_per_flop * terms.flops +
         c.ns_per_byte * terms.bytes + c.stream_ns_per_flop * terms.stream_flops +
         c.stream_ns_per_byte * terms.stream_bytes;
}

TimeTerms ForwardTerms(const kernels::ForwardArgs& args, const KernelRow& row, int64_t target) {
  const kernels::ForwardEntry entry = row.forward(target);
  const auto element_bytes = static_cast<double>(DTypeSize(row.dtype));
  return SumOverSequences(args, [&](const kernels::Sequence& sequence) {
    return SequenceTerms(args, entry, sequence, element_bytes);
  });
}

TimeTerms BackwardTerms(const kernels::BackwardArgs& args, const KernelRow& row, int64_t target) {
  const kernels::ForwardArgs& forward = args.forward;
  const auto element_bytes = static_cast<double>(DTypeSize(row.dtype));
  const KernelRow* panels = FindKernel(row.kernel, row.dtype);  // as wide as the forward's
  const Granularity granularity = GranularityOf(panels->forward(target), forward);
  const auto visible = static_cast<double>(AllVisiblePairs(forward));
  const double flops = static_cast<double>(WideBackwardFlops(args));
  const double pair_flops = visible == 0 ? 0 : flops / visible + kSoftmaxFlops;
  return SumOverSequences(forward, [&](const kernels::Sequence& sequence) {
    TimeTerms terms;
    if (sequence.seqlen_q == 0) return terms;
    const Shape shape(forward, sequence);
    terms.tiles = shape.kv_heads * shape.Tiles(kBackwardRows);
    terms.flops = PairsComputed(shape, granularity) * pair_flops;
    // Operands and gradients: twice what a forward reads and writes.
    terms.bytes = 2 * (KeysRead(shape, kBackwardRows) + shape.kv_heads * shape.rows) * shape.width *
                  element_bytes;
    return terms;
  });
}

}  // namespace flashlane::fkc
