// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart_style.h"

namespace kvspan {
namespace {

constexpr double kCharacter = 0.64;  // of the size: a digit of DejaVu Sans, the widest of the usual
constexpr std::size_t kShapes = 6;

std::size_t characters(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// The first `count` characters of UTF-8 text.
std::string_view first_characters(std::string_view text, std::size_t count) noexcept {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80 && count-- == 0) break;
  }
  return text.substr(0, at);
}

std::size_t fitting(double size, double width) noexcept {
  return static_cast<std::size_t>(std::max(0.0, width / (kCharacter * size)));
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string coordinate(double value) {
  std::string out = fmt::format("{:.2f}", value);
  while (out.ends_with('0')) out.pop_back();
  if (out.ends_with('.')) out.pop_back();
  return out == "-0" ? "0" : out;
}

std::string exact(double value) {
  return fmt::format("{}", value);
}

std::string shown(double value) {
  if (value == 0.0) return "0";
  const double size = std::abs(value);
  if (size >= 1e4 && size < 1e15 && value == std::floor(value)) return fmt::format("{:.0f}", value);
  if (size >= 1e4 && size < 1e6) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

double text_width(std::string_view text, double size) noexcept {
  return kCharacter * size * static_cast<double>(characters(text));
}

std::string fitted(std::string_view text, double size, double width) {
  const std::size_t room = fitting(size, width);
  if (characters(text) <= room) return std::string(text);
  return room == 0 ? "" : std::string(first_characters(text, room - 1)) + "\u2026";
}

std::vector<std::string> wrapped(std::string_view text, double size, double width) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string word = fitted(text.substr(0, end), size, width);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (!line.empty() && text_width(line + " " + word, size) > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string attribute(std::string_view name, double value) {
  return fmt::format(" {}=\"{}\"", name, exact(value));
}
std::string attribute(std::string_view name, std::string_view value) {
  return fmt::format(" {}=\"{}\"", name, escaped(value));
}

void Svg::text(double x, double y, std::string_view text, Anchor anchor, std::string_view css,
               double size) {
  constexpr std::string_view kAnchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\" class=\"{}\"{}>{}</text>\n",
                       coordinate(x), coordinate(y), coordinate(size), css,
                       kAnchors[static_cast<std::size_t>(anchor)], escaped(text));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/>\n",
                       coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2), css);
}

void Svg::rect(double x, double y, double width, double height, std::string_view css,
               std::string_view data) {
  body_ +=
      fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{}\"{}/>\n",
                  coordinate(x), coordinate(y), coordinate(width), coordinate(height), css, data);
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points, std::string_view css) {
  body_ += "<polyline points=\"";
  for (const auto& [x, y] : points) body_ += coordinate(x) + "," + coordinate(y) + " ";
  if (!points.empty()) body_.pop_back();
  body_ += fmt::format("\" class=\"{}\"/>\n", css);
}

void Svg::marker(double x, double y, std::size_t shape, std::string_view css,
                 std::string_view data) {
  constexpr double r = 3.2;
  if (shape % kShapes == 0) {
    body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{}\"{}/>\n", coordinate(x),
                         coordinate(y), r, css, data);
    return;
  }
  // Square, triangle up, diamond, triangle down, cross.
  static const std::vector<std::pair<double, double>> kOutlines[kShapes - 1] = {
      {{-.9, -.9}, {.9, -.9}, {.9, .9}, {-.9, .9}},
      {{0, -1.2}, {1.15, .8}, {-1.15, .8}},
      {{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}},
      {{0, 1.2}, {1.15, -.8}, {-1.15, -.8}},
      {{-.4, -1.2},
       {.4, -1.2},
       {.4, -.4},
       {1.2, -.4},
       {1.2, .4},
       {.4, .4},
       {.4, 1.2},
       {-.4, 1.2},
       {-.4, .4},
       {-1.2, .4},
       {-1.2, -.4},
       {-.4, -.4}}};
  body_ += "<polygon points=\"";
  for (const auto& [dx, dy] : kOutlines[shape % kShapes - 1]) {
    body_ += coordinate(x + r * dx) + "," + coordinate(y + r * dy) + " ";
  }
  body_.pop_back();
  body_ += fmt::format("\" class=\"{}\"{}/>\n", css, data);
}

std::string Svg::finish(double height, std::string_view title, bool standalone) const {
  return fmt::format(
      "<svg {}viewBox=\"0 0 {} {}\" class=\"kv-chart\" role=\"img\" aria-label=\"{}\">\n"
      "{}<rect x=\"0\" y=\"0\" width=\"100%\" height=\"100%\" class=\"kv-bg\"/>\n{}</svg>\n",
      standalone ? "xmlns=\"http://www.w3.org/2000/svg\" " : "", coordinate(kChartWidth),
      coordinate(height), escaped(title),
      standalone ? "<style>\n" + chart_style() + "</style>\n" : "", body_);
}

}  // namespace kvspan
