// Every function of the flat modules as one table: how to call it, its buffers, its rules. What all
// of them promise is tested by iterating it; a new function belongs here.
#ifndef FLASHLANE_TESTS_SUPPORT_FLAT_CALLS_H_
#define FLASHLANE_TESTS_SUPPORT_FLAT_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashlane/flat.h"

namespace flashlane::testing {

// A buffer as a call sees it, and memory that is far longer: 8-byte elements, doubles or indices.
struct FlatSlot {
  static constexpr size_t kStorage = 1024;
  static constexpr double kSentinel = -77.0;

  void Fill(const std::vector<double>& values);
  void Fill(const std::vector<int64_t>& values);
  void Poison(int64_t elements);  // an output of that many
  bool Untouched() const;         // wholly
  bool UntouchedBeyond() const;   // behind what the call was given

  void* data = nullptr;
  int64_t size = 0;
  std::vector<double> storage;  // indices are stored as their bytes
};

// All arguments that any function takes, with values that all accept.
struct FlatCall {
  FlatCall();
  FlatCall(const FlatCall&) = delete;  // its slots point into it
  FlatCall& operator=(const FlatCall&) = delete;

  flat::FlatInputs Inputs() const { return {Doubles(q), Doubles(k), Doubles(v), Doubles(bias)}; }
  flat::FlatOutputs Outputs() const { return {Doubles(out), Doubles(lse)}; }
  static flat::Doubles Doubles(const FlatSlot& slot) {
    return {static_cast<double*>(slot.data), slot.size};
  }
  static flat::ConstIndices Indices(const FlatSlot& slot) {
    return {static_cast<const int64_t*>(slot.data), slot.size};
  }
  flat::FlatRopeInputs Rope() const {
    return {Doubles(x), Doubles(cos_t), Doubles(sin_t), Indices(position)};
  }

  flat::FlatDims dims = {3, 5, 4, 2, 8};
  flat::FlatParams params = {0.5, true};
  int64_t tile = 2, offset = 1, k_len = 3;
  double step = 1e-4;
  flat::AttnBackend backend = flat::ATTN_BACKEND_TILED;
  flat::FlatWindow window = {2, 1, 1};
  flat::FlatRopeDims rope = {3, 2, 8, 4};
  flat::FlatRopeTableParams table;  // head_dim 8, 6 positions
  flat::FlatOptions options;

  FlatSlot q, k, v, bias, dout, x, cos_t, sin_t, position, cu_seqlens_q, cu_seqlens_k;
  FlatSlot out, lse, dq, dk, dv, mask, inv_freq, cos_out, sin_out, turned;
};

// A broken rule and its status.
struct FlatRule {
  const char* name;
  std::function<void(FlatCall&)> breaks;
  flat::AttnStatus status;
};

using SlotMember = FlatSlot FlatCall::*;

struct FlatFunction {
  std::string name;
  std::function<flat::AttnStatus(FlatCall&)> run;
  std::vector<SlotMember> inputs, outputs;
  std::vector<FlatRule> rules;          // of sizes and scalars
  std::vector<FlatRule> contents = {};  // of what index buffers hold
};

const std::vector<FlatFunction>& FlatFunctions();

}  // namespace flashlane::testing

#endif  // FLASHLANE_TESTS_SUPPORT_FLAT_CALLS_H_
