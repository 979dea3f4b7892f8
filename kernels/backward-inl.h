// One unit of the backward: some queries of a kv head against some of its keys, P recomputed from
// the scores and lse (Dao, FlashAttention-2, 2023, algorithm 2).
//
// The layout is the forward's: lanes are query rows, S^T = K Q^T and dP^T = V dO^T with Q^T and
// dO^T packed, so that lse and delta are vectors and P^T and dS^T [key][row] are the left operands
// of
//   dV[key][:] += P^T[key][row] dO[row][:]   and   dK[key][:] += dS^T[key][row] Q[row][:],
// with Q and dO copied to panels of columns, and dS^T is the right operand of
//   dQ^T[:][row] += K^T[:][key] dS^T[key][row].
// Nothing is transposed but Q, dO and dQ once per strip of rows and piece of keys.
//
// Cost, per key and row: 3 D + 2 Dv multiply-adds in five products, about 20 operations in between.
// Bytes: per strip of R rows and block of keys K, V, dK and dV are read (and the latter written)
// once, 6 D elements a key for 5 D R multiply-adds: below 1 byte per cycle with R = 256 even where
// a multiply-add unit does 32 a cycle. The strip itself (5 D elements a row) and P and dS of the
// block stay in L2. Packing a strip costs about as much as 10 keys.

#if defined(FLASHLANE_KERNELS_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_BACKWARD_INL_H_
#undef FLASHLANE_KERNELS_BACKWARD_INL_H_
#else
#define FLASHLANE_KERNELS_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/backward_args.h"
#include "kernels/backward_rows-inl.h"
#include "kernels/backward_strip-inl.h"
#include "kernels/block_sizes.h"
#include "kernels/convert-inl.h"
#include "kernels/flash_scratch.h"
#include "kernels/mask.h"
#include "kernels/panel_rows-inl.h"
#include "kernels/tile_matmul-inl.h"
#include "kernels/unit_fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline Wanted WantedOf(const BackwardArgs& args) {
  Wanted wanted;
  wanted.dq = args.dq.data != nullptr;
  wanted.dk = args.dk.data != nullptr;
  wanted.dv = args.dv.data != nullptr;
  wanted.ds = wanted.dq || wanted.dk;
  return wanted;
}

// Working memory of one unit of work.
template <class Unit>
struct PieceScratch {
  using C = typename Unit::C;

  PieceScratch(const BackwardArgs& args, const BackwardBlocks& blocks, Carver* carver)
      : strip(args.forward, blocks, WantedOf(args), carver) {
    if (args.dq.data == nullptr) return;
    dq = carver->Take<C>(blocks.block_q * Unit::OutRows(args.forward.head_dim));
  }

  StripScratch<Unit> strip;
  C* dq = nullptr;  // panels of [OutRows(head_dim)][kRows]
};

template <class Unit>
class BackwardPiece {
 public:
  using T = typename Unit::T;
  using C = typename Unit::C;
  using Panel = typename Unit::Panel;
  static constexpr int64_t kRows = Panel::kRows;

  BackwardPiece(const BackwardArgs& args, const BackwardTile& tile, Carver carver)
      : args_(args),
        tile_(tile),
        sequence_(Sequence::Of(args.forward, tile.batch)),
        blocks_(Unit::Blocks(args.forward)),
        scratch_(args, blocks_, &carver),
        unit_(scratch_.strip.unit),
        wanted_(WantedOf(args)) {}

  void Run() {
    const int64_t group = args_.forward.group();
    const int64_t begin = tile_.q_begin * group, end = tile_.q_end * group;
    const int64_t strips = hwy::DivCeil(end - begin, blocks_.block_q);
    const int64_t rows = hwy::RoundUpTo(hwy::DivCeil(end - begin, strips), kRows);
    for (int64_t row = begin; row < end; row += rows) {
      RunStrip({tile_.batch, tile_.kv_head, row, std::min(row + rows, end)});
    }
  }

 private:
  using Strip = BackwardStrip<Unit>;

