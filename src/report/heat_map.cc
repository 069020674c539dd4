// SPDX-License-Identifier: Apache-2.0
// The colour of a cell is the heat colour at an opacity between kFaint and 1, so that one scale
// serves light and dark, and text on it stays readable.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart.h"
#include "report/legend.h"

namespace kvspan {
namespace {

constexpr double kFaint = 0.06, kCellHeight = 15.0, kSmall = 9.5;

struct Range {
  double low = 0.0, high = 1.0;
  double share(double value) const { return high > low ? (value - low) / (high - low) : 1.0; }
};

Range range_of(const HeatMap& map) {
  std::vector<double> values;
  for (const auto& row : map.cells) {
    for (const auto& cell : row) {
      if (cell && std::isfinite(*cell)) values.push_back(*cell);
    }
  }
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {*low, *high};
}

std::string opacity(double share) {
  return fmt::format(" fill-opacity=\"{:.3f}\"", kFaint + (1.0 - kFaint) * share);
}

void draw_cells(Svg& svg, const HeatMap& map, const Range& range, const PlotBox& box,
                double width) {
  double widest = 0.0;
  for (const auto& row : map.cells) {
    for (const auto& cell : row) {
      if (cell) widest = std::max(widest, text_width(tick_text(*cell), kSmall));
    }
  }
  const bool lettered = widest + 2 <= width;
  for (std::size_t i = 0; i < map.cells.size(); ++i) {
    const double y = box.top + kCellHeight * static_cast<double>(i);
    for (std::size_t j = 0; j < map.cells[i].size(); ++j) {
      const auto& cell = map.cells[i][j];
      if (!cell || !std::isfinite(*cell)) continue;
      const double x = box.left + width * static_cast<double>(j);
      svg.rect(x + 0.5, y + 0.5, width - 1, kCellHeight - 1, "kv-h",
               opacity(range.share(*cell)) + attribute("data-row", map.row_names[i]) +
                   attribute("data-column", map.column_names[j]) + attribute("data-value", *cell));
      if (lettered) {
        svg.text(x + 0.5 * width, y + 11, fmt::format("{:.3g}", *cell), Anchor::kMiddle, "kv-n",
                 kSmall);
      }
    }
  }
}

// Five steps of colour from low to high, the ends' numbers below them.
double draw_scale(Svg& svg, const HeatMap& map, const Range& range, double y) {
  for (const std::string& line :
       wrapped("colour: " + axis_title(map.value), kTextSize, kChartWidth - 2 * kEdge)) {
    svg.text(kEdge, y, line);
    y += kLineHeight;
  }
  constexpr int steps = 7;
  constexpr double step = 28.0;
  for (int i = 0; i < steps; ++i) {
    svg.rect(kEdge + step * i, y - 10, step, 10, "kv-h", opacity(i / (steps - 1.0)));
  }
  y += kLineHeight - 2;
  svg.text(kEdge, y, shown(range.low));
  svg.text(kEdge + steps * step, y, shown(range.high), Anchor::kEnd);
  return y + kLineHeight;
}

}  // namespace

std::string svg_of(const HeatMap& map, Setting setting) {
  const Range range = range_of(map);
  double names = 0.0;
  for (const std::string& name : map.row_names) names = std::max(names, text_width(name, kSmall));
  names = std::min(names, 110.0);
  Svg svg;
  const double top = draw_heading(
      svg, map.title, "down: " + axis_title(map.rows) + "; across: " + axis_title(map.columns));
  const double rows = static_cast<double>(map.cells.size());
  const double columns = static_cast<double>(std::max<std::size_t>(1, map.column_names.size()));
  PlotBox box{kEdge + names + 5, kChartWidth - kEdge, top, top + rows * kCellHeight};
  const double width = std::min(64.0, (box.right - box.left) / columns);
  box.right = box.left + width * columns;
  for (std::size_t i = 0; i < map.row_names.size(); ++i) {
    svg.text(box.left - 4, box.top + kCellHeight * (static_cast<double>(i) + 1) - 4,
             fitted(map.row_names[i], kSmall, names), Anchor::kEnd, "kv-s", kSmall);
  }
  draw_cells(svg, map, range, box, width);
  double free_from = 0.0;
  for (std::size_t j = 0; j < map.column_names.size(); ++j) {
    const double x = box.left + width * (static_cast<double>(j) + 0.5);
    const std::string name = fitted(map.column_names[j], kSmall, std::max(width - 2, 24.0));
    const double half = 0.5 * text_width(name, kSmall);
    if (x - half < free_from || x + half > kChartWidth) continue;
    svg.text(x, box.bottom + 11, name, Anchor::kMiddle, "kv-s", kSmall);
    free_from = x + half + 4;
  }
  const double y = draw_scale(svg, map, range, box.bottom + 2 * kLineHeight + 2);
  return svg.finish(y, map.title, setting == Setting::kFile);
}

}  // namespace kvspan
