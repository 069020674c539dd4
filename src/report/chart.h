// SPDX-License-Identifier: Apache-2.0
// The three kinds of chart as data. Numbers given appear in the picture as data attributes,
// exactly.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "report/axis.h"

namespace kvspan {

// Whether a picture is a file of its own or part of a page that has chart_style().
enum class Setting { kFile, kPage };

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;
  enum class Draw { kPoints, kLine, kBoth } draw = Draw::kBoth;
};
// Lines and points. What has no place on a log axis is counted in a line below the plot; a series
// without any place there has none in the legend either.
struct LineChart {
  std::string title;
  Axis x, y;
  std::vector<Series> series;
  std::vector<std::string> notes{};  // below the legend, a paragraph each
  // What stands beside a point, by its x; where it would touch another it is left out. Null:
  // nothing.
  std::function<std::string(double x)> point_label{};
};
std::string svg_of(const LineChart& chart, Setting setting);

// A table of colours, with its scale.
struct HeatMap {
  std::string title;
  Axis rows, columns, value;  // `log` is not used
  std::vector<std::string> row_names, column_names;
  std::vector<std::vector<std::optional<double>>> cells;  // [rows][columns]
};
std::string svg_of(const HeatMap& map, Setting setting);

// Bars side by side in groups.
struct BarChart {
  std::string title;
  Axis groups, y;  // bars start at 0, so that y is never logarithmic
  std::vector<std::string> group_names;
  struct Bars {
    std::string name;
    std::vector<std::optional<double>> values;  // [groups]
    // [groups] or empty: a line from low to high across the end of the bar.
    std::vector<std::optional<std::pair<double, double>>> intervals{};
  };
  std::vector<Bars> series;
};
std::string svg_of(const BarChart& chart, Setting setting);

}  // namespace kvspan
