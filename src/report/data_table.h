// SPDX-License-Identifier: Apache-2.0
// Numbers with their names, and the charts drawn from them: what page, CSV and JSON have in common.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "report/chart.h"

namespace kvspan {

using Cell = std::variant<std::monostate, std::string, double>;  // nothing, a text, a number

struct Column {
  std::string title, unit;  // no unit: a name or a plain count
};
struct DataTable {
  std::string id, title;  // the id is unique within a report
  std::string source;     // the file that the numbers come from
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // as many cells as columns

  void add(std::vector<Cell> row) { rows.push_back(std::move(row)); }
};

struct Figure {
  std::string name;  // a file name without ending
  std::variant<LineChart, HeatMap, BarChart> chart;
};
std::string svg_of(const Figure& figure, Setting setting);
// Whether there is anything to see: a point, a bar or a cell that has its place.
bool shows_something(const Figure& figure);

// Charts with the table behind them.
struct Block {
  DataTable table;
  std::string note;  // what is to be seen, and how it was measured
  std::vector<Figure> figures;
};
struct Section {
  std::string id, title, intro;
  std::vector<Block> blocks;
};

// The first screen.
struct Summary {
  std::vector<std::pair<std::string, std::string>> facts;    // "Model", ..
  std::vector<std::pair<std::string, std::string>> answers;  // question and sentence
  std::optional<Figure> figure;
};

struct Report {
  Summary summary;
  std::vector<Section> sections;
  std::vector<std::string> warnings;  // files that were left out, and why
};

// Every cell on a line of its own: section, table, source, row, column, unit, value. Lines end in
// "\r\n" (RFC 4180).
std::string csv_of(const Report& report);
// The same as tables.
std::string json_of(const Report& report);

}  // namespace kvspan
