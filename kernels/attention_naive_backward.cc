// The scalar oracle of the gradients: their definition (flashlane/backward.h), one query row at a
// time, with the softmax computed anew. It never looks at the forward's results.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/base.h"
#include "kernels/kernels.h"
#include "kernels/oracle.h"

namespace flashlane::kernels {
namespace {

using oracle::Exp;
using oracle::FromDouble;
using oracle::OneNan;
using oracle::Row;
using oracle::RowScores;
using oracle::To;

// Largest score of a row and the sum of its weights before division.
template <typename Acc>
struct Softmax {
  Acc max{};
  Acc sum{};
  bool empty = true;  // no key weighs anything

  // `score` gives the score of key j.
  template <typename T, typename Score>
  static Softmax Of(const RowScores<T, Acc>& keys, const Score& score) {
    Softmax result;
    result.max = static_cast<Acc>(-oracle::kInf);
    for (int64_t j = 0; j < keys.k_len(); ++j) {
      const Acc s = score(j);
      result.empty = result.empty && keys.IsHidden(s);
      if (result.max < s) result.max = s;
    }
    if (result.empty) return result;
    if (keys.has_sink() && result.max < keys.Sink()) result.max = keys.Sink();
    for (int64_t j = 0; j < keys.k_len(); ++j) {
      const Acc s = score(j);
      if (!keys.IsHidden(s)) result.sum = result.sum + Exp(s - result.max);
    }
    if (keys.has_sink() && !keys.IsHidden(keys.Sink())) {
      result.sum = result.sum + Exp(keys.Sink() - result.max);
    }
    return result;
  }

  Acc Weight(Acc score) const { return Exp(score - max) / sum; }
};

template <typename T, typename Acc>
Acc Dot(const T* a, const T* b, int64_t size) {
  Acc sum{};
  for (int64_t d = 0; d < size; ++d) sum = sum + To<T, Acc>(a[d]) * To<T, Acc>(b[d]);
  return sum;
}

template <typename T, typename Acc>
void Store(Acc value, T* at) {
  *at = FromDouble<T>(OneNan(static_cast<double>(value)));
}

// The gradients of one query row's scores. `scratch` holds 3 seqlen_k values.
template <typename T, typename Acc>
class RowGradients {
 public:
  RowGradients(const BackwardArgs& args, const Sequence& sequence, Row row, Acc* scratch)
      : args_(args),
        keys_(args.forward, sequence, row),
        weights_(scratch),
        dscores_(scratch + args.forward.seqlen_k),
        tanhs_(scratch + 2 * args.forward.seqlen_k) {
    for (int64_t j = 0; j < keys_.k_len(); ++j) weights_[j] = keys_.At(j, &tanhs_[j]);
    const auto softmax = Softmax<Acc>::Of(keys_, [this](int64_t j) { return weights_[j]; });
    empty_ = softmax.empty;
    Acc delta{};
    for (int64_t j = 0; j < keys_.k_len() && !empty_; ++j) {
      if (!Sees(j)) continue;
      weights_[j] = softmax.Weight(weights_[j]);
      dscores_[j] = Dot<T, Acc>(dout(), Value(j), args.forward.head_dim_v);
      delta = delta + weights_[j] * dscores_[j];
    }
    for (int64_t j = 0; j < keys_.k_len() && !empty_; ++j) {
      if (Sees(j)) dscores_[j] = weights_[j] * (dscores_[j] - delta);
    }
  }

  // Hidden keys keep their score of -inf, which no weight is.
  bool Sees(int64_t j) const { return !empty_ && !keys_.IsHidden(weights_[j]); }
  Acc weight(int64_t j) const { return weights_[j]; }
  Acc dscore(int64_t j) const { return dscores_[j]; }  // after the cap: dbias

  // Before the cap, and without the scale.
  Acc DProduct(int64_t j) const {
    if (args_.forward.softcap == 0.0) return dscores_[j];
    return dscores_[j] * (static_cast<Acc>(1.0) - tanhs_[j] * tanhs_[j]);
  }

