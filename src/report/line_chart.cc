// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "report/chart.h"
#include "report/legend.h"

namespace kvspan {
namespace {

constexpr double kPlotHeight = 190.0;

void draw_series(Svg& svg, const Series& series, std::size_t index, const Scale& across,
                 const Scale& up, const PlotBox& box, std::size_t& hidden) {
  std::vector<std::pair<double, double>> places;
  std::vector<std::string> data;
  for (const auto& [x, y] : series.points) {
    if (!across.shows(x) || !up.shows(y)) {
      ++hidden;
      continue;
    }
    places.emplace_back(box.x(across.at(x)), box.y(up.at(y)));
    data.push_back(attribute("data-x", x) + attribute("data-y", y));
  }
  if (series.draw != Series::Draw::kPoints && places.size() > 1) {
    svg.polyline(places, line_class(index));
  }
  if (series.draw == Series::Draw::kLine) return;
  for (std::size_t i = 0; i < places.size(); ++i) {
    svg.marker(places[i].first, places[i].second, index, fill_class(index), data[i]);
  }
}

}  // namespace

std::string svg_of(const LineChart& chart, Setting setting) {
  std::vector<double> xs, ys;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  const Scale across(chart.x, xs), up(chart.y, ys);
  Svg svg;
  const double top = draw_heading(svg, chart.title, axis_title(chart.y));
  const PlotBox box{kEdge + y_label_width(up) + 6, kChartWidth - 14, top, top + kPlotHeight};
  draw_y_axis(svg, up, box);
  double y = draw_x_axis(svg, across, box, axis_title(chart.x)) + 4;
  std::size_t hidden = 0;
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    draw_series(svg, chart.series[i], i, across, up, box, hidden);
    using Key = LegendEntry::Key;
    const Series::Draw draw = chart.series[i].draw;
    entries.push_back({chart.series[i].name, i,
                       draw == Series::Draw::kPoints ? Key::kMarker
                       : draw == Series::Draw::kLine ? Key::kLine
                                                     : Key::kBoth});
  }
  y = draw_legend(svg, entries, y);
  if (hidden > 0) {
    svg.text(kEdge, y, fmt::format("{} at 0 or without a value: not on these axes", hidden));
    y += kLineHeight;
  }
  return svg.finish(y, chart.title, setting == Setting::kFile);
}

}  // namespace kvspan
