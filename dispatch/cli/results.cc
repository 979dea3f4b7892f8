#include "dispatch/cli/results.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "dispatch/contract.h"
#include "dispatch/cost.h"
#include "dispatch/view.h"

namespace flashlane::cli {
namespace {

// The bytes of a contiguous tensor; nothing where they would not fit in memory's address range.
std::optional<std::size_t> BytesOf(const ConstTensorView& view) {
  auto bytes = static_cast<std::int64_t>(DTypeSize(view.dtype));
  for (int d = 0; d < view.rank; ++d) {
    if (__builtin_mul_overflow(bytes, view.shape[d], &bytes)) return std::nullopt;
  }
  return static_cast<std::size_t>(bytes);
}

TensorView Like(const ConstTensorView& view) {
  return TensorView(nullptr, view.dtype, view.rank, view.shape);
}

TensorView ViewNamed(const Results& results, const std::string& name) {
  for (const Output& output : results) {
    if (output.name == name) return output.view;
  }
  return {};
}

AttentionOutputs ForwardOutputs(const Results& results) {
  return {ViewNamed(results, "out"), ViewNamed(results, "lse")};
}

BackwardOutputs Gradients(const Results& results) {
  BackwardOutputs outputs;
  outputs.dq = ViewNamed(results, "dq");
  outputs.dk = ViewNamed(results, "dk");
  outputs.dv = ViewNamed(results, "dv");
  outputs.dbias = ViewNamed(results, "dbias");
  outputs.dsinks = ViewNamed(results, "dsinks");
  return outputs;
}

}  // namespace

Status MakeResults(const Operands& operands, Results* results) {
  const std::int64_t* q = operands.q().shape;
  const DType dtype = operands.q().dtype;
  const DType lse_dtype = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  results->clear();
  if (operands.operation == Operation::kBackward) {
    const AttentionInputs& forward = operands.backward.forward;
    const std::pair<const char*, const ConstTensorView&> likes[] = {{"dq", forward.q},
                                                                    {"dk", forward.k},
                                                                    {"dv", forward.v},
                                                                    {"dbias", forward.bias},
                                                                    {"dsinks", forward.sinks}};
    for (const auto& [name, like] : likes) {
      if (like.present()) results->push_back({name, Like(like), {}});
    }
  } else {
    results->push_back(
        {"out", TensorView(nullptr, dtype, {q[0], q[1], q[2], operands.head_dim_v()}), {}});
    results->push_back({"lse", TensorView(nullptr, lse_dtype, {q[0], q[1], q[2]}), {}});
  }
  for (Output& output : *results) {
    const std::optional<std::size_t> bytes = BytesOf(output.view);
    if (!bytes.has_value()) {
      return Status::InvalidArgument(std::string(output.name) + " would have more than 2^63 bytes");
    }
    output.bytes = AlignedBytes(*bytes);
    output.view.data = output.bytes.data();
  }
  return {};
}

Status RunCase(const Operands& operands, const AttentionParams& params, const Results& results,
               const ExecOptions& exec) {
  switch (operands.operation) {
    case Operation::kPaged:
      return AttentionPaged(operands.paged, params, ForwardOutputs(results), exec);
    case Operation::kBackward:
      return AttentionBackward(operands.backward, params, Gradients(results), exec);
    default:
      return Attention(operands.forward, params, ForwardOutputs(results), exec);
  }
}

std::uint64_t FlopsOf(const Operands& operands, const AttentionParams& params,
                      const Results& results) {
  switch (operands.operation) {
    case Operation::kPaged:
      return ForwardFlops(ResolvePaged(operands.paged, params, ForwardOutputs(results)));
    case Operation::kBackward:
      return BackwardFlops(ResolveBackward(operands.backward, params, Gradients(results)));
    default:
      return ForwardFlops(ResolveForward(operands.forward, params, ForwardOutputs(results)));
  }
}

Status AnswersOf(const Case& from, const Results& results, Answers* answers) {
  answers->clear();
  for (const Output& output : results) {
    TensorView& view = answers->emplace_back();
    if (Status s = ViewOf(from, output.name, &view); !s.ok()) return s;
    if (!view.present()) continue;
    const TensorView& like = output.view;
    if (view.rank != like.rank || !std::equal(like.shape, like.shape + like.rank, view.shape)) {
      return TensorError(from, output.name,
                         "shape " + ShapeString(view) + " must be " + ShapeString(like));
    }
    if (!IsAttentionDType(view.dtype)) {
      return TensorError(
          from, output.name,
          std::string("dtype ") + DTypeName(view.dtype) + " is not one of F32, F64, BF16, F16");
    }
  }
  return {};
}

Comparison Reference::Compare(const std::string& name, const ConstTensorView& result) const {
  if (name == "out") return CompareOut(forward, result);
  if (name == "lse") return CompareLse(forward, result);
  for (const GradientReference* gradient :
       {&backward.dq, &backward.dk, &backward.dv, &backward.dbias, &backward.dsinks}) {
    if (gradient->rank > 0 && name == gradient->name) return CompareGradient(*gradient, result);
  }
  Comparison unknown;
  unknown.agrees = false;
  unknown.fraction = std::numeric_limits<double>::infinity();
  unknown.message = name + ": the call has no such result";
  return unknown;
}

namespace {

// In the order of MakeResults.
BackwardAnswers GradientAnswers(const Operands& operands, const Answers& answers) {
  BackwardAnswers gradients;
  if (answers.empty()) return gradients;
  gradients.dq = answers[0];
  gradients.dk = answers[1];
  gradients.dv = answers[2];
  std::size_t next = 3;
  if (operands.backward.forward.bias.present()) gradients.dbias = answers[next++];
  if (operands.backward.forward.sinks.present()) gradients.dsinks = answers[next];
  return gradients;
}

}  // namespace

Status MakeReference(const Operands& operands, const AttentionParams& params,
                     const Answers& answers, int num_threads, Reference* reference) {
  const auto answer = [&](std::size_t i) {
    return i < answers.size() ? ConstTensorView(answers[i]) : ConstTensorView();
  };
  switch (operands.operation) {
    case Operation::kPaged:
      return MakePagedReference(operands.paged, params, {answer(0), answer(1)}, num_threads,
                                &reference->forward);
    case Operation::kBackward:
      return MakeBackwardReference(operands.backward, params, GradientAnswers(operands, answers),
                                   num_threads, &reference->backward);
    default:
      return MakeForwardReference(operands.forward, params, {answer(0), answer(1)}, num_threads,
                                  &reference->forward);
  }
}

}  // namespace flashlane::cli