  const T* q() const { return keys_.QueryRow(args_.forward.q, args_.forward.q_strides); }
  const T* dout() const { return keys_.QueryRow(args_.dout, args_.dout_strides); }
  T* dq() const { return keys_.QueryRow(args_.dq.data, args_.dq.strides); }
  const T* Key(int64_t j) const {
    return keys_.KeyRow(args_.forward.k, args_.forward.k_strides, j);
  }
  const T* Value(int64_t j) const {
    return keys_.KeyRow(args_.forward.v, args_.forward.v_strides, j);
  }

 private:
  const BackwardArgs& args_;
  const RowScores<T, Acc> keys_;
  Acc* const weights_;
  Acc* const dscores_;
  Acc* const tanhs_;
  bool empty_ = true;
};

// Sums over the query rows of a tile, in `scratch` behind the rows' own 3 seqlen_k values.
template <typename T, typename Acc>
class TileGradients {
 public:
  TileGradients(const BackwardArgs& args, const BackwardTile& tile, Acc* scratch)
      : args_(args),
        tile_(tile),
        sequence_(Sequence::Of(args.forward, tile.batch)),
        scratch_(scratch),
        dq_(scratch + 3 * args.forward.seqlen_k),
        dk_(dq_ + args.forward.head_dim),
        dv_(dk_ + args.forward.seqlen_k * args.forward.head_dim) {}

  void Compute() {
    const ForwardArgs& forward = args_.forward;
    std::fill_n(dk_, sequence_.k_len * forward.head_dim, Acc{});
    std::fill_n(dv_, sequence_.k_len * forward.head_dim_v, Acc{});
    for (int64_t g = 0; g < forward.group(); ++g) {
      for (int64_t i = tile_.q_begin; i < tile_.q_end; ++i) AddRow(g, i);
    }
    for (int64_t j = 0; j < sequence_.k_len; ++j) {
      StoreKey(args_.dk, j, forward.head_dim, dk_ + j * forward.head_dim, forward.softmax_scale);
      StoreKey(args_.dv, j, forward.head_dim_v, dv_ + j * forward.head_dim_v, 1.0);
    }
  }

 private:
  void AddRow(int64_t g, int64_t i) {
    const ForwardArgs& forward = args_.forward;
    const Row row{tile_.batch, tile_.kv_head * forward.group() + g, tile_.kv_head, i};
    const RowGradients<T, Acc> gradients(args_, sequence_, row, scratch_);
    std::fill_n(dq_, forward.head_dim, Acc{});
    for (int64_t j = 0; j < sequence_.k_len; ++j) {
      if (!gradients.Sees(j)) continue;
      const Acc dproduct = gradients.DProduct(j);
      AddProduct(dproduct, gradients.Key(j), forward.head_dim, dq_);
      AddProduct(dproduct, gradients.q(), forward.head_dim, dk_ + j * forward.head_dim);
      AddProduct(gradients.weight(j), gradients.dout(), forward.head_dim_v,
                 dv_ + j * forward.head_dim_v);
    }
    if (args_.dq.data == nullptr) return;
    for (int64_t d = 0; d < forward.head_dim; ++d) {
      Store(forward.softmax_scale * static_cast<double>(dq_[d]), gradients.dq() + d);
    }
  }

  static void AddProduct(Acc factor, const T* row, int64_t size, Acc* sums) {
    for (int64_t d = 0; d < size; ++d) sums[d] = sums[d] + factor * To<T, Acc>(row[d]);
  }

  void StoreKey(const RowSums& to, int64_t j, int64_t size, const Acc* sums, double scale) const {
    if (to.data == nullptr) return;
    T* row = static_cast<T*>(to.data) + tile_.batch * to.strides.batch +
             tile_.kv_head * to.strides.head + (sequence_.k_begin + j) * to.strides.row;
    for (int64_t d = 0; d < size; ++d) Store(scale * static_cast<double>(sums[d]), row + d);
  }

