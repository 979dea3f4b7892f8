// The scalar oracle: attention as its definition reads, one query row at a time. It shares args.h
// with the vector kernels and nothing else, so that a mistake there cannot hide here.
//
// Acc is the type of every intermediate value. Acc = T is the contract of attention_naive (for half
// types each operation rounds to the half type); Acc = double is the truth that tolerances are
// taken against; Acc = float is the same-precision evaluation they are scaled by.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/base.h"
#include "kernels/kernels.h"

namespace flashlane::kernels {
namespace {

// A half type with arithmetic: computes in float, rounds after every operation.
template <typename Half>
struct Rounded {
  float value = 0.0f;

  Rounded() = default;
  template <typename From>
  explicit Rounded(From x) : value(hwy::ConvertScalarTo<float>(hwy::ConvertScalarTo<Half>(x))) {}
  explicit operator double() const { return value; }
  explicit operator float() const { return value; }

  friend Rounded operator+(Rounded a, Rounded b) { return Rounded(a.value + b.value); }
  friend Rounded operator-(Rounded a, Rounded b) { return Rounded(a.value - b.value); }
  friend Rounded operator*(Rounded a, Rounded b) { return Rounded(a.value * b.value); }
  friend Rounded operator/(Rounded a, Rounded b) { return Rounded(a.value / b.value); }
  friend bool operator<(Rounded a, Rounded b) { return a.value < b.value; }
};

template <typename T, typename Acc>
Acc To(T x) {
  if constexpr (std::is_arithmetic_v<Acc>) {
    return hwy::ConvertScalarTo<Acc>(x);
  } else {
    return Acc(hwy::ConvertScalarTo<float>(x));
  }
}

// Through double: correctly rounded in practice for every narrower Acc.
template <typename Acc>
Acc Exp(Acc x) {
  return static_cast<Acc>(std::exp(static_cast<double>(x)));
}

// The sign and payload of a NaN depend on the order of operands; results have one NaN only.
double OneNan(double x) { return std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x; }

template <typename T>
T FromDouble(double x) {
  return hwy::ConvertScalarTo<T>(x);
}

// One row of one query head.
struct Row {
  int64_t batch, head, kv_head, i;
};

template <typename T, typename Acc>
class RowOracle {
 public:
  // `scratch` holds seqlen_k scores and head_dim_v sums.
  RowOracle(const ForwardArgs& args, const Sequence& sequence, Row row, Acc* scratch)
      : args_(args),
        sequence_(sequence),
        row_(row),
        scores_(scratch),
        sums_(scratch + args.seqlen_k),
        k_len_(sequence.k_len),
        position_(args.clamps_positions ? std::max<int64_t>(sequence.q_start + row.i, 0)
                                        : sequence.q_start + row.i) {}

  void Compute() {
    ScoreKeys();
    NormaliseAndStore();
  }

 private:
  static constexpr double kInf = std::numeric_limits<double>::infinity();

  template <typename Operand>
  static Acc Load(const Operand& operand, int64_t index) {
    if (operand.is_f32) return To<float, Acc>(static_cast<const float*>(operand.data)[index]);
    return To<T, Acc>(static_cast<const T*>(operand.data)[index]);
  }

  int64_t ScoreIndex(const ScoreOperand& operand, int64_t column) const {
    return row_.batch * operand.batch + row_.head * operand.head + row_.i * operand.row +
           column * operand.col;
  }

  const T* QueryRow() const {
    const RowStrides& strides = args_.q_strides;
    return static_cast<const T*>(args_.q) + row_.batch * strides.batch + row_.head * strides.head +
           (sequence_.q_begin + row_.i) * strides.row;
  }

  // Row j of the sequence's keys or values.
  const T* KeyRow(const void* data, const RowStrides& strides, int64_t j) const {
    const T* head = static_cast<const T*>(data) + row_.kv_head * strides.head;
    const BlockTable& table = args_.block_table;
    if (table.data == nullptr) {
      return head + row_.batch * strides.batch + (sequence_.k_begin + j) * strides.row;
    }
    const int64_t block = table.data[row_.batch * table.batch + j / table.block_size * table.col];
    return head + block * strides.batch + j % table.block_size * strides.row;
  }

