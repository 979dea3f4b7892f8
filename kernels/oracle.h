// What the oracles share: arithmetic in any type, and the scores of one query row as their
// definition reads. It shares args.h with the vector kernels and nothing else, so that a mistake
// there cannot hide here.
//
// Acc is the type of every intermediate value. Acc = T is the contract of attention_naive (for half
// types each operation rounds to the half type); Acc = double is the truth that tolerances are
// taken against; Acc = float is the same-precision evaluation they are scaled by.
#ifndef FLASHLANE_KERNELS_ORACLE_H_
#define FLASHLANE_KERNELS_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/base.h"
#include "kernels/kernels.h"

namespace flashlane::kernels::oracle {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

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
inline double OneNan(double x) {
  return std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x;
}

template <typename T>
T FromDouble(double x) {
  return hwy::ConvertScalarTo<T>(x);
}

// Acc where it is the dtype itself.
template <typename T>
using InputArithmetic =
    std::conditional_t<std::is_same_v<T, float> || std::is_same_v<T, double>, T, Rounded<T>>;

// One row of one query head.
struct Row {
  int64_t batch, head, kv_head, i;
};

// A query row and the keys that it may see. No key that it does not see is read.
template <typename T, typename Acc>
class RowScores {
 public:
  RowScores(const ForwardArgs& args, const Sequence& sequence, Row row)
      : args_(args),
        sequence_(sequence),
        row_(row),
        position_(args.clamps_positions ? std::max<int64_t>(sequence.q_start + row.i, 0)
                                        : sequence.q_start + row.i) {}

  int64_t k_len() const { return sequence_.k_len; }

  // -inf where key j is hidden, by a bias of -inf too, whatever it holds. Where scores are capped,
  // *tanh is that of the score before.
  Acc At(int64_t j, Acc* tanh = nullptr) const {
    const bool biased_away =
        Visible(j) && args_.bias.data != nullptr &&
        static_cast<double>(Load(args_.bias, ScoreIndex(args_.bias, j))) == -kInf;
    if (!Visible(j) || biased_away) return static_cast<Acc>(-kInf);
    return Score(j, tanh);
  }
  // Hidden, or of score -inf: weighs nothing, and -inf - -inf would be NaN.
  static bool IsHidden(Acc score) { return static_cast<double>(score) == -kInf; }

  bool has_sink() const { return args_.sinks.data != nullptr; }
  Acc Sink() const { return Load(args_.sinks, row_.head * args_.sinks.stride); }

  // The row of a [B, Hq, Sq, width] operand that belongs to the query.
  template <typename Void>
  auto* QueryRow(Void* data, const RowStrides& strides) const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data) + row_.batch * strides.batch + row_.head * strides.head +
           (sequence_.q_begin + row_.i) * strides.row;
  }

  // Row j of the sequence's keys or values.
  template <typename Void>
  auto* KeyRow(Void* data, const RowStrides& strides, int64_t j) const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    auto* head = static_cast<Element*>(data) + row_.kv_head * strides.head;
    const BlockTable& table = args_.block_table;
    if (table.data == nullptr) {
      return head + row_.batch * strides.batch + (sequence_.k_begin + j) * strides.row;
    }
    const int64_t block = table.data[row_.batch * table.batch + j / table.block_size * table.col];
    return head + block * strides.batch + j % table.block_size * strides.row;
  }

 private:
  template <typename Operand>
  static Acc Load(const Operand& operand, int64_t index) {
    if (operand.is_f32) return To<float, Acc>(static_cast<const float*>(operand.data)[index]);
    return To<T, Acc>(static_cast<const T*>(operand.data)[index]);
  }

  int64_t ScoreIndex(const ScoreOperand& operand, int64_t column) const {
    return row_.batch * operand.batch + row_.head * operand.head + row_.i * operand.row +
           column * operand.col;
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

  Acc Score(int64_t j, Acc* tanh) const {
    const T* q = QueryRow(args_.q, args_.q_strides);
    const T* k = KeyRow(args_.k, args_.k_strides, j);
    Acc dot{};
    for (int64_t d = 0; d < args_.head_dim; ++d) dot = dot + To<T, Acc>(q[d]) * To<T, Acc>(k[d]);
    // The parameters stay double: a cap of 1e5 is legal for F16 and not a number of it.
    Acc score = static_cast<Acc>(args_.softmax_scale * static_cast<double>(dot));
    if (args_.softcap != 0.0) {
      const double capped = std::tanh(static_cast<double>(score) / args_.softcap);
      if (tanh != nullptr) *tanh = static_cast<Acc>(capped);
      score = static_cast<Acc>(args_.softcap * capped);
    }
    if (args_.alibi_slopes.data != nullptr) {
      const Acc slope = Load(args_.alibi_slopes, row_.head * args_.alibi_slopes.stride);
      score = score + slope * static_cast<Acc>(static_cast<double>(j - position_));
    }
    if (args_.bias.data != nullptr) score = score + Load(args_.bias, ScoreIndex(args_.bias, j));
    return score;
  }

  const ForwardArgs& args_;
  const Sequence& sequence_;
  const Row row_;
  const int64_t position_;
};

}  // namespace flashlane::kernels::oracle

#endif  // FLASHLANE_KERNELS_ORACLE_H_