  void RunStrip(const Tile& tile) {
    Strip strip(args_, tile, sequence_, &scratch_.strip);
    const KeyRange any = strip.rows().VisibleToAny();
    const KeyRange keys{std::max(any.begin, tile_.key_begin), std::min(any.end, tile_.key_end)};
    if (keys.empty()) return;
    Pack(&strip);
    for (int64_t begin = keys.begin / blocks_.block_k * blocks_.block_k; begin < keys.end;
         begin += blocks_.block_k) {
      const KeyBlock block = strip.LoadBlock(begin, keys);
      // After the last block the next strip begins with the first.
      const bool last = begin + blocks_.block_k >= keys.end;
      next_keys_ =
          (last ? keys.begin / blocks_.block_k * blocks_.block_k - begin : blocks_.block_k);
      strip.Weigh(block);
      if (wanted_.dq) AddQueries(strip, block);
      AddKeys(strip, block);
    }
    if (wanted_.dq) StoreQueries(strip);
  }

  void Pack(Strip* strip) {
    strip->Pack(wanted_.ds);
    dout_is_finite_ = !unit_.PackColumns(strip->rows(), strip->num_rows(), strip->DoutRows());
    if (wanted_.dq) std::fill(scratch_.dq, PanelOfQueries(strip->num_panels()), C{0});
  }

  C* PanelOfQueries(int64_t panel) const {
    return scratch_.dq + panel * Unit::OutRows(args_.forward.head_dim) * kRows;
  }

  // dQ^T += K^T dS^T.
  void AddQueries(const Strip& strip, const KeyBlock& block) {
    for (int64_t panel = 0; panel < strip.num_panels(); ++panel) {
      const KeyRange keys = strip.Seen(panel);
      if (keys.empty()) continue;
      strip.WithPanelVectors(panel, [&](auto vectors) {
        unit_.template AddQueries<vectors()>(panel, strip.SpanOf(keys, block.begin),
                                             PanelOfQueries(panel));
      });
    }
  }

  // dV += P^T dO and dK += dS^T Q, for keys that the same panels see at once.
  void AddKeys(const Strip& strip, const KeyBlock& block) {
    const int64_t panels = strip.num_panels();
    for (int64_t key = block.keys.begin; key < block.keys.end;) {
      KeyRun run{{key, block.keys.end}, panels, 0};
      for (int64_t panel = 0; panel < panels; ++panel) {
        const KeyRange seen = strip.Seen(panel);
        if (seen.begin <= key && key < seen.end) {
          run.panel_begin = std::min(run.panel_begin, panel);
          run.panel_end = panel + 1;
        }
        if (seen.begin > key) run.keys.end = std::min(run.keys.end, seen.begin);
        if (seen.end > key) run.keys.end = std::min(run.keys.end, seen.end);
      }
      key = run.keys.end;
      if (run.panel_begin < run.panel_end) AddRun(strip, run);
    }
  }

  void AddRun(const Strip& strip, const KeyRun& run) {
    if (wanted_.dv) {
      unit_.AddToValues(run, strip.num_rows(),
                        {SumRow(args_.dv_sum, run.keys.begin), args_.dv_sum.strides.row, C{1},
                         Next(strip.values(), run)});
      if (HWY_UNLIKELY(!dout_is_finite_)) AddNonFinite(strip, run);
    }
    if (wanted_.dk) {
      unit_.AddToKeys(run, strip.num_rows(),
                      {SumRow(args_.dk_sum, run.keys.begin), args_.dk_sum.strides.row,
                       static_cast<C>(args_.forward.softmax_scale), Next(strip.keys(), run)});
    }
  }

  // The rows that take the place of those of `run` in the next block.
  NextRows Next(const KvRows<T>& rows, const KeyRun& run) const {
    const int64_t begin = std::min(run.keys.begin + next_keys_, tile_.key_end);
    constexpr int64_t kBytes = static_cast<int64_t>(sizeof(T));
    return {reinterpret_cast<const uint8_t*>(rows.Row(begin)), tile_.key_end - begin,
            rows.row_stride * kBytes, 0};
  }

