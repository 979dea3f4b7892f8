#include "dispatch/fkc/shape_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace flashlane::fkc {
namespace {

// Where `text` begins with `head`, takes it off.
bool TakeHead(std::string_view head, std::string_view* text) {
  if (text->substr(0, head.size()) != head) return false;
  text->remove_prefix(head.size());
  return true;
}

class Evaluator {
 public:
  Evaluator(const Contract& contract, const KernelCall& call, const ConstTensorView& self)
      : contract_(contract), call_(call), self_(self) {}

  bool Evaluate(std::string_view text) const {
    if (TakeHead("same_as=", &text)) {
      const ConstTensorView* other = FindInput(contract_, call_, text);
      return other != nullptr && other->rank == self_.rank &&
             std::equal(self_.shape, self_.shape + self_.rank, other->shape);
    }
    if (TakeHead("divisible(", &text)) {
      const size_t comma = text.find(", ");
      if (comma == std::string_view::npos || text.back() != ')') return false;
      const auto dividend = Size(text.substr(0, comma));
      const auto divisor = Size(text.substr(comma + 2, text.size() - comma - 3));
      return dividend && divisor && *divisor > 0 && *dividend % *divisor == 0;
    }
    if (const size_t at = text.find(">="); at != std::string_view::npos) {
      const auto size = Size(text.substr(0, at)), least = Size(text.substr(at + 2));
      return size && least && *size >= *least;
    }
    const size_t at = text.find('=');
    if (at == std::string_view::npos) return false;
    const auto size = Size(text.substr(0, at)), want = Size(text.substr(at + 1));
    return size && want && *size == *want;
  }

 private:
  // "dim[i]" of the operand itself, "name.dim[i]" of another, or one digit.
  std::optional<int64_t> Size(std::string_view text) const {
    if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') return text[0] - '0';
    const ConstTensorView* view = &self_;
    if (const size_t dot = text.find('.'); dot != std::string_view::npos) {
      view = FindInput(contract_, call_, text.substr(0, dot));
      text.remove_prefix(dot + 1);
    }
    if (view == nullptr || text.size() != 6 || !TakeHead("dim[", &text)) return std::nullopt;
    const int dim = text[0] - '0';
    if (dim < 0 || dim >= view->rank || dim >= kMaxRank) return std::nullopt;
    return view->shape[dim];
  }

  const Contract& contract_;
  const KernelCall& call_;
  const ConstTensorView& self_;
};

}  // namespace

const ConstTensorView* FindInput(const Contract& contract, const KernelCall& call,
                                 std::string_view name) {
  for (size_t i = 0; i < contract.operands.size() && i < call.num_inputs; ++i) {
    if (name == contract.operands[i].name) {
      return call.inputs[i].present() ? &call.inputs[i] : nullptr;
    }
  }
  return nullptr;
}

bool SatisfiesShape(const Contract& contract, const KernelCall& call, const ConstTensorView& self,
                    std::string_view constraint) {
  return Evaluator(contract, call, self).Evaluate(constraint);
}

}  // namespace flashlane::fkc
