// The scalar oracle: attention as its definition reads, one query row at a time (oracle.h).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "hwy/base.h"
#include "kernels/kernels.h"
#include "kernels/oracle.h"

namespace flashlane::kernels {
namespace {

using oracle::Exp;
using oracle::FromDouble;
using oracle::kInf;
using oracle::OneNan;
using oracle::Row;
using oracle::To;

template <typename T, typename Acc>
class RowOracle {
 public:
  // `scratch` holds seqlen_k scores and head_dim_v sums.
  RowOracle(const ForwardArgs& args, const Sequence& sequence, Row row, Acc* scratch)
      : args_(args),
        sequence_(sequence),
        row_(row),
        keys_(args, sequence, row),
        scores_(scratch),
        sums_(scratch + args.seqlen_k),
        k_len_(sequence.k_len) {}

  void Compute() {
    ScoreKeys();
    NormaliseAndStore();
  }

 private:
  void ScoreKeys() {
    any_weight_ = false;
    max_ = static_cast<Acc>(-kInf);
    for (int64_t j = 0; j < k_len_; ++j) {
      scores_[j] = keys_.At(j);
      any_weight_ = any_weight_ || !keys_.IsHidden(scores_[j]);
      if (max_ < scores_[j]) max_ = scores_[j];
    }
  }

  void NormaliseAndStore() {
    Acc sink{};
    const bool has_sink = keys_.has_sink() && any_weight_;
    if (has_sink) {
      sink = keys_.Sink();
      if (max_ < sink) max_ = sink;
    }
    Acc sum{};
    for (int64_t j = 0; j < k_len_; ++j) {
      if (keys_.IsHidden(scores_[j])) continue;  // keeps its -inf as a mark
      scores_[j] = Exp(scores_[j] - max_);
      sum = sum + scores_[j];
    }
    if (has_sink && static_cast<double>(sink) != -kInf) sum = sum + Exp(sink - max_);
    StoreOut(sum);
    StoreLse(sum);
  }

  void StoreOut(Acc sum) {
    T* out = keys_.QueryRow(args_.out, args_.out_strides);
    std::fill_n(sums_, args_.head_dim_v, Acc{});
    const bool empty = static_cast<double>(sum) == 0.0;
    for (int64_t j = 0; j < k_len_ && !empty; ++j) {
      if (keys_.IsHidden(scores_[j]))
        continue;  // contributes nothing, whatever bytes its value holds
      const T* v = keys_.KeyRow(args_.v, args_.v_strides, j);
      for (int64_t d = 0; d < args_.head_dim_v; ++d) {
        sums_[d] = sums_[d] + scores_[j] * To<T, Acc>(v[d]);
      }
    }
    for (int64_t d = 0; d < args_.head_dim_v; ++d) {
      out[d] = FromDouble<T>(empty ? 0.0 : OneNan(static_cast<double>(sums_[d] / sum)));
    }
  }

  void StoreLse(Acc sum) {
    if (args_.lse == nullptr) return;
    using Lse = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Lse* lse = static_cast<Lse*>(args_.lse) + row_.batch * args_.lse_strides.batch +
               row_.head * args_.lse_strides.head +
               (sequence_.q_begin + row_.i) * args_.lse_strides.row;
    const double l = static_cast<double>(sum);
    *lse = static_cast<Lse>(l == 0.0 ? -kInf : OneNan(static_cast<double>(max_) + std::log(l)));
  }

  const ForwardArgs& args_;
  const Sequence& sequence_;
  const Row row_;
  const oracle::RowScores<T, Acc> keys_;
  Acc* const scores_;
  Acc* const sums_;
  const int64_t k_len_;
  bool any_weight_ = false;
  Acc max_{};
};

template <typename T, typename Acc>
void RunRows(const ForwardArgs& args, const Tile& tile, void* scratch) {
  const int64_t group = args.group();
  const Sequence sequence = Sequence::Of(args, tile.batch);
  for (int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    const Row row{tile.batch, tile.kv_head * group + r % group, tile.kv_head, r / group};
    RowOracle<T, Acc>(args, sequence, row, static_cast<Acc*>(scratch)).Compute();
  }
}

template <typename T>
void Run(const ForwardArgs& args, const Tile& tile, void* scratch) {
  switch (args.accumulator) {
    case Accumulator::kInput:
      return RunRows<T, oracle::InputArithmetic<T>>(args, tile, scratch);
    case Accumulator::kF32:
      return RunRows<T, float>(args, tile, scratch);
    case Accumulator::kF64:
      return RunRows<T, double>(args, tile, scratch);
  }
}

TilePlan PlanRows(const ForwardArgs& args) {
  TilePlan plan;
  plan.block_rows = 16;  // any number will do; enough rows to be worth a task
  plan.row_granule = 1;
  plan.scratch_bytes = static_cast<size_t>(args.seqlen_k + args.head_dim_v) * sizeof(double);
  return plan;
}

}  // namespace

template <typename T>
ForwardEntry AttentionNaive() {
  return {&PlanRows, &Run<T>, "scalar", {}};
}

template ForwardEntry AttentionNaive<float>();
template ForwardEntry AttentionNaive<double>();
template ForwardEntry AttentionNaive<hwy::bfloat16_t>();
template ForwardEntry AttentionNaive<hwy::float16_t>();

}  // namespace flashlane::kernels
