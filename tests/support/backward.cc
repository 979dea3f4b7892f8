#include "tests/support/backward.h"

#include <algorithm>
#include <random>
#include <string>

#include "dispatch/registry.h"

namespace flashlane::testing {
namespace {

std::vector<double> RandomValues(uint64_t seed, int64_t count) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

OwnedTensor RandomTensor(uint64_t seed, DType dtype, std::initializer_list<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return OwnedTensor::Of(RandomValues(seed, count), dtype, shape);
}

// Of the shape and dtype of `like`, contiguous.
OwnedTensor PoisonedLike(const OwnedTensor& like) {
  if (!like.view.present()) return {};
  const ConstTensorView dense(nullptr, like.view.dtype, like.view.rank, like.view.shape);
  return Poisoned(like.view.dtype, dense);
}

}  // namespace

std::vector<std::byte> BackwardResult::bits() const {
  std::vector<std::byte> all;
  for (const OwnedTensor* tensor : {&dq, &dk, &dv, &dbias, &dsinks}) {
    all.insert(all.end(), tensor->storage.begin(), tensor->storage.end());
  }
  return all;
}

BackwardOutputs BackwardResult::Outputs() {
  BackwardOutputs outputs;
  outputs.dq = Writable(dq);
  outputs.dk = Writable(dk);
  outputs.dv = Writable(dv);
  outputs.dbias = Writable(dbias);
  outputs.dsinks = Writable(dsinks);
  return outputs;
}

BackwardResult MakeBackwardResult(const Problem& problem, unsigned gradients) {
  const ProblemSpec& s = problem.spec();
  const DType dtype = problem.dtype();
  BackwardResult result;
  if ((gradients & kDq) != 0) {
    result.dq = PoisonedRows(dtype, {s.batch, s.num_heads, s.seqlen_q, s.head_dim}, s.layout);
  }
  if ((gradients & kDk) != 0) {
    result.dk = PoisonedRows(dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim}, s.layout);
  }
  if ((gradients & kDv) != 0) {
    result.dv = PoisonedRows(dtype, {s.batch, s.num_kv_heads, s.seqlen_k, s.head_dim_v}, s.layout);
  }
  if ((gradients & kDbias) != 0) result.dbias = PoisonedLike(problem.bias);
  if ((gradients & kDsinks) != 0) result.dsinks = PoisonedLike(problem.sinks);
  return result;
}

BackwardProblem::BackwardProblem(const ProblemSpec& spec, DType dtype) : problem(spec, dtype) {
  dout = PoisonedRows(dtype, {spec.batch, spec.num_heads, spec.seqlen_q, spec.head_dim_v},
                      spec.layout);
  const int64_t rows = spec.batch * spec.num_heads * spec.seqlen_q;
  const auto dense = OwnedTensor::Of(RandomValues(spec.seed + 1000, rows * spec.head_dim_v), dtype,
                                     {spec.batch, spec.num_heads, spec.seqlen_q, spec.head_dim_v});
  const int64_t* strides = dout.view.strides;
  dout = dense.WithStrides({strides[0], strides[1], strides[2], strides[3]});
}

BackwardInputs BackwardProblem::Inputs() const {
  BackwardInputs inputs;
  inputs.forward = problem.Inputs();
  inputs.dout = dout.View();
  return inputs;
}

BackwardResult BackwardProblem::Run(const ExecOptions& options, unsigned gradients) const {
  BackwardResult result = MakeBackwardResult(problem, gradients);
  result.status = AttentionBackward(Inputs(), spec().params, result.Outputs(), options);
  return result;
}

BackwardResult BackwardProblem::RunKept(const ExecOptions& options, const Result& forward) const {
  BackwardInputs inputs = Inputs();
  inputs.out = forward.out_tensor.View();
  inputs.lse = forward.lse_tensor.View();
  BackwardResult result = MakeBackwardResult(problem, kAllGradients);
  result.status = AttentionBackward(inputs, spec().params, result.Outputs(), options);
  return result;
}

BackwardReference ReferenceOf(const BackwardProblem& problem) {
  BackwardReference reference;
  const Status status =
      MakeBackwardReference(problem.Inputs(), problem.spec().params, {}, 0, &reference);
  EXPECT_TRUE(status.ok()) << status.message();
  return reference;
}

::testing::AssertionResult Agrees(const BackwardReference& reference,
                                  const BackwardResult& result) {
  if (!result.status.ok()) return ::testing::AssertionFailure() << result.status.message();
  const struct {
    const GradientReference& truth;
    const OwnedTensor& tensor;
  } pairs[] = {{reference.dq, result.dq},
               {reference.dk, result.dk},
               {reference.dv, result.dv},
               {reference.dbias, result.dbias},
               {reference.dsinks, result.dsinks}};
  for (const auto& [truth, tensor] : pairs) {
    if (!tensor.view.present()) continue;
    const Comparison comparison = CompareGradient(truth, tensor.View());
    if (!comparison.agrees) return ::testing::AssertionFailure() << comparison.message;
  }
  return ::testing::AssertionSuccess();
}

std::vector<RunCase> BackwardRuns() {
  std::vector<RunCase> runs;
  for (const KernelRow& row : BackwardKernels()) {
    for (const std::string& target : TargetsOf(row.kernel)) {
      runs.push_back({row.kernel, row.dtype, target});
    }
  }
  return runs;
}

namespace {
constexpr int64_t kPackedHeads = 4, kPackedKvHeads = 2, kPackedDim = 12, kPackedDimV = 10;
}  // namespace

PackedBackward::PackedBackward(const std::vector<int64_t>& lengths_q,
                               const std::vector<int64_t>& lengths_k, DType dtype)
    : cu_q{0}, cu_k{0} {
  for (const int64_t length : lengths_q) cu_q.push_back(cu_q.back() + length);
  for (const int64_t length : lengths_k) cu_k.push_back(cu_k.back() + length);
  q = RandomTensor(1, dtype, {cu_q.back(), kPackedHeads, kPackedDim});
  k = RandomTensor(2, dtype, {cu_k.back(), kPackedKvHeads, kPackedDim});
  v = RandomTensor(3, dtype, {cu_k.back(), kPackedKvHeads, kPackedDimV});
  dout = RandomTensor(4, dtype, {cu_q.back(), kPackedHeads, kPackedDimV});
  slopes = RandomTensor(5, DType::kF32, {kPackedHeads});
  sinks = RandomTensor(6, DType::kF32, {kPackedHeads});
  dq = PoisonedLike(q);
  dk = PoisonedLike(k);
  dv = PoisonedLike(v);
  dsinks = PoisonedLike(sinks);
}

VarlenBackwardInputs PackedBackward::Inputs() const {
  const auto count = static_cast<int64_t>(cu_q.size());
  VarlenBackwardInputs inputs;
  inputs.forward.q = q.View();
  inputs.forward.k = k.View();
  inputs.forward.v = v.View();
  inputs.forward.cu_seqlens_q = ConstTensorView(cu_q.data(), DType::kI64, {count});
  inputs.forward.cu_seqlens_k = ConstTensorView(cu_k.data(), DType::kI64, {count});
  inputs.forward.alibi_slopes = slopes.View();
  inputs.forward.sinks = sinks.View();
  inputs.dout = dout.View();
  return inputs;
}

BackwardOutputs PackedBackward::Outputs() {
  BackwardOutputs outputs;
  outputs.dq = Writable(dq);
  outputs.dk = Writable(dk);
  outputs.dv = Writable(dv);
  outputs.dsinks = Writable(dsinks);
  return outputs;
}

}  // namespace flashlane::testing