  const BackwardArgs& args_;
  const BackwardTile& tile_;
  const Sequence sequence_;
  Acc* const scratch_;
  Acc* const dq_;  // [D]
  Acc* const dk_;  // [Sk, D]
  Acc* const dv_;  // [Sk, Dv]
};

template <typename T, typename Acc>
void RunTile(const BackwardArgs& args, const BackwardTile& tile, void* scratch) {
  TileGradients<T, Acc>(args, tile, static_cast<Acc*>(scratch)).Compute();
}

// An index of dbias, or all of those that bias broadcasts over it.
struct Summed {
  int64_t begin, end;
  Summed(int64_t stride, int64_t index, int64_t size)
      : begin(stride == 0 ? 0 : index), end(stride == 0 ? size : index + 1) {}
};

template <typename T, typename Acc>
void RunBiasRow(const BackwardArgs& args, const BiasTile& tile, int64_t bias_row, Acc* scratch) {
  const ForwardArgs& forward = args.forward;
  Acc* sums = scratch + 3 * forward.seqlen_k;
  const int64_t width = tile.col_end - tile.col_begin;
  std::fill_n(sums, width, Acc{});
  const Summed batches(args.dbias_batch, tile.batch, forward.batch);
  const Summed heads(args.dbias_head, tile.head, forward.num_heads);
  const Summed rows(args.dbias_row, bias_row, forward.seqlen_q);
  for (int64_t b = batches.begin; b < batches.end; ++b) {
    const Sequence sequence = Sequence::Of(forward, b);
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        const Row row{b, h, h / forward.group(), i};
        const RowGradients<T, Acc> gradients(args, sequence, row, scratch);
        for (int64_t j = 0; j < sequence.k_len; ++j) {
          const int64_t column = (args.dbias_col == 0 ? 0 : j) - tile.col_begin;
          if (column < 0 || column >= width || !gradients.Sees(j)) continue;
          sums[column] = sums[column] + gradients.dscore(j);
        }
      }
    }
  }
  const int64_t first = tile.batch * args.dbias_batch + tile.head * args.dbias_head +
                        bias_row * args.dbias_row + tile.col_begin * args.dbias_col;
  for (int64_t c = 0; c < width; ++c) {
    const int64_t at = first + c * args.dbias_col;
    if (forward.bias.is_f32) {
      Store(sums[c], static_cast<float*>(args.dbias) + at);
    } else {
      Store(sums[c], static_cast<T*>(args.dbias) + at);
    }
  }
}

template <typename T, typename Acc>
void RunBias(const BackwardArgs& args, const BiasTile& tile, void* scratch) {
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    RunBiasRow<T, Acc>(args, tile, row, static_cast<Acc*>(scratch));
  }
}

// Of one row, without any memory: scores are computed three times.
template <typename T, typename Acc>
Acc SinkGradient(const BackwardArgs& args, const RowScores<T, Acc>& keys) {
  const auto softmax = Softmax<Acc>::Of(keys, [&keys](int64_t j) { return keys.At(j); });
  if (softmax.empty || keys.IsHidden(keys.Sink())) return Acc{};
  const ForwardArgs& forward = args.forward;
  Acc delta{};
  for (int64_t j = 0; j < keys.k_len(); ++j) {
    const Acc score = keys.At(j);
    if (keys.IsHidden(score)) continue;
    const Acc dweight =
        Dot<T, Acc>(keys.QueryRow(args.dout, args.dout_strides),
                    keys.KeyRow(forward.v, forward.v_strides, j), forward.head_dim_v);
    delta = delta + softmax.Weight(score) * dweight;
  }
  return softmax.Weight(keys.Sink()) * delta;
}

template <typename T, typename Acc>
void RunSinks(const BackwardArgs& args, int64_t head) {
  const ForwardArgs& forward = args.forward;
  Acc sum{};
  for (int64_t b = 0; b < forward.batch; ++b) {
    const Sequence sequence = Sequence::Of(forward, b);
    for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const RowScores<T, Acc> keys(forward, sequence, {b, head, head / forward.group(), i});
      sum = sum - SinkGradient<T, Acc>(args, keys);
    }
  }
  const int64_t at = head * args.dsinks_stride;
  if (forward.sinks.is_f32) {
    Store(sum, static_cast<float*>(args.dsinks) + at);
  } else {
    Store(sum, static_cast<T*>(args.dsinks) + at);
  }
}

