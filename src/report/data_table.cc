// SPDX-License-Identifier: Apache-2.0
#include "report/data_table.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/svg.h"

namespace kvspan {
namespace {

std::string csv_field(std::string_view text) {
  if (text.find_first_of("\",\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string cell_text(const Cell& cell) {
  if (const auto* number = std::get_if<double>(&cell)) return exact(*number);
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  return "";
}

}  // namespace

std::string svg_of(const Figure& figure, Setting setting) {
  return std::visit([&](const auto& chart) { return svg_of(chart, setting); }, figure.chart);
}

bool shows_something(const Figure& figure) {
  if (const auto* lines = std::get_if<LineChart>(&figure.chart)) {
    const auto has_place = [](const Axis& axis, double v) {
      return std::isfinite(v) && (!axis.log || v > 0.0);
    };
    for (const Series& series : lines->series) {
      for (const auto& [x, y] : series.points) {
        if (has_place(lines->x, x) && has_place(lines->y, y)) return true;
      }
    }
    return false;
  }
  if (const auto* bars = std::get_if<BarChart>(&figure.chart)) {
    for (const BarChart::Bars& one : bars->series) {
      for (const auto& value : one.values) {
        if (value && std::isfinite(*value)) return true;
      }
    }
    return false;
  }
  for (const auto& row : std::get<HeatMap>(figure.chart).cells) {
    for (const auto& cell : row) {
      if (cell && std::isfinite(*cell)) return true;
    }
  }
  return false;
}

std::string csv_of(const Report& report) {
  std::string out = "section,table,source,row,column,unit,value\r\n";
  for (const Section& section : report.sections) {
    for (const Block& block : section.blocks) {
      const DataTable& table = block.table;
      for (std::size_t i = 0; i < table.rows.size(); ++i) {
        for (std::size_t j = 0; j < table.columns.size(); ++j) {
          if (std::holds_alternative<std::monostate>(table.rows[i][j])) continue;
          out += csv_field(section.id) + "," + csv_field(table.id) + "," + csv_field(table.source) +
                 "," + std::to_string(i) + "," + csv_field(table.columns[j].title) + "," +
                 csv_field(table.columns[j].unit) + "," + csv_field(cell_text(table.rows[i][j])) +
                 "\r\n";
        }
      }
    }
  }
  return out;
}

std::string json_of(const Report& report) {
  using Json = nlohmann::ordered_json;
  Json out{{"command", "report"}, {"warnings", report.warnings}, {"sections", Json::array()}};
  for (const Section& section : report.sections) {
    Json tables = Json::array();
    for (const Block& block : section.blocks) {
      Json columns = Json::array(), rows = Json::array();
      for (const Column& column : block.table.columns) {
        columns.push_back({{"title", column.title}, {"unit", column.unit}});
      }
      for (const auto& row : block.table.rows) {
        Json cells = Json::array();
        for (const Cell& cell : row) {
          if (const auto* number = std::get_if<double>(&cell)) {
            cells.push_back(*number);
          } else if (const auto* text = std::get_if<std::string>(&cell)) {
            cells.push_back(*text);
          } else {
            cells.push_back(nullptr);
          }
        }
        rows.push_back(std::move(cells));
      }
      tables.push_back({{"id", block.table.id},
                        {"title", block.table.title},
                        {"source", block.table.source},
                        {"columns", std::move(columns)},
                        {"rows", std::move(rows)}});
    }
    out["sections"].push_back(
        {{"id", section.id}, {"title", section.title}, {"tables", std::move(tables)}});
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvspan
