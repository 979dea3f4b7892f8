#include "dispatch/fkc/formula.h"

#include <cstddef>

namespace flashlane::fkc {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// sum = product {"+" product}, product = factor {"*" factor}, factor = number | symbol | "(" sum
// ")".
class Parser {
 public:
  Parser(std::string_view text, const SymbolValue& symbols) : rest_(text), symbols_(symbols) {}

  bool Whole(Uint128* value) {
    const bool parsed = Sum(value);
    SkipSpace();
    return parsed && rest_.empty();
  }

 private:
  // Formulas are a few levels deep; this bounds the stack whatever the text.
  static constexpr int kMaxDepth = 32;

  void SkipSpace() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  bool Take(char c) {
    SkipSpace();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool Sum(Uint128* value) {
    if (!Product(value)) return false;
    while (Take('+')) {
      Uint128 next = 0;
      if (!Product(&next)) return false;
      *value = SaturatingSum128(*value, next);
    }
    return true;
  }

  bool Product(Uint128* value) {
    if (!Factor(value)) return false;
    while (Take('*')) {
      Uint128 next = 0;
      if (!Factor(&next)) return false;
      *value = SaturatingProduct128(*value, next);
    }
    return true;
  }

  bool Factor(Uint128* value) {
    if (Take('(')) {
      if (++depth_ > kMaxDepth) return false;
      const bool parsed = Sum(value) && Take(')');
      --depth_;
      return parsed;
    }
    SkipSpace();
    if (rest_.empty()) return false;
    return IsDigit(rest_.front()) ? Number(value) : Symbol(value);
  }

  bool Number(Uint128* value) {
    *value = 0;
    while (!rest_.empty() && IsDigit(rest_.front())) {
      *value = SaturatingSum128(SaturatingProduct128(*value, 10),
                                static_cast<Uint128>(rest_.front() - '0'));
      rest_.remove_prefix(1);
    }
    return true;
  }

  // A name, then ".dim[n]" or "(name)" as a part of it.
  bool Symbol(Uint128* value) {
    size_t size = 0;
    if (!IsLetter(rest_.front())) return false;
    char open = 0;
    for (; size < rest_.size(); ++size) {
      const char c = rest_[size];
      const bool closes = (open == '[' && c == ']') || (open == '(' && c == ')');
      if (closes) {
        open = 0;
      } else if (open == 0 && (c == '[' || c == '(')) {
        open = c;
      } else if (!IsLetter(c) && !IsDigit(c) && c != '.') {
        break;
      }
    }
    const std::string_view symbol = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return open == 0 && symbols_(symbol, value);
  }

  std::string_view rest_;
  const SymbolValue& symbols_;
  int depth_ = 0;
};

}  // namespace

bool EvaluateFormula(std::string_view text, const SymbolValue& symbols, Uint128* value) {
  return Parser(text, symbols).Whole(value);
}

}  // namespace flashlane::fkc
