// SPDX-License-Identifier: Apache-2.0
// What charts have around their plots: a title, axes with ticks and units, a legend.
#pragma once

#include <string>
#include <vector>

#include "report/axis.h"
#include "report/series_style.h"
#include "report/svg.h"

namespace kvspan {

inline constexpr double kLineHeight = 15.0;
inline constexpr double kEdge = 6.0;  // kept free left and right

// Title lines, then `below` (what is up the y axis); returns the y where the plot may begin.
double draw_heading(Svg& svg, const std::string& title, const std::string& below);

struct LegendEntry {
  std::string name;
  SeriesStyle style;
  enum class Key { kMarker, kLine, kBoth, kBox } key = Key::kMarker;
};
// Entries in rows from `y` on, names cut to the width; returns the y below.
double draw_legend(Svg& svg, const std::vector<LegendEntry>& entries, double y);

struct PlotBox {
  double left, right, top, bottom;
  double x(double share) const { return left + share * (right - left); }
  double y(double share) const { return bottom - share * (bottom - top); }
};
// Tick labels of the y axis with grid lines; `box.left` leaves room for them.
double y_label_width(const Scale& scale);
void draw_y_axis(Svg& svg, const Scale& scale, const PlotBox& box);
// Ticks that fit beside each other, then the axis' title; returns the y below.
double draw_x_axis(Svg& svg, const Scale& scale, const PlotBox& box, const std::string& title);

}  // namespace kvspan