// Calls `function` with a value of the type that the arguments ask to compute in.
template <typename T, typename Function>
void WithArithmetic(const BackwardArgs& args, const Function& function) {
  switch (args.forward.accumulator) {
    case Accumulator::kInput:
      return function(oracle::InputArithmetic<T>{});
    case Accumulator::kF32:
      return function(float{});
    case Accumulator::kF64:
      return function(double{});
  }
}

template <typename T>
void Run(const BackwardArgs& args, const BackwardTile& tile, void* scratch) {
  WithArithmetic<T>(args, [&](auto acc) { RunTile<T, decltype(acc)>(args, tile, scratch); });
}

template <typename T>
void Bias(const BackwardArgs& args, const BiasTile& tile, void* scratch) {
  WithArithmetic<T>(args, [&](auto acc) { RunBias<T, decltype(acc)>(args, tile, scratch); });
}

template <typename T>
void Sinks(const BackwardArgs& args, int64_t head) {
  WithArithmetic<T>(args, [&](auto acc) { RunSinks<T, decltype(acc)>(args, head); });
}

// Rows and keys that no tile reaches have gradients of 0.
template <typename T>
void ClearQueries(const BackwardArgs& args, const Tile& tile) {
  if (args.dq.data == nullptr) return;
  const Sequence sequence = Sequence::Of(args.forward, tile.batch);
  const int64_t group = args.forward.group();
  for (int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    T* row = static_cast<T*>(args.dq.data) + tile.batch * args.dq.strides.batch +
             (tile.kv_head * group + r % group) * args.dq.strides.head +
             (sequence.q_begin + r / group) * args.dq.strides.row;
    std::fill_n(row, args.forward.head_dim, FromDouble<T>(0.0));
  }
}

template <typename T>
void ClearKeys(const BackwardArgs& args, const Tile& tile) {
  const Sequence sequence = Sequence::Of(args.forward, tile.batch);
  const auto clear = [&](const RowSums& to, int64_t width) {
    if (to.data == nullptr) return;
    for (int64_t j = tile.row_begin; j < tile.row_end; ++j) {
      T* row = static_cast<T*>(to.data) + tile.batch * to.strides.batch +
               tile.kv_head * to.strides.head + (sequence.k_begin + j) * to.strides.row;
      std::fill_n(row, width, FromDouble<T>(0.0));
    }
  };
  clear(args.dk, args.forward.head_dim);
  clear(args.dv, args.forward.head_dim_v);
}

BackwardPlan Plan(const BackwardArgs& args, const Sequence& sequence) {
  const ForwardArgs& forward = args.forward;
  const int64_t keys = std::max<int64_t>(forward.seqlen_k, 1);
  BackwardPlan plan;
  plan.queries_per_piece = std::max<int64_t>(sequence.seqlen_q, 1);
  plan.keys_per_piece = std::max<int64_t>(sequence.k_len, 1);
  plan.bias_rows = 16;  // any number will do; enough rows to be worth a task
  plan.bias_cols = keys;
  const int64_t values = forward.head_dim + keys * (4 + forward.head_dim + forward.head_dim_v);
  plan.scratch_bytes = static_cast<size_t>(values) * sizeof(double);
  plan.needs_forward = false;
  return plan;
}

}  // namespace

template <typename T>
BackwardEntry AttentionNaiveBackward() {
  BackwardEntry entry;
  entry.plan = &Plan;
  entry.delta = &ClearQueries<T>;
  entry.clear = &ClearKeys<T>;
  entry.run = &Run<T>;
  entry.bias = &Bias<T>;
  entry.sinks = &Sinks<T>;
  entry.unit = "scalar";
  return entry;
}

template BackwardEntry AttentionNaiveBackward<float>();
template BackwardEntry AttentionNaiveBackward<double>();
template BackwardEntry AttentionNaiveBackward<hwy::bfloat16_t>();
template BackwardEntry AttentionNaiveBackward<hwy::float16_t>();

}  // namespace flashlane::kernels
