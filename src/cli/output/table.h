// SPDX-License-Identifier: Apache-2.0
// A text table: a header line, a rule, rows; columns aligned by the widest cell.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvspan::cli {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns);
  // As many cells as columns. Line breaks inside a cell become spaces.
  void add_row(std::vector<std::string> cells);
  // Lines end with '\n' and carry no trailing spaces. Where a line would exceed `width` columns,
  // its last cell is cut (to no less than its title); 0: as wide as it gets.
  std::string text(std::size_t width = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvspan::cli