  bool MaskAllows(int64_t j) const {
    if (args_.mask.data == nullptr) return true;
    const int64_t first_key = args_.mask_from_q_start ? sequence_.q_start : 0;
    if (j < first_key) return true;
    const auto* mask = static_cast<const uint8_t*>(args_.mask.data);
    return mask[ScoreIndex(args_.mask, j - first_key)] != 0;
  }

  bool Visible(int64_t j) const {
    if (args_.window_left != kUnlimited && SaturatingAdd(j, args_.window_left) < position_) {
      return false;
    }
    if (args_.window_right != kUnlimited && j > SaturatingAdd(position_, args_.window_right)) {
      return false;
    }
    return MaskAllows(j);
  }

  Acc Score(int64_t j) const {
    const T* q = QueryRow();
    const T* k = KeyRow(args_.k, args_.k_strides, j);
    Acc dot{};
    for (int64_t d = 0; d < args_.head_dim; ++d) dot = dot + To<T, Acc>(q[d]) * To<T, Acc>(k[d]);
    // The parameters stay double: a cap of 1e5 is legal for F16 and not a number of it.
    Acc score = static_cast<Acc>(args_.softmax_scale * static_cast<double>(dot));
    if (args_.softcap != 0.0) {
      score =
          static_cast<Acc>(args_.softcap * std::tanh(static_cast<double>(score) / args_.softcap));
    }
    if (args_.alibi_slopes.data != nullptr) {
      const Acc slope = Load(args_.alibi_slopes, row_.head * args_.alibi_slopes.stride);
      score = score + slope * static_cast<Acc>(static_cast<double>(j - position_));
    }
    if (args_.bias.data != nullptr) score = score + Load(args_.bias, ScoreIndex(args_.bias, j));
    return score;
  }

  // Masked keys are not read at all; a bias of -inf masks too, whatever the key holds.
  void ScoreKeys() {
    any_weight_ = false;
    max_ = static_cast<Acc>(-kInf);
    for (int64_t j = 0; j < k_len_; ++j) {
      scores_[j] = static_cast<Acc>(-kInf);
      if (!Visible(j)) continue;
      if (args_.bias.data != nullptr &&
          static_cast<double>(Load(args_.bias, ScoreIndex(args_.bias, j))) == -kInf) {
        continue;
      }
      scores_[j] = Score(j);
      any_weight_ = any_weight_ || static_cast<double>(scores_[j]) != -kInf;
      if (max_ < scores_[j]) max_ = scores_[j];
    }
  }

  // Masked, or of score -inf.
  bool IsHidden(int64_t j) const { return static_cast<double>(scores_[j]) == -kInf; }

  void NormaliseAndStore() {
    Acc sink{};
    const bool has_sink = args_.sinks.data != nullptr && any_weight_;
    if (has_sink) {
      sink = Load(args_.sinks, row_.head * args_.sinks.stride);
      if (max_ < sink) max_ = sink;
    }
    Acc sum{};
    for (int64_t j = 0; j < k_len_; ++j) {
      // -inf weighs nothing, and -inf - -inf would be NaN. Such keys keep their -inf as a mark.
      if (IsHidden(j)) continue;
      scores_[j] = Exp(scores_[j] - max_);
      sum = sum + scores_[j];
    }
    if (has_sink && static_cast<double>(sink) != -kInf) sum = sum + Exp(sink - max_);
    StoreOut(sum);
    StoreLse(sum);
  }

  void StoreOut(Acc sum) {
    T* out = static_cast<T*>(args_.out) + row_.batch * args_.out_strides.batch +
             row_.head * args_.out_strides.head +
             (sequence_.q_begin + row_.i) * args_.out_strides.row;
    std::fill_n(sums_, args_.head_dim_v, Acc{});
    const bool empty = static_cast<double>(sum) == 0.0;
    for (int64_t j = 0; j < k_len_ && !empty; ++j) {
      if (IsHidden(j)) continue;  // contributes nothing, whatever bytes its value holds
      const T* v = KeyRow(args_.v, args_.v_strides, j);
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
  Acc* const scores_;
  Acc* const sums_;
  const int64_t k_len_;
  const int64_t position_;
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
  using Input =
      std::conditional_t<std::is_same_v<T, float> || std::is_same_v<T, double>, T, Rounded<T>>;
  switch (args.accumulator) {
    case Accumulator::kInput:
      return RunRows<T, Input>(args, tile, scratch);
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
