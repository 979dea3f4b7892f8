#include "dispatch/cli/judge_measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <numeric>

#include "dispatch/dtype.h"
#include "dispatch/fkc/time_model.h"

namespace flashlane::cli {
namespace {

// Twice the 32 MiB of L3 that a core of this decade can have for itself.
constexpr std::size_t kInputBytes = std::size_t{64} << 20;
constexpr std::size_t kOutputBytes = std::size_t{32} << 20;
constexpr std::size_t kAlignment = 64;

constexpr std::int64_t kBlockSize = 16;  // tokens of a paged cache's block, as servers have it

// How often a shape is run: so long in every round, but not more and not less often than so.
struct Effort {
  int rounds;
  int least, most;
  double nanoseconds;
};
constexpr Effort kQuick = {2, 2, 20, 1.5e6};
constexpr Effort kThorough = {3, 3, 100, 1e7};

// Of this thread on a core. Reading it costs more than some calls, so that it only serves to take
// away the time in which other processes had the core.
double ThreadNanoseconds() {
  timespec time = {};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) {
    return 0;
  }
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

std::size_t RoundUp(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t BytesOf(const ConstTensorView& view) {
  std::size_t bytes = DTypeSize(view.dtype);
  for (int d = 0; d < view.rank; ++d) bytes *= static_cast<std::size_t>(view.shape[d]);
  return bytes;
}

}  // namespace

// Filled by MakeOperands in the order of the documents.
struct JudgeTimer::Operands {
  std::vector<ConstTensorView> inputs;
  std::vector<TensorView> outputs;
  std::vector<fkc::Param> params;
  fkc::KernelCall Call(const Judged& judged) const {
    fkc::KernelCall call;
    call.inputs = inputs.data();
    call.num_inputs = inputs.size();
    call.outputs = outputs.data();
    call.num_outputs = outputs.size();
    call.params = params.data();
    call.num_params = params.size();
    call.options.num_threads = 1;
    if (!judged.target.empty()) call.options.target = judged.target.c_str();
    return call;
  }
};

JudgeMemory::JudgeMemory(std::size_t bytes)
    : memory_(std::make_unique<std::byte[]>(bytes + kAlignment)),
      data_(memory_.get()),
      size_(bytes) {
  while (reinterpret_cast<std::uintptr_t>(data_) % kAlignment != 0) ++data_;
}

void JudgeMemory::Reserve(std::size_t bytes) {
  if (used_ + bytes > size_) used_ = 0;
}

void* JudgeMemory::Take(std::size_t bytes) {
  Reserve(bytes);
  std::byte* taken = data_ + used_;
  used_ += RoundUp(bytes);
  return taken;
}

JudgeTimer::JudgeTimer(bool quick) : quick_(quick), inputs_(kInputBytes), outputs_(kOutputBytes) {}

// The same MiB again and again: what the numbers are does not matter, only that they are ordinary.
void JudgeTimer::Fill(DType dtype) {
  if (filled_ == dtype) return;
  filled_ = dtype;
  constexpr std::size_t kPeriod = std::size_t{1} << 20;
  const std::size_t count = kPeriod / DTypeSize(dtype);
  std::vector<double> values(count);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (double& value : values) value = uniform(random_);
  ConvertElements(values.data(), DType::kF64, inputs_.data(), dtype,
                  static_cast<std::int64_t>(count));
  for (std::size_t at = kPeriod; at < inputs_.size(); at += kPeriod) {
    std::memcpy(inputs_.data() + at, inputs_.data(), std::min(kPeriod, inputs_.size() - at));
  }
}

// A pool of blocks and a table that names each once, in no order.
void JudgeTimer::MakePaged(const JudgeShape& s, DType dtype, Operands* operands) {
  const std::int64_t per_sequence = (s.seqlen_k + kBlockSize - 1) / kBlockSize;
  const std::int64_t blocks = s.batch * per_sequence;
  tables_.resize(static_cast<std::size_t>(blocks + s.batch));
  std::uint32_t* const lens = tables_.data() + blocks;
  std::iota(tables_.data(), lens, 0u);
  std::shuffle(tables_.data(), lens, random_);
  std::fill(lens, lens + s.batch, static_cast<std::uint32_t>(s.seqlen_k));
  for (int i = 0; i < 2; ++i) {
    ConstTensorView pool(nullptr, dtype, {blocks, kBlockSize, s.num_kv_heads, s.head_dim});
    pool.data = inputs_.Take(BytesOf(pool));
    operands->inputs.push_back(pool);
  }
  operands->inputs.emplace_back(tables_.data(), DType::kU32,
                                std::initializer_list<std::int64_t>{s.batch, per_sequence});
  operands->inputs.emplace_back(lens, DType::kU32, std::initializer_list<std::int64_t>{s.batch});
}

void JudgeTimer::MakeOutputs(const Judged& judged, Operands* operands) {
  const std::size_t count = judged.row->operation == Operation::kBackward ? 3 : 1;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += RoundUp(BytesOf(operands->inputs[i]));
  outputs_.Reserve(bytes);
  for (std::size_t i = 0; i < count; ++i) {  // out is like q; dq, dk, dv like q, k, v
    const ConstTensorView& like = operands->inputs[i];
    operands->outputs.emplace_back(outputs_.Take(BytesOf(like)), like.dtype, like.rank, like.shape);
  }
}

void JudgeTimer::MakeOperands(const Judged& judged, const JudgeShape& s, Operands* operands) {
  const DType dtype = judged.row->dtype;
  const Operation operation = judged.row->operation;
  const auto take = [&](std::int64_t heads, std::int64_t length) {
    ConstTensorView view(nullptr, dtype, {s.batch, heads, length, s.head_dim});
    view.data = inputs_.Take(BytesOf(view));
    operands->inputs.push_back(view);
  };
  operands->params = {
      fkc::Param::F32("softmax_scale", 1 / std::sqrt(static_cast<float>(s.head_dim)))};
  take(s.num_heads, s.seqlen_q);
  if (operation == Operation::kPaged) {
    MakePaged(s, dtype, operands);
    operands->params.push_back(fkc::Param::Usize("block_size", kBlockSize));
  } else {
    take(s.num_kv_heads, s.seqlen_k);
    take(s.num_kv_heads, s.seqlen_k);
    operands->params.push_back(fkc::Param::Bool("causal", s.causal));
  }
  if (operation == Operation::kBackward) take(s.num_heads, s.seqlen_q);
  MakeOutputs(judged, operands);
}

Status JudgeTimer::TimeOnce(const Judged& judged, const JudgeShape& shape, double* nanoseconds) {
  Operands operands;
  MakeOperands(judged, shape, &operands);
  const fkc::KernelCall call = operands.Call(judged);
  const fkc::KernelRef run = fkc::Resolve(judged.symbol.c_str());
  const double cpu_begin = ThreadNanoseconds();
  const auto begin = std::chrono::steady_clock::now();
  const Status status = run(call);
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
  const double cpu = ThreadNanoseconds() - cpu_begin;
  const double undisturbed = cpu > 0 ? std::min(time.count(), cpu) : time.count();
  *nanoseconds = std::max(undisturbed, 1.0);  // a clock may stand still
  return status;
}

Status JudgeTimer::TimeShape(const Judged& judged, const JudgeShape& shape, TimedShape* timed) {
  const Effort effort = quick_ ? kQuick : kThorough;
  double spent = 0;
  for (int run = 0; run < effort.most; ++run) {
    if (run >= effort.least && spent > effort.nanoseconds) break;
    double nanoseconds = 0;
    if (Status s = TimeOnce(judged, shape, &nanoseconds); !s.ok()) return s;
    spent += nanoseconds;
    timed->nanoseconds = std::min(timed->nanoseconds, nanoseconds);
  }
  return {};
}

int JudgeTimer::rounds() const { return (quick_ ? kQuick : kThorough).rounds; }

Status JudgeTimer::Begin(const Judged& judged, const std::vector<JudgeShape>& shapes,
                         std::vector<TimedShape>* timed) {
  timed->clear();
  for (const JudgeShape& shape : shapes) {
    Operands operands;
    MakeOperands(judged, shape, &operands);
    fkc::TimeTerms terms;
    const Status status = fkc::EstimateTerms(judged.symbol.c_str(), operands.Call(judged), &terms);
    if (!status.ok()) return status;
    timed->push_back({shape.Name(), terms, std::numeric_limits<double>::infinity()});
  }
  return {};
}

Status JudgeTimer::Round(const Judged& judged, const std::vector<JudgeShape>& shapes,
                         std::vector<TimedShape>* timed) {
  Fill(judged.row->dtype);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (Status s = TimeShape(judged, shapes[i], &(*timed)[i]); !s.ok()) return s;
  }
  return {};
}

}  // namespace flashlane::cli
