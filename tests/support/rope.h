// Rotations to test: operands that are exact in their dtype, tables of the library, and a plain
// reference in F64.
#ifndef FLASHLANE_TESTS_SUPPORT_ROPE_H_
#define FLASHLANE_TESTS_SUPPORT_ROPE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "dispatch/registry.h"
#include "dispatch/target.h"
#include "dispatch/tolerance.h"
#include "flashlane/rope.h"
#include "tests/support/problem.h"

namespace flashlane::testing {

struct RopeRun {
  DType dtype;
  std::string target;

  ExecOptions Options(int num_threads = 0) const {
    ExecOptions options;
    options.target = target.c_str();
    options.num_threads = num_threads;
    return options;
  }
};

// The registry's rows on each target of this machine.
inline std::vector<RopeRun> RopeRuns() {
  std::vector<RopeRun> runs;
  for (const KernelRow& row : KernelsOf(Operation::kRope)) {
    for (const Target& target : SupportedTargetList()) runs.push_back({row.dtype, target.name});
  }
  return runs;
}
inline void PrintTo(const RopeRun& run, std::ostream* out) {
  *out << DTypeName(run.dtype) << "_" << run.target;
}
inline std::string RopeRunName(const ::testing::TestParamInfo<RopeRun>& info) {
  return std::string(DTypeName(info.param.dtype)) + "_" + info.param.target;
}

inline TensorView WritableView(OwnedTensor* tensor) {
  const ConstTensorView view = tensor->View();
  return TensorView(tensor->storage.data(), view.dtype, view.rank, view.shape, view.strides);
}

// Values of a normal distribution, rounded to the dtype.
inline OwnedTensor RandomTensor(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(engine);
  return OwnedTensor::Of(values, dtype, shape);
}

// The same shape and strides over bytes that nobody wrote.
inline OwnedTensor Poisoned(const OwnedTensor& like) {
  OwnedTensor tensor = like;
  std::fill(tensor.storage.begin(), tensor.storage.end(), std::byte{0xA5});
  return tensor;
}

// Tables [num_rows, pairs] for `dtype`, theta 10000, of positions start, start + 1, ...
struct RopeTablesOwned {
  OwnedTensor cos, sin;

  RopeTablesOwned(DType dtype, int64_t num_rows, int64_t pairs, int64_t start = 0) {
    const DType type = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    std::vector<double> frequencies(static_cast<size_t>(pairs));
    const TensorView inv_freq(frequencies.data(), DType::kF64, {pairs});
    EXPECT_TRUE(RopeInverseFrequencies(1e4, {}, inv_freq).ok());
    cos = OwnedTensor::Of({}, type, {num_rows, pairs});
    sin = OwnedTensor::Of({}, type, {num_rows, pairs});
    RopeTableInputs inputs;
    inputs.inv_freq = inv_freq;
    inputs.start = start;
    const Status status = RopeTable(inputs, {WritableView(&cos), WritableView(&sin)});
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

// What should have become of x.
struct RopeRule {
  const RopeTablesOwned* tables;
  bool interleaved = false;
  bool inverse = false;
  std::function<int64_t(int64_t batch, int64_t token)> row;
};

// Whether `out` is x [B, H, S, D] turned, each element within RopeTolerance, the rest bit for bit.
inline ::testing::AssertionResult IsTurned(const OwnedTensor& x, const OwnedTensor& out,
                                           const RopeRule& rule) {
  const int64_t* shape = x.view.shape;
  const int64_t pairs = rule.tables->cos.view.shape[1];
  const auto check = [&](double want, double magnitude, double got) {
    return std::abs(got - want) <= RopeTolerance(x.view.dtype, magnitude, want);
  };
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (int64_t t = 0; t < shape[2]; ++t) {
        const int64_t row = rule.row(b, t);
        const auto fail = [&](int64_t d, double want) {
          return ::testing::AssertionFailure()
                 << "out[" << b << ", " << h << ", " << t << ", " << d << "] is "
                 << out.At({b, h, t, d}) << ", not " << want;
        };
        for (int64_t i = 0; i < pairs; ++i) {
          const int64_t first = rule.interleaved ? 2 * i : i;
          const int64_t second = rule.interleaved ? 2 * i + 1 : i + pairs;
          const double c = rule.tables->cos.At({row, i});
          const double s = rule.tables->sin.At({row, i}) * (rule.inverse ? -1.0 : 1.0);
          const double a = x.At({b, h, t, first}), z = x.At({b, h, t, second});
          const double turned[2] = {a * c - z * s, z * c + a * s};
          if (!check(turned[0], std::abs(a * c) + std::abs(z * s), out.At({b, h, t, first}))) {
            return fail(first, turned[0]);
          }
          if (!check(turned[1], std::abs(z * c) + std::abs(a * s), out.At({b, h, t, second}))) {
            return fail(second, turned[1]);
          }
        }
        for (int64_t d = 2 * pairs; d < shape[3]; ++d) {
          if (out.At({b, h, t, d}) != x.At({b, h, t, d})) return fail(d, x.At({b, h, t, d}));
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

// [B, S, H, D] in memory.
inline OwnedTensor TokenMajor(const OwnedTensor& x) {
  const int64_t heads = x.view.shape[1], tokens = x.view.shape[2], dim = x.view.shape[3];
  return x.WithStrides({tokens * heads * dim, dim, heads * dim, 1});
}

// Everything further apart than it is long.
inline OwnedTensor Padded(const OwnedTensor& x) {
  const int64_t heads = x.view.shape[1], tokens = x.view.shape[2], dim = x.view.shape[3];
  const int64_t head = tokens * (dim + 3) + 1;
  return x.WithStrides({heads * head + 5, head, dim + 3, 1});
}

class RopeTest : public ::testing::TestWithParam<RopeRun> {
 protected:
  OwnedTensor Random(std::initializer_list<int64_t> shape, uint64_t seed = 1) const {
    return RandomTensor(GetParam().dtype, shape, seed);
  }

  // One operand, into memory that nobody wrote, of x's strides.
  OwnedTensor Turned(const OwnedTensor& x, const RopeTablesOwned& tables, const RopeParams& params,
                     const ConstTensorView& positions = {}, int threads = 0) const {
    OwnedTensor out = Poisoned(x);
    RopeInputs inputs;
    inputs.q = x.View();
    inputs.cos = tables.cos.View();
    inputs.sin = tables.sin.View();
    inputs.positions = positions;
    const Status status =
        ApplyRope(inputs, params, {WritableView(&out), {}}, GetParam().Options(threads));
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
};

inline RopeParams Params(bool interleaved, bool inverse = false, int64_t q_start = 0) {
  RopeParams params;
  params.interleaved = interleaved;
  params.inverse = inverse;
  params.q_start = q_start;
  return params;
}

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_ROPE_H_
