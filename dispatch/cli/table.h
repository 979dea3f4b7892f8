// Plain-text tables: columns as wide as their widest cell, numbers to the right.
#ifndef FLASHLANE_DISPATCH_CLI_TABLE_H_
#define FLASHLANE_DISPATCH_CLI_TABLE_H_

#include <iosfwd>
#include <string>
#include <vector>

namespace flashlane::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);
  void Add(std::vector<std::string> cells);  // one per column
  void AddBlankLine();
  bool empty() const { return rows_.empty(); }
  void Print(std::ostream& out) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a blank line
};

// A number for a cell: printf's `format` on it, "inf" and "nan" where it is none.
std::string Cell(const char* format, double value);

}  // namespace flashlane::cli

#endif  // FLASHLANE_DISPATCH_CLI_TABLE_H_
