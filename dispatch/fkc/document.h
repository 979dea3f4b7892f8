// Contracts as documents.
#ifndef FLASHLANE_DISPATCH_FKC_DOCUMENT_H_
#define FLASHLANE_DISPATCH_FKC_DOCUMENT_H_

#include <string>
#include <vector>

#include "dispatch/fkc/model.h"

namespace flashlane::fkc {

// One document: front matter, a title, and a section with a fenced block for each contract.
std::string WriteDocument(const std::vector<const Contract*>& contracts);

}  // namespace flashlane::fkc

#endif  // FLASHLANE_DISPATCH_FKC_DOCUMENT_H_
