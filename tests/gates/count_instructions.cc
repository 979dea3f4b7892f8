// Runs register tiles and small calls on one target and thread, each once under the function
// `flashlane_counted`, for valgrind to count: perf/instruction_counts.py.
//
// count_instructions TARGET prints the name of each case, in the order in which they are counted;
// count_instructions --list the targets of this machine, of which valgrind may run fewer.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dispatch/target.h"
#include "flashlane/attention.h"
#include "flashlane/backward.h"
#include "flashlane/paged.h"
#include "flashlane/rope.h"
#include "hwy/aligned_allocator.h"
#include "hwy/base.h"
#include "tests/gates/tile_probe.h"

using Call = std::function<bool()>;

// Everything between its begin and its end is counted, and nothing else.
extern "C" __attribute__((noinline)) bool flashlane_counted(const Call& call) {
  const bool done = call();
  __asm__ volatile("" ::: "memory");  // so that the call is not the last thing it does
  return done;
}

namespace flashlane::testing {
namespace {

// Memory of small numbers that are neither all alike nor random.
class Numbers {
 public:
  Numbers(DType dtype, std::initializer_list<int64_t> shape) : view_(nullptr, dtype, shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    memory_ = hwy::AllocateAligned<uint8_t>(static_cast<size_t>(count) * DTypeSize(dtype));
    view_.data = memory_.get();
    for (int64_t i = 0; i < count; ++i) Store(i, static_cast<double>(i * 7 % 17 - 8) / 16);
  }
  const TensorView& view() const { return view_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  void Store(int64_t i, double value) const {
    switch (view_.dtype) {
      case DType::kF64:
        as<double>()[i] = value;
        break;
      case DType::kBF16:
        as<hwy::bfloat16_t>()[i] = hwy::ConvertScalarTo<hwy::bfloat16_t>(value);
        break;
      case DType::kF16:
        as<hwy::float16_t>()[i] = hwy::ConvertScalarTo<hwy::float16_t>(value);
        break;
      default:
        as<float>()[i] = static_cast<float>(value);
    }
  }
  hwy::AlignedFreeUniquePtr<uint8_t[]> memory_;
  TensorView view_;
};

// Runs it until nothing is done for the first time any more, then counts it.
void Count(const std::string& name, const Call& call) {
  if (!call() || !call() || !flashlane_counted(call)) {
    std::fprintf(stderr, "count_instructions: %s was refused\n", name.c_str());
    std::exit(1);
  }
  std::printf("%s\n", name.c_str());
}

void CountTiles(const Target& target) {
  constexpr int64_t kDepth = 64, kRows = 48;
  const Numbers a(DType::kF32, {kRows, kDepth}), b(DType::kF32, {kDepth, kMostPanelRows}),
      c(DType::kF32, {kRows, kMostPanelRows});
  Count("tiles/F32", [&] {
    MultiplyByTiles(target.bit, {a.as<float>(), b.as<float>(), kDepth, kRows, c.as<float>()});
    return true;
  });
}

void CountAttention(DType dtype, const ExecOptions& options) {
  const std::string suffix = std::string("/") + DTypeName(dtype);
  constexpr int64_t kHeads = 2, kSeqlen = 200, kDim = 64;
  const Numbers q(dtype, {1, kHeads, kSeqlen, kDim}), k(dtype, {1, 1, kSeqlen, kDim}),
      v(dtype, {1, 1, kSeqlen, kDim}), out(dtype, {1, kHeads, kSeqlen, kDim}),
      lse(dtype == DType::kF64 ? dtype : DType::kF32, {1, kHeads, kSeqlen});
  AttentionInputs inputs;
  inputs.q = q.view();
  inputs.k = k.view();
  inputs.v = v.view();
  AttentionParams params;
  params.causal = true;
  const AttentionOutputs outputs{out.view(), lse.view()};
  Count("prefill" + suffix, [&] { return Attention(inputs, params, outputs, options).ok(); });

  const Numbers dout(dtype, {1, kHeads, kSeqlen, kDim}), dq(dtype, {1, kHeads, kSeqlen, kDim}),
      dk(dtype, {1, 1, kSeqlen, kDim}), dv(dtype, {1, 1, kSeqlen, kDim});
  const BackwardInputs backward{inputs, dout.view(), out.view(), lse.view()};
  BackwardOutputs gradients;
  gradients.dq = dq.view();
  gradients.dk = dk.view();
  gradients.dv = dv.view();
  Count("backward" + suffix,
        [&] { return AttentionBackward(backward, params, gradients, options).ok(); });
}

void CountDecode(DType dtype, const ExecOptions& options) {
  constexpr int64_t kHeads = 4, kBlocks = 16, kBlockSize = 16, kDim = 64;
  const Numbers q(dtype, {1, kHeads, 1, kDim}), k(dtype, {kBlocks, kBlockSize, 1, kDim}),
      v(dtype, {kBlocks, kBlockSize, 1, kDim}), out(dtype, {1, kHeads, 1, kDim});
  std::vector<int32_t> table(kBlocks);
  for (int32_t i = 0; i < kBlocks; ++i) table[static_cast<size_t>(i)] = i * 7 % kBlocks;
  const int32_t length = kBlocks * kBlockSize - 3;
  PagedInputs inputs;
  inputs.q = q.view();
  inputs.k_cache = k.view();
  inputs.v_cache = v.view();
  inputs.block_table = ConstTensorView(table.data(), DType::kI32, {1, kBlocks});
  inputs.context_lens = ConstTensorView(&length, DType::kI32, {1});
  AttentionOutputs outputs;
  outputs.out = out.view();
  Count(std::string("decode/") + DTypeName(dtype),
        [&] { return AttentionPaged(inputs, {}, outputs, options).ok(); });
}

void CountRope(DType dtype, const ExecOptions& options) {
  constexpr int64_t kTokens = 64, kHeads = 2, kDim = 64;
  const DType table = dtype == DType::kF64 ? dtype : DType::kF32;
  const Numbers q(dtype, {kTokens, kHeads, kDim}), k(dtype, {kTokens, 1, kDim}),
      cos(table, {kTokens, kDim / 2}), sin(table, {kTokens, kDim / 2});
  RopeInputs inputs;
  inputs.q = q.view();
  inputs.k = k.view();
  inputs.cos = cos.view();
  inputs.sin = sin.view();
  const RopeOutputs outputs{q.view(), k.view()};
  Count(std::string("rope/") + DTypeName(dtype),
        [&] { return ApplyRope(inputs, {}, outputs, options).ok(); });
}

int Main(const char* name) {
  if (std::strcmp(name, "--list") == 0) {
    for (const Target& target : SupportedTargetList()) std::printf("%s\n", target.name);
    return 0;
  }
  Target target;
  if (const Status status = ResolveTarget(name, &target); !status.ok()) {
    std::fprintf(stderr, "count_instructions: %s\n", status.message().c_str());
    return 1;
  }
  ExecOptions options;
  options.target = name;
  options.num_threads = 1;
  CountTiles(target);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    CountAttention(dtype, options);
    CountDecode(dtype, options);
    CountRope(dtype, options);
  }
  return 0;
}

}  // namespace
}  // namespace flashlane::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "count_instructions: one argument, TARGET or --list\n");
    return 2;
  }
  return flashlane::testing::Main(argv[1]);
}
