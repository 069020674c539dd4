// SPDX-License-Identifier: Apache-2.0
#include "report/legend.h"

#include <algorithm>

namespace kvspan {
namespace {

constexpr std::size_t kTicksUp = 6, kTicksAlong = 7;
constexpr double kKeyWidth = 20.0;

}  // namespace

double draw_heading(Svg& svg, const std::string& title, const std::string& below) {
  double y = kLineHeight;
  constexpr double size = 12.5;  // and bold, which takes more room
  for (const std::string& line : wrapped(title, 1.13 * size, kChartWidth - 2 * kEdge)) {
    svg.text(kEdge, y, line, Anchor::kStart, "kv-t", size);
    y += kLineHeight + 1;
  }
  for (const std::string& line : wrapped(below, kTextSize, kChartWidth - 2 * kEdge)) {
    svg.text(kEdge, y, line);
    y += kLineHeight;
  }
  return y;
}

double draw_legend(Svg& svg, const std::vector<LegendEntry>& entries, double y) {
  double x = kEdge;
  bool begun = false;
  for (const LegendEntry& entry : entries) {
    const std::string name = fitted(entry.name, kTextSize, kChartWidth - 2 * kEdge - kKeyWidth - 4);
    const double width = kKeyWidth + text_width(name, kTextSize) + 12;
    if (begun && x + width > kChartWidth - kEdge + 12) {
      x = kEdge;
      y += kLineHeight;
    }
    const double middle = y - 3.5;
    if (entry.key == LegendEntry::Key::kBox) {
      svg.rect(x + 2, middle - 5, 14, 10, entry.style.fill_class());
    } else {
      if (entry.key != LegendEntry::Key::kMarker) {
        svg.line(x, middle, x + 16, middle, entry.style.line_class());
      }
      if (entry.key != LegendEntry::Key::kLine) {
        svg.marker(x + 8, middle, entry.style.shape(), entry.style.fill_class());
      }
    }
    svg.text(x + kKeyWidth, y, name, Anchor::kStart, "kv-n");
    x += width;
    begun = true;
  }
  return begun ? y + kLineHeight : y;
}

double y_label_width(const Scale& scale) {
  double width = 0.0;
  for (const double tick : scale.ticks(kTicksUp)) {
    width = std::max(width, text_width(tick_text(tick), kTextSize));
  }
  return width;
}

void draw_y_axis(Svg& svg, const Scale& scale, const PlotBox& box) {
  for (const double tick : scale.ticks(kTicksUp)) {
    const double y = box.y(scale.at(tick));
    svg.line(box.left, y, box.right, y, "kv-g");
    svg.text(box.left - 5, y + 4, tick_text(tick), Anchor::kEnd);
  }
  svg.line(box.left, box.top, box.left, box.bottom, "kv-a");
}

double draw_x_axis(Svg& svg, const Scale& scale, const PlotBox& box, const std::string& title) {
  double free_from = 0.0;  // labels left to right, those that would touch left out
  for (const double tick : scale.ticks(kTicksAlong)) {
    const double x = box.x(scale.at(tick));
    const std::string label = tick_text(tick);
    const double half = 0.5 * text_width(label, kTextSize);
    svg.line(x, box.bottom, x, box.bottom + 4, "kv-a");
    const double middle = std::min(x, kChartWidth - half);  // the last stays inside
    if (middle - half < free_from) continue;
    svg.text(middle, box.bottom + kLineHeight, label, Anchor::kMiddle);
    free_from = middle + half + 5;
  }
  svg.line(box.left, box.bottom, box.right, box.bottom, "kv-a");
  double y = box.bottom + 2 * kLineHeight;
  for (const std::string& line : wrapped(title, kTextSize, kChartWidth - 2 * kEdge)) {
    svg.text(kChartWidth - kEdge, y, line, Anchor::kEnd);
    y += kLineHeight;
  }
  return y;
}

}  // namespace kvspan
