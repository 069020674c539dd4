// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "report/chart.h"
#include "report/legend.h"

namespace kvspan {
namespace {

constexpr double kPlotHeight = 190.0;

// Returns how many points have no place.
std::size_t draw_series(Svg& svg, const Series& series, const SeriesStyle& style,
                        const Scale& across, const Scale& up, const PlotBox& box) {
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
    svg.polyline(places, style.line_class());
  }
  if (series.draw == Series::Draw::kLine) return hidden;
  for (std::size_t i = 0; i < places.size(); ++i) {
    svg.marker(places[i].first, places[i].second, style.shape(), style.fill_class(), data[i]);
  }
  return hidden;
}

// A rectangle that is taken.
struct Taken {
  double left, right, top, bottom;
  bool touches(const Taken& o) const {
    return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
  }
};

// Beside points, right or left, above or below, wherever nothing else is.
void draw_labels(Svg& svg, const LineChart& chart, const Scale& across, const Scale& up,
                 const PlotBox& box) {
  constexpr double kSize = 9.0, kGap = 5.0;
  constexpr std::size_t kMostLabelled = 100;
  std::vector<Taken> taken;
  const auto each_point = [&](const auto& visit) {
    for (const Series& series : chart.series) {
      for (const auto& [x, y] : series.points) {
        if (across.shows(x) && up.shows(y)) visit(x, box.x(across.at(x)), box.y(up.at(y)));
      }
    }
  };
  std::size_t points = 0;
  each_point([&](double, double, double) { ++points; });
  if (points > kMostLabelled) return;  // a cloud, in which none could be read
  each_point([&](double, double x, double y) { taken.push_back({x - 4, x + 4, y - 4, y + 4}); });
  each_point([&](double value, double x, double y) {
    const std::string label = chart.point_label(value);
    const double width = text_width(label, kSize);
    const double left = x - kGap - width, right = x + kGap;
    for (const auto& [from, down] :
         {std::pair{right, -3.0}, {right, 9.0}, {left, -3.0}, {left, 9.0}}) {
      const Taken place{from, from + width, y + down - kSize, y + down + 1};
      const bool inside = place.left >= box.left && place.right <= kChartWidth &&
                          place.top >= box.top && place.bottom <= box.bottom;
      const bool free = std::none_of(taken.begin(), taken.end(),
                                     [&](const Taken& other) { return other.touches(place); });
      if (!inside || !free) continue;
      svg.text(from, y + down, label, Anchor::kStart, "kv-s", kSize);
      taken.push_back(place);
      return;
    }
  });
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
  std::vector<std::string> names;
  for (const Series& series : chart.series) names.push_back(series.name);
  const std::vector<SeriesStyle> styles = styles_of(names);
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const std::size_t count = draw_series(svg, chart.series[i], styles[i], across, up, box);
    const bool none = count == chart.series[i].points.size();
    if (count > 0) {
      hidden += (hidden.empty() ? "" : ", ") + chart.series[i].name;
      if (count > 1 || !none) hidden += fmt::format(" ({})", count);
    }
    if (none) continue;
    using Key = LegendEntry::Key;
    const Series::Draw draw = chart.series[i].draw;
    entries.push_back({chart.series[i].name, styles[i],
                       draw == Series::Draw::kPoints ? Key::kMarker
                       : draw == Series::Draw::kLine ? Key::kLine
                                                     : Key::kBoth});
  }
  if (chart.point_label) draw_labels(svg, chart, across, up, box);
  y = draw_legend(svg, entries, y);
  if (!hidden.empty()) y = draw_paragraph(svg, "At 0, not on these axes: " + hidden, y);
  for (const std::string& note : chart.notes) y = draw_paragraph(svg, note, y);
  return svg.finish(y, chart.title, setting == Setting::kFile);
}

}  // namespace kvspan
