// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "report/chart.h"
#include "report/legend.h"

namespace kvspan {
namespace {

constexpr double kPlotHeight = 190.0;

// Returns how many points have no place.
std::size_t draw_series(Svg& svg, const Series& series, std::size_t index, const Scale& across,
                        const Scale& up, const PlotBox& box) {
  std::size_t hidden = 0;
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
  if (series.draw == Series::Draw::kLine) return hidden;
  for (std::size_t i = 0; i < places.size(); ++i) {
    svg.marker(places[i].first, places[i].second, index, fill_class(index), data[i]);
  }
  return hidden;
}

double draw_paragraph(Svg& svg, const std::string& text, double y) {
  for (const std::string& line : wrapped(text, kTextSize, kChartWidth - 2 * kEdge)) {
    svg.text(kEdge, y, line);
    y += kLineHeight;
  }
  return y;
}

}  // namespace

std::string svg_of(const LineChart& chart, Setting setting) {
  std::vector<double> xs, ys;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      if ((chart.x.log && !(x > 0.0)) || (chart.y.log && !(y > 0.0))) continue;  // has no place
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
  std::string hidden;
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const std::size_t count = draw_series(svg, chart.series[i], i, across, up, box);
    const bool none = count == chart.series[i].points.size();
    if (count > 0) {
      hidden += (hidden.empty() ? "" : ", ") + chart.series[i].name;
      if (count > 1 || !none) hidden += fmt::format(" ({})", count);
    }
    if (none) continue;
    using Key = LegendEntry::Key;
    const Series::Draw draw = chart.series[i].draw;
    entries.push_back({chart.series[i].name, i,
                       draw == Series::Draw::kPoints ? Key::kMarker
                       : draw == Series::Draw::kLine ? Key::kLine
                                                     : Key::kBoth});
  }
  y = draw_legend(svg, entries, y);
  if (!hidden.empty()) y = draw_paragraph(svg, "At 0, not on these axes: " + hidden, y);
  for (const std::string& note : chart.notes) y = draw_paragraph(svg, note, y);
  return svg.finish(y, chart.title, setting == Setting::kFile);
}

}  // namespace kvspan
