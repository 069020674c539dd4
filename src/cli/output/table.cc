// SPDX-License-Identifier: Apache-2.0
#include "cli/output/table.h"

#include <algorithm>

#include "base/expect.h"
#include "cli/terminal/terminal.h"

namespace kvspan::cli {
namespace {

constexpr std::size_t kGap = 2;

std::string padded(const std::string& cell, std::size_t width, Table::Align align) {
  const std::size_t taken = display_width(cell);
  const std::string space(width > taken ? width - taken : 0, ' ');
  return align == Table::Align::kRight ? space + cell : cell + space;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add_row(std::vector<std::string> cells) {
  KVSPAN_EXPECT(cells.size() == columns_.size(), "a row has one cell a column");
  for (std::string& cell : cells) {
    std::replace_if(
        cell.begin(), cell.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  }
  rows_.push_back(std::move(cells));
}

std::string Table::text(std::size_t width) const {
  const std::size_t count = columns_.size();
  std::vector<std::size_t> widths(count);
  for (std::size_t i = 0; i < count; ++i) {
    widths[i] = display_width(columns_[i].title);
    for (const auto& row : rows_) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  if (width > 0 && count > 0) {
    std::size_t before = 0;
    for (std::size_t i = 0; i + 1 < count; ++i) before += widths[i] + kGap;
    const std::size_t room = width > before ? width - before : 0;
    widths.back() = std::min(widths.back(), std::max(room, display_width(columns_.back().title)));
  }
  std::string out;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) line.append(kGap, ' ');
      line += padded(fit_width(cell_of(i), widths[i]), widths[i], columns_[i].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  add_line([&](std::size_t i) { return columns_[i].title; });
  add_line([&](std::size_t i) { return std::string(widths[i], '-'); });
  for (const auto& row : rows_) add_line([&](std::size_t i) { return row[i]; });
  return out;
}

}  // namespace kvspan::cli
