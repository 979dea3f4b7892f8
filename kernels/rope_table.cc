#include "kernels/rope_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace flashlane::kernels {
namespace {

constexpr double kTwoPi = 6.28318530717958647692;

double PlainFrequency(double theta, const FrequencyOutput& out, int64_t i) {
  return std::pow(theta, -2.0 * static_cast<double>(i) / out.rotary_dim());
}

struct CosSin {
  double cos, sin;
};

// The angle is angle + rest: far out, what the product's rounding loses would be many units in the
// last place of an F64 table.
CosSin CosSinOfProduct(double position, double frequency) {
  constexpr double kSquareIsNothing = 0x1p-27;
  const double angle = position * frequency;
  const double rest = std::fma(position, frequency, -angle);
  const double c = std::cos(angle), s = std::sin(angle);
  if (std::abs(rest) <= kSquareIsNothing) return {c - s * rest, s + c * rest};
  const double rest_c = std::cos(rest), rest_s = std::sin(rest);
  return {c * rest_c - s * rest_s, s * rest_c + c * rest_s};
}

}  // namespace

void PlainFrequencies(double theta, const FrequencyOutput& out) {
  for (int64_t i = 0; i < out.pairs; ++i) out[i] = PlainFrequency(theta, out, i);
}

double StretchedTheta(double theta, double stretch, double rotary_dim) {
  return theta * std::pow(stretch, rotary_dim / (rotary_dim - 2.0));
}

void YarnFrequencies(const YarnArgs& args, const FrequencyOutput& out) {
  // The pair, fractions allowed, that makes so many turns within the original context.
  const auto pair_of = [&](double turns) {
    return out.rotary_dim() * std::log(args.original_max_position / (turns * kTwoPi)) /
           (2.0 * std::log(args.theta));
  };
  double low = pair_of(args.beta_fast);
  double high = pair_of(args.beta_slow);
  if (args.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, out.rotary_dim() - 1.0);  // of dimensions, as the reference has it
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < out.pairs; ++i) {
    const double kept = PlainFrequency(args.theta, out, i);
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    out[i] = kept / args.factor * ramp + kept * (1.0 - ramp);
  }
}

void Llama3Frequencies(const Llama3Args& args, const FrequencyOutput& out) {
  for (int64_t i = 0; i < out.pairs; ++i) {
    const double kept = PlainFrequency(args.theta, out, i);
    const double wave = kTwoPi / kept;
    if (wave < args.original_max_position / args.high_freq_factor) {
      out[i] = kept;
    } else if (wave > args.original_max_position / args.low_freq_factor) {
      out[i] = kept / args.factor;
    } else {
      const double smooth = (args.original_max_position / wave - args.low_freq_factor) /
                            (args.high_freq_factor - args.low_freq_factor);
      out[i] = (1.0 - smooth) * kept / args.factor + smooth * kept;
    }
  }
}

template <typename T>
void FillRopeTable(const RopeTableArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const bool given = args.positions.data != nullptr;
    const auto position =
        static_cast<double>(given ? args.positions.At(row) : args.start + row);  // exact
    T* const cos = static_cast<T*>(args.cos) + row * args.cos_stride;
    T* const sin = static_cast<T*>(args.sin) + row * args.sin_stride;
    for (int64_t i = 0; i < args.pairs; ++i) {
      const CosSin of = CosSinOfProduct(position, args.inv_freq[i * args.inv_freq_stride]);
      cos[i] = static_cast<T>(args.attention_factor * of.cos);
      sin[i] = static_cast<T>(args.attention_factor * of.sin);
    }
  }
}

template void FillRopeTable<float>(const RopeTableArgs&, int64_t, int64_t);
template void FillRopeTable<double>(const RopeTableArgs&, int64_t, int64_t);

}  // namespace flashlane::kernels
