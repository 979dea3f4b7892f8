// Judged coefficients, by the symbols of the documents.

#include <cmath>
#include <optional>
#include <string>

#include "dispatch/contract_rules.h"
#include "dispatch/dtype.h"
#include "dispatch/exec_options.h"
#include "dispatch/fkc/call.h"
#include "dispatch/fkc/model.h"
#include "dispatch/judged.h"
#include "dispatch/target.h"
#include "flashlane/fkc.h"

namespace flashlane::fkc {
namespace {

Status RowOf(const char* symbol, DType dtype, const KernelRow** row) {
  const Contract* contract = symbol == nullptr ? nullptr : FindContract(symbol);
  if (contract == nullptr) return UnknownEntryPoint(symbol);
  *row = FindKernel(contract->implementation, dtype, contract->operation);
  if (*row != nullptr) return {};
  return Invalid("dtype", std::string(DTypeName(dtype)) + " is none of " + contract->kernel);
}

Status CheckCoefficients(const Coefficients& c) {
  const struct {
    const char* name;
    double value;
  } values[] = {{"overhead_ns", c.overhead_ns},
                {"tile_ns", c.tile_ns},
                {"ns_per_flop", c.ns_per_flop},
                {"ns_per_byte", c.ns_per_byte},
                {"stream_ns_per_flop", c.stream_ns_per_flop},
                {"stream_ns_per_byte", c.stream_ns_per_byte}};
  bool any = false;
  for (const auto& [name, value] : values) {
    if (!std::isfinite(value) || value < 0) {
      return Invalid(name, std::to_string(value) + " is not finite and >= 0");
    }
    any = any || value > 0;
  }
  return any ? Status() : Invalid("coefficients", "are all 0");
}

}  // namespace

Status SetCoefficients(const char* symbol, DType dtype, const char* target,
                       const Coefficients& coefficients) noexcept {
  return WithoutThrowing([&] {
    const KernelRow* row = nullptr;
    if (Status s = RowOf(symbol, dtype, &row); !s.ok()) return s;
    if (Status s = CheckCoefficients(coefficients); !s.ok()) return s;
    if (target == nullptr) {
      for (const Target& each : CompiledTargetList()) SetJudged(*row, each.bit, coefficients);
      return Status();
    }
    Target resolved;
    if (Status s = ResolveTarget(target, &resolved); !s.ok()) return s;
    SetJudged(*row, resolved.bit, coefficients);
    return Status();
  });
}

Status FindCoefficients(const char* symbol, DType dtype, const char* target,
                        Coefficients* coefficients) noexcept {
  return WithoutThrowing([&] {
    const KernelRow* row = nullptr;
    if (Status s = RowOf(symbol, dtype, &row); !s.ok()) return s;
    if (coefficients == nullptr) return Invalid("coefficients", "is null");
    Target resolved;
    if (Status s = ResolveTarget(target, &resolved); !s.ok()) return s;
    const std::optional<Coefficients> found = FindJudged(*row, resolved.bit);
    if (!found.has_value()) return NotJudged(*row, resolved.name);
    *coefficients = *found;
    return Status();
  });
}

void ClearCoefficients() noexcept { ClearJudged(); }

}  // namespace flashlane::fkc
