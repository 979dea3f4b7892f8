#include "dispatch/cli/judge_shapes.h"

#include <cstddef>
#include <iterator>

namespace flashlane::cli {
namespace {

constexpr bool kCausal = true, kFull = false;
constexpr bool kHeldOut = true;

// Tiled prefill from a call that is all overhead to one that is all arithmetic, with tiles that are
// full, nearly empty and cut by the diagonal; many short sequences; few rows over many keys;
// streamed decode with 1 to 32 rows per kv head. None takes more than some 10 ms on the slowest
// target (SSE2, F64).
constexpr JudgeShape kVector[] = {
    {1, 1, 1, 16, 16, 64, kFull},
    {1, 8, 8, 16, 48, 64, kFull},
    {1, 2, 2, 64, 128, 64, kFull},
    {8, 4, 4, 24, 24, 64, kCausal},
    {1, 4, 4, 64, 64, 128, kCausal},
    {1, 4, 1, 256, 256, 64, kCausal},
    {1, 1, 1, 256, 512, 128, kFull},
    {1, 1, 1, 512, 512, 128, kCausal},
    {1, 2, 2, 128, 1024, 64, kFull},
    {1, 2, 2, 48, 2048, 128, kFull},
    {1, 8, 8, 1, 256, 64, kFull},
    {4, 8, 2, 1, 2048, 128, kFull},
    {1, 16, 4, 4, 1024, 128, kFull},
    {2, 8, 8, 1, 1024, 128, kFull},
    {1, 16, 2, 4, 512, 64, kFull},
    {1, 4, 4, 100, 100, 64, kCausal, kHeldOut},
    {2, 4, 2, 150, 300, 64, kFull, kHeldOut},
    {1, 1, 1, 384, 384, 128, kCausal, kHeldOut},
    {1, 2, 1, 60, 500, 128, kFull, kHeldOut},
    {1, 4, 4, 32, 32, 128, kFull, kHeldOut},
    {2, 6, 2, 1, 1500, 128, kFull, kHeldOut},
    {1, 8, 4, 2, 700, 64, kFull, kHeldOut},
    {1, 8, 1, 1, 3000, 64, kFull, kHeldOut},
};

// The same, larger, for who has minutes.
constexpr JudgeShape kVectorFull[] = {
    {1, 4, 4, 1024, 1024, 64, kFull},
    {1, 2, 2, 1024, 1024, 128, kCausal},
    {8, 8, 8, 48, 48, 64, kFull},
    {1, 8, 2, 512, 512, 96, kCausal},
    {2, 32, 8, 1, 1024, 128, kFull},
    {2, 28, 4, 1, 4096, 128, kFull},
    {1, 4, 4, 1, 16384, 64, kFull},
    {1, 2, 2, 1500, 1500, 64, kCausal, kHeldOut},
    {2, 4, 4, 700, 700, 128, kFull, kHeldOut},
    {16, 4, 4, 20, 20, 64, kCausal, kHeldOut},
    {1, 12, 4, 300, 900, 80, kFull, kHeldOut},
    {1, 32, 8, 1, 3000, 128, kFull, kHeldOut},
    {1, 8, 8, 1, 8000, 128, kFull, kHeldOut},
    {3, 16, 1, 1, 2000, 64, kFull, kHeldOut},
};

// Scalar code is some 40 times slower, and knows neither tiles nor streams.
constexpr JudgeShape kScalar[] = {
    {1, 1, 1, 4, 4, 16, kFull},
    {1, 2, 2, 16, 16, 64, kFull},
    {1, 1, 1, 64, 64, 64, kCausal},
    {1, 2, 1, 32, 64, 128, kFull},
    {1, 4, 1, 1, 512, 64, kFull},
    {1, 2, 2, 2, 300, 128, kFull},
    {1, 1, 1, 96, 128, 64, kFull},
    {1, 1, 1, 24, 24, 64, kCausal, kHeldOut},
    {2, 2, 1, 20, 50, 64, kFull, kHeldOut},
    {1, 4, 2, 1, 400, 128, kFull, kHeldOut},
    {1, 1, 1, 80, 80, 128, kCausal, kHeldOut},
};

template <std::size_t kSize>
void Append(const JudgeShape (&shapes)[kSize], std::vector<JudgeShape>* list) {
  list->insert(list->end(), std::begin(shapes), std::end(shapes));
}

}  // namespace

std::string JudgeShape::Name() const {
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  return "b" + number(batch) + " h" + number(num_heads) + "/" + number(num_kv_heads) + " q" +
         number(seqlen_q) + " k" + number(seqlen_k) + " d" + number(head_dim) +
         (causal ? " causal" : "");
}

std::vector<JudgeShape> ShapesFor(const KernelRow& row, bool quick) {
  std::vector<JudgeShape> shapes;
  if (!row.vectorised) {
    Append(kScalar, &shapes);
  } else {
    Append(kVector, &shapes);
    if (!quick) Append(kVectorFull, &shapes);
  }
  if (row.operation == Operation::kBackward) {  // nobody trains on a few queries
    constexpr std::int64_t kMinQueries = 16;
    std::erase_if(shapes, [&](const JudgeShape& shape) {
      return row.vectorised && shape.seqlen_q < kMinQueries;
    });
  }
  if (row.operation == Operation::kPaged) {
    for (JudgeShape& shape : shapes) shape.causal = true;
  }
  return shapes;
}

}  // namespace flashlane::cli
