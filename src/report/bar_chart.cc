// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "report/chart.h"
#include "report/legend.h"

namespace kvspan {
namespace {

constexpr double kBarPlotHeight = 170.0;

// Names below their groups where they fit, else numbered below the plot.
double draw_group_names(Svg& svg, const BarChart& chart, const PlotBox& box, double width) {
  double widest = 0.0;
  for (const std::string& name : chart.group_names) {
    widest = std::max(widest, text_width(name, kTextSize));
  }
  const bool fits = widest + 4 <= width;
  double y = box.bottom + kLineHeight, free_from = 0.0;
  for (std::size_t g = 0; g < chart.group_names.size(); ++g) {
    const std::string name = fits ? chart.group_names[g] : std::to_string(g + 1);
    const double x = box.left + width * (static_cast<double>(g) + 0.5);
    const double half = 0.5 * text_width(name, kTextSize);
    if (x - half < free_from || x + half > kChartWidth) continue;
    svg.text(x, y, name, Anchor::kMiddle);
    free_from = x + half + 3;
  }
  y += kLineHeight;
  for (const std::string& line :
       wrapped(axis_title(chart.groups), kTextSize, kChartWidth - 2 * kEdge)) {
    svg.text(kChartWidth - kEdge, y, line, Anchor::kEnd);
    y += kLineHeight;
  }
  for (std::size_t g = 0; !fits && g < chart.group_names.size(); ++g) {
    svg.text(kEdge, y,
             fitted(std::to_string(g + 1) + ": " + chart.group_names[g], kTextSize,
                    kChartWidth - 2 * kEdge));
    y += kLineHeight;
  }
  return y;
}

}  // namespace

std::string svg_of(const BarChart& chart, Setting setting) {
  std::vector<double> values{0.0};
  for (const BarChart::Bars& bars : chart.series) {
    for (const auto& value : bars.values) {
      if (value) values.push_back(*value);
    }
    for (const auto& interval : bars.intervals) {
      if (!interval) continue;
      values.push_back(interval->first);
      values.push_back(interval->second);
    }
  }
  Axis axis = chart.y;
  axis.log = false;
  const Scale up(axis, values);
  Svg svg;
  const double top = draw_heading(svg, chart.title, axis_title(axis));
  const PlotBox box{kEdge + y_label_width(up) + 6, kChartWidth - kEdge, top, top + kBarPlotHeight};
  draw_y_axis(svg, up, box);
  const auto groups = static_cast<double>(std::max<std::size_t>(1, chart.group_names.size()));
  const auto series = static_cast<double>(std::max<std::size_t>(1, chart.series.size()));
  const double width = (box.right - box.left) / groups, bar = std::min(40.0, 0.86 * width / series);
  const double zero = box.y(up.at(0.0));
  std::vector<std::string> names;
  for (const BarChart::Bars& bars : chart.series) names.push_back(bars.name);
  const std::vector<SeriesStyle> styles = styles_of(names);
  std::vector<LegendEntry> entries;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    // Bars of one number say by their colour whose it is.
    if (chart.series.size() > 1) {
      entries.push_back({chart.series[s].name, styles[s], LegendEntry::Key::kBox});
    }
    for (std::size_t g = 0; g < chart.series[s].values.size(); ++g) {
      const auto& value = chart.series[s].values[g];
      if (!value || !std::isfinite(*value)) continue;
      const double x = box.left + width * (static_cast<double>(g) + 0.5) +
                       bar * (static_cast<double>(s) - 0.5 * series);
      const double y = box.y(up.at(*value));
      SeriesStyle style = styles[s];
      if (chart.series.size() == 1) has_own_colour(chart.group_names[g], style.colour);
      svg.rect(
          x, std::min(y, zero), std::max(0.5, bar - 0.7), std::abs(zero - y), style.fill_class(),
          attribute("data-group", chart.group_names[g]) +
              attribute("data-series", chart.series[s].name) + attribute("data-value", *value));
      if (g >= chart.series[s].intervals.size() || !chart.series[s].intervals[g]) continue;
      const auto& [low, high] = *chart.series[s].intervals[g];
      const double middle = x + 0.5 * (bar - 0.7);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      svg.line(middle, box.y(up.at(low)), middle, box.y(up.at(high)), "kv-w");
    }
  }
  svg.line(box.left, zero, box.right, zero, "kv-a");
  const double y = draw_legend(svg, entries, draw_group_names(svg, chart, box, width) + 4);
  return svg.finish(y, chart.title, setting == Setting::kFile);
}

}  // namespace kvspan
