// SPDX-License-Identifier: Apache-2.0
// Writes one SVG picture: shapes by class names whose colours chart_style.h defines, text escaped
// and measured by a rule that no usual sans-serif font exceeds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvspan {

// '&', '<', '>' and both quotes as entities; control characters that XML has no place for, as
// spaces.
std::string escaped(std::string_view text);
// In coordinates: two decimals at most, no "-0".
std::string coordinate(double value);
// All digits that reading it back needs: what data attributes, CSV and JSON hold.
std::string exact(double value);
// For people: four significant digits.
std::string shown(double value);

inline constexpr double kChartWidth = 360.0;  // of every viewBox, so that a phone shows it 1 : 1
inline constexpr double kTextSize = 11.0;

// Width that `text` is given, in the units of `size`.
double text_width(std::string_view text, double size) noexcept;
// `text` cut to `width` with an ellipsis.
std::string fitted(std::string_view text, double size, double width);
// Lines of at most `width`, broken at spaces; a longer word is cut.
std::vector<std::string> wrapped(std::string_view text, double size, double width);

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  void text(double x, double y, std::string_view text, Anchor anchor = Anchor::kStart,
            std::string_view css = "kv-s", double size = kTextSize);
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  // `data` is attributes, written as they are: attribute("data-x", ..).
  void rect(double x, double y, double width, double height, std::string_view css,
            std::string_view data = "");
  void polyline(const std::vector<std::pair<double, double>>& points, std::string_view css);
  // Shapes 0..5 differ, so that series can be told apart without colours.
  void marker(double x, double y, std::size_t shape, std::string_view css,
              std::string_view data = "");

  // The picture, `height` high. A standalone file carries its own style; inside a page the page
  // does.
  std::string finish(double height, std::string_view title, bool standalone) const;

 private:
  std::string body_;
};

std::string attribute(std::string_view name, double value);
std::string attribute(std::string_view name, std::string_view value);

}  // namespace kvspan
