// The shapes that are measured, by name. One that a kernel does not run yet is not here.
#ifndef FLASHLANE_BENCH_SHAPES_H_
#define FLASHLANE_BENCH_SHAPES_H_

#include <cstdint>

#include "flashlane/attention.h"
#include "flashlane/tensor.h"

namespace flashlane::bench {

// What is measured of a shape beside F32 on the best target with one thread. Everything but kOracle
// says only what runs without a filter.
enum ShapeUse : unsigned {
  kOracle = 1,  // short enough for the oracle
  kEveryDType = 2,
  kEveryTarget = 4,
  kAllThreads = 8,
  kOnlyFiltered = 16,  // not without a filter
};

// Operands beside q, k and v, as bits. Heads share bias and mask: 16 MiB at S 2048, not 16 MiB
// each.
enum ShapeExtra : unsigned {
  kBias = 1,         // [1, 1, Sq, Sk], F32
  kMask = 2,         // [1, 1, Sq, Sk]
  kPaddingMask = 4,  // [B, 1, 1, Sk]
  kAlibi = 8,        // [Hq], F32
};

struct Shape {
  const char* name;
  int64_t batch;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t head_dim;
  int64_t head_dim_v;
  AttentionParams params;
  unsigned use;           // of ShapeUse
  unsigned extras = 0;    // of ShapeExtra
  bool decodes = false;   // measured in bytes of k and v; runs paged, too
  bool backward = false;  // the gradients are measured, with out and lse kept; nothing else
};

// Whether the flash kernel's row of `dtype` runs without a filter, on the best target with one
// thread.
inline bool ByDefault(const Shape& shape, DType dtype) {
  if ((shape.use & kOnlyFiltered) != 0) return false;
  return dtype == DType::kF32 || (shape.use & kEveryDType) != 0;
}

inline constexpr int64_t kBenchBlockSize = 16;  // of paged caches: vLLM's default on CPUs

inline AttentionParams Causal() {
  AttentionParams params;
  params.causal = true;
  return params;
}

// The last tokens of a long prompt: query rows stand at the end of the keys.
inline AttentionParams CausalAtEnd() {
  AttentionParams params = Causal();
  params.q_start = QStart::BottomRight();
  return params;
}

inline AttentionParams CausalWindow(int64_t left) {
  AttentionParams params = Causal();
  params.window_size_left = left;
  return params;
}

inline AttentionParams CausalSoftcap(double softcap) {
  AttentionParams params = Causal();
  params.softcap = softcap;
  return params;
}

// clang-format off
inline const Shape kShapes[] = {
    // The targets of the design, and their causal or full twins.
    //                  B   Hq Hkv     Sq     Sk    D   Dv
    {"prefill_2k_gqa",  1, 32,  8,  2048,  2048, 128, 128, Causal(), kEveryDType | kAllThreads},
    {"full_2k_gqa",     1, 32,  8,  2048,  2048, 128, 128, {}, kEveryDType},
    {"full_2k_d64",     1,  8,  8,  2048,  2048,  64,  64, {}, kEveryDType | kEveryTarget},
    {"causal_2k_d64",   1,  8,  8,  2048,  2048,  64,  64, Causal(), kEveryDType | kEveryTarget},
    {"encoder_8x512",   8, 12, 12,   512,   512,  64,  64, {}, kAllThreads},
    {"prefill_8k",      1,  4,  4,  8192,  8192, 128, 128, Causal(), 0},
    // What servers do besides: a chunk of a long prompt, sliding windows, softcap (Gemma 2), heads
    // of unlike width (multi-head latent attention), sizes that fit no block or vector.
    {"chunk_128x8k",    1, 32,  8,   128,  8192, 128, 128, CausalAtEnd(), 0},
    {"window_256_16k",  1,  8,  8, 16384, 16384,  64,  64, CausalWindow(255), 0},
    {"softcap_1k_d256", 1,  8,  4,  1024,  1024, 256, 256, CausalSoftcap(50), 0},
    {"mla_1k",          1, 16, 16,  1024,  1024, 192, 128, Causal(), 0},
    {"odd_1000_d80",    1,  8,  8,  1000,  1000,  80,  80, {}, 0},
    // What is added to the scores, against the plain shapes above.
    {"bias_2k_d64",     1,  8,  8,  2048,  2048,  64,  64, {}, kOnlyFiltered, kBias},
    {"bias_2k_gqa",     1, 32,  8,  2048,  2048, 128, 128, {}, kOnlyFiltered, kBias},
    {"mask_2k_d64",     1,  8,  8,  2048,  2048,  64,  64, {}, kOnlyFiltered, kMask},
    {"padmask_8x512",   8, 12, 12,   512,   512,  64,  64, {}, kOnlyFiltered, kPaddingMask},
    {"alibi_2k",        1,  8,  8,  2048,  2048,  64,  64, {}, kOnlyFiltered, kAlibi},
    // Decode: one token per sequence against caches that no CPU cache holds, by heads per kv head.
    {"decode_16x4k",   16, 32,  8,     1,  4096, 128, 128, CausalAtEnd(), kEveryDType | kAllThreads,
     0, true},
    {"decode_16x4k_g1", 16, 8,  8,     1,  4096, 128, 128, CausalAtEnd(), kEveryDType, 0, true},
    {"decode_16x4k_g7", 16, 28, 4,     1,  4096, 128, 128, CausalAtEnd(), kEveryDType, 0, true},
    {"decode_16x4k_g8", 16, 64, 8,     1,  4096, 128, 128, CausalAtEnd(), kEveryDType, 0, true},
    {"decode_16x4k_g16", 16, 64, 4,    1,  4096, 128, 128, CausalAtEnd(), kOnlyFiltered, 0, true},
    {"decode_1x32k",    1, 32,  8,     1, 32768, 128, 128, CausalAtEnd(), kEveryDType | kAllThreads,
     0, true},
    // Eight drafted tokens; and what a server's call costs beside its arithmetic.
    {"draft_8x4k",      8, 32,  8,     8,  4096, 128, 128, CausalAtEnd(), kOnlyFiltered, 0, true},
    {"decode_16x128",  16, 32,  8,     1,   128, 128, 128, CausalAtEnd(), kOnlyFiltered, 0, true},
    // What a call costs beside its arithmetic.
    {"tiny_16x16",      1,  1,  1,    16,    16,  64,  64, {},
     kOracle | kEveryDType | kAllThreads},
    // Gradients.
    {"bwd_2k",          1,  8,  8,  2048,  2048, 128, 128, Causal(), kEveryDType | kAllThreads,
     0, false, true},
    {"bwd_1k_d64",      2,  8,  8,  1024,  1024,  64,  64, {}, kEveryDType | kEveryTarget,
     0, false, true},
    {"bwd_128x8k",      1,  2,  2,   128,  8192, 128, 128, {}, kOnlyFiltered, 0, false, true},
    // Flash against the oracle, and its gradients; one head, so that the oracle needs less than a
    // second in all dtypes but F16, which is emulated: 5 s.
    {"naive_1k_d64",    1,  1,  1,  1024,  1024,  64,  64, {}, kOracle | kEveryTarget},
    {"bwd_naive_256_d64", 1, 1, 1,   256,   256,  64,  64, {}, kOracle | kEveryTarget,
     0, false, true},
};
// clang-format on

}  // namespace flashlane::bench

#endif  // FLASHLANE_BENCH_SHAPES_H_
