// The link registry: symbols, the functions behind them, and the public calls of flashlane/fkc.h
// that are not about cost.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "dispatch/exec_options.h"
#include "dispatch/fkc/call.h"
#include "dispatch/fkc/document.h"
#include "dispatch/fkc/model.h"
#include "dispatch/fkc/revision.h"
#include "flashlane/fkc.h"

namespace flashlane::fkc {
namespace {

Status RunEntry(size_t index, const KernelCall& call) noexcept {
  return WithoutThrowing([&] {
    const Contract& contract = Contracts()[index];
    if (call.strict) {
      if (Status s = CheckAgainstDocument(contract, call); !s.ok()) return s;
    }
    BoundCall bound;
    if (Status s = Bind(contract, call, &bound); !s.ok()) return s;
    return RunBound(contract, bound);
  });
}

// A function of its own for every contract: a symbol stands for a function, not for a closure.
template <size_t kIndex>
Status Entry(const KernelCall& call) noexcept {
  return RunEntry(kIndex, call);
}

template <size_t... kIndices>
constexpr std::array<KernelRef, sizeof...(kIndices)> MakeEntries(std::index_sequence<kIndices...>) {
  return {&Entry<kIndices>...};
}

// As many as there are contracts: a test compares.
constexpr auto kEntries = MakeEntries(std::make_index_sequence<12>());

}  // namespace

std::vector<EntryPoint> EntryPoints() {
  std::vector<EntryPoint> entries;
  const std::vector<Contract>& contracts = Contracts();
  for (size_t i = 0; i < contracts.size() && i < kEntries.size(); ++i) {
    const Contract& contract = contracts[i];
    entries.push_back({contract.entry_point.c_str(), contract.kernel.c_str(), contract.row,
                       contract.fused_op, contract.fused_op_id, RevisionOf(contract.row),
                       kEntries[i]});
  }
  return entries;
}

KernelRef Resolve(const char* symbol) noexcept {
  KernelRef found = nullptr;
  // Out of memory is the same as not found: there is nothing to call.
  (void)WithoutThrowing([&] {
    for (const EntryPoint& entry : EntryPoints()) {
      if (symbol != nullptr && std::string_view(entry.symbol) == symbol) found = entry.run;
    }
    return Status();
  });
  return found;
}

std::vector<std::string> Documents() {
  std::vector<std::string> names;
  for (const Contract& contract : Contracts()) {
    if (names.empty() || names.back() != contract.row) names.emplace_back(contract.row);
  }
  return names;
}

Status Document(const std::string& name, std::string* text) {
  std::vector<const Contract*> contracts;
  for (const Contract& contract : Contracts()) {
    if (name == contract.row) contracts.push_back(&contract);
  }
  if (contracts.empty()) {
    return Status::InvalidArgument("document: '" + name + "' is not the name of one");
  }
  if (text == nullptr) return Status::InvalidArgument("text: is null");
  *text = WriteDocument(contracts);
  return {};
}

Status Admits(const char* symbol, const KernelCall& call) noexcept {
  return WithoutThrowing([&] {
    const Contract* contract = symbol == nullptr ? nullptr : FindContract(symbol);
    return contract == nullptr ? UnknownEntryPoint(symbol) : CheckAgainstDocument(*contract, call);
  });
}

}  // namespace flashlane::fkc
