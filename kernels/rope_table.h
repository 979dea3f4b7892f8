// What the rotation of flashlane/rope.h turns by: scalar code in F64, once per model, the same on
// every target.
#ifndef FLASHLANE_KERNELS_ROPE_TABLE_H_
#define FLASHLANE_KERNELS_ROPE_TABLE_H_

#include <cstdint>

#include "kernels/args.h"

namespace flashlane::kernels {

// One output per pair of dimensions.
struct FrequencyOutput {
  double* data;
  int64_t stride;
  int64_t pairs;  // rotary_dim / 2

  double rotary_dim() const { return 2.0 * static_cast<double>(pairs); }
  double& operator[](int64_t i) const { return data[i * stride]; }
};

// theta^(-2i / rotary_dim).
void PlainFrequencies(double theta, const FrequencyOutput& out);

// NTK-aware scaling: the theta whose longest wave is `stretch` times as long.
double StretchedTheta(double theta, double stretch, double rotary_dim);

struct YarnArgs {
  double theta, factor, original_max_position, beta_fast, beta_slow;
  bool truncate;
};
void YarnFrequencies(const YarnArgs& args, const FrequencyOutput& out);

struct Llama3Args {
  double theta, factor, original_max_position, low_freq_factor, high_freq_factor;
};
void Llama3Frequencies(const Llama3Args& args, const FrequencyOutput& out);

// cos and sin [num_positions, pairs] of the same type, in elements.
struct RopeTableArgs {
  const double* inv_freq = nullptr;
  int64_t inv_freq_stride = 1;
  int64_t pairs = 0;
  SequenceValues positions;  // without data: start + row
  int64_t start = 0;
  double attention_factor = 1.0;
  void* cos = nullptr;
  void* sin = nullptr;
  int64_t cos_stride = 0, sin_stride = 0;  // between rows
};

// Rows [begin, end); T is float or double.
template <typename T>
void FillRopeTable(const RopeTableArgs& args, int64_t begin, int64_t end);

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_ROPE_TABLE_H_