  // What PackColumns left out of dO, for the keys that weigh in its row.
  void AddNonFinite(const Strip& strip, const KeyRun& run) {
    const int64_t first = strip.rows().Range(0).begin;
    const int64_t end = std::min(run.panel_end * kRows, strip.num_rows());
    for (int64_t r = run.panel_begin * kRows; r < end; ++r) {
      const T* dout =
          strip.rows().template RowPointer<const T>(args_.dout, args_.dout_strides, first + r);
      for (int64_t i = 0; i < args_.forward.head_dim_v; ++i) {
        const C value = LoadScalar(dout + i);
        if (std::isfinite(value)) continue;
        for (int64_t key = run.keys.begin; key < run.keys.end; ++key) {
          const C weight = unit_.WeightAt(r, key);
          if (weight != C{0}) SumRow(args_.dv_sum, key)[i] += weight * value;
        }
      }
    }
  }

  C* SumRow(const RowSums& sums, int64_t key) const {
    return KeyRow<C>(sums, tile_.batch, tile_.kv_head, sequence_.k_begin + key);
  }

  void StoreQueries(const Strip& strip) {
    const int64_t head_dim = args_.forward.head_dim;
    const C scale = static_cast<C>(args_.forward.softmax_scale);
    for (int64_t panel = 0; panel < strip.num_panels(); ++panel) {
      AddTransposed<Panel>(strip.rows(), strip.rows().Range(panel), PanelOfQueries(panel), head_dim,
                           scale, args_.dq_sum);
    }
  }

  const BackwardArgs& args_;
  const BackwardTile& tile_;
  const Sequence sequence_;
  const BackwardBlocks blocks_;
  PieceScratch<Unit> scratch_;
  Unit& unit_;
  const Wanted wanted_;
  bool dout_is_finite_ = true;
  int64_t next_keys_ = 0;  // from a key of the block to one of the next
};

template <class Unit>
void RunBackwardPiece(const BackwardArgs& args, const BackwardTile& tile, void* scratch) {
  [[maybe_unused]] const typename Unit::Session session;
  BackwardPiece<Unit>(args, tile, Carver(scratch)).Run();
}

template <typename T>
void ClearKeys(const BackwardArgs& args, const Tile& tile) {
  using C = Compute<T>;
  if (args.dk_sum.data == nullptr && args.dv_sum.data == nullptr) return;
  const int64_t first = Sequence::Of(args.forward, tile.batch).k_begin;
  for (int64_t j = first + tile.row_begin; j < first + tile.row_end; ++j) {
    if (args.dk_sum.data != nullptr) {
      C* dk = KeyRow<C>(args.dk_sum, tile.batch, tile.kv_head, j);
      std::fill(dk, dk + args.forward.head_dim, C{0});
    }
    if (args.dv_sum.data != nullptr) {
      C* dv = KeyRow<C>(args.dv_sum, tile.batch, tile.kv_head, j);
      std::fill(dv, dv + args.forward.head_dim_v, C{0});
    }
  }
}

template <typename T>
void FinishQueries(const BackwardArgs& args, const Tile& tile) {
  using C = Compute<T>;
  if (args.dq.data == nullptr) return;
  const ForwardArgs& forward = args.forward;
  const TileRows<FmaPanel<C>> rows(forward, tile, Sequence::Of(forward, tile.batch));
  for (int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    DemoteRow<T>(rows.template RowPointer<const C>(args.dq_sum.data, args.dq_sum.strides, r),
                 forward.head_dim, rows.template RowPointer<T>(args.dq.data, args.dq.strides, r));
  }
}

template <typename T>
void FinishKeys(const BackwardArgs& args, const Tile& tile) {
  using C = Compute<T>;
  const int64_t first = Sequence::Of(args.forward, tile.batch).k_begin;
  const auto finish = [&](const RowSums& sums, int64_t width, const RowSums& to) {
    if (to.data == nullptr) return;
    for (int64_t j = first + tile.row_begin; j < first + tile.row_end; ++j) {
      DemoteRow<T>(KeyRow<C>(sums, tile.batch, tile.kv_head, j), width,
                   KeyRow<T>(to, tile.batch, tile.kv_head, j));
    }
  };
  finish(args.dk_sum, args.forward.head_dim, args.dk);
  finish(args.dv_sum, args.forward.head_dim_v, args.dv);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_BACKWARD_INL_H_
