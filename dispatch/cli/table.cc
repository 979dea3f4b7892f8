#include "dispatch/cli/table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <ostream>
#include <utility>

namespace flashlane::cli {
namespace {

constexpr char kGap[] = "  ";

// Characters, not bytes: every byte of UTF-8 but the continuation bytes.
std::size_t Width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

void Table::AddBlankLine() { rows_.emplace_back(); }

void Table::Print(std::ostream& out) const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(columns_[c].title);
    widths.push_back(Width(columns_[c].title));
    for (const auto& row : rows_) {
      if (!row.empty()) widths[c] = std::max(widths[c], Width(row[c]));
    }
  }
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - Width(row[c]), ' ');
      if (c > 0) line += kGap;
      line += columns_[c].align == Align::kRight ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  };
  print(titles);
  for (const auto& row : rows_) print(row);
}

std::string Cell(const char* format, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace flashlane::cli
