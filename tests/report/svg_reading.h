// SPDX-License-Identifier: Apache-2.0
// Reads back the SVG that charts write: its texts with the room they take, and its data attributes.
#pragma once

#include <regex>
#include <string>
#include <vector>

#include "report/svg.h"

namespace kvspan::testing {

struct TextBox {
  double left, right, top, bottom;
  std::string text;
};

inline std::string unescaped(std::string text) {
  for (const auto& [entity, plain] : {std::pair<std::string, std::string>{"&lt;", "<"},
                                      {"&gt;", ">"},
                                      {"&quot;", "\""},
                                      {"&#39;", "'"},
                                      {"&amp;", "&"}}) {
    for (std::size_t at = 0; (at = text.find(entity, at)) != std::string::npos; ++at) {
      text.replace(at, entity.size(), plain);
    }
  }
  return text;
}

inline std::vector<TextBox> texts_of(const std::string& svg) {
  static const std::regex pattern(
      "<text x=\"([^\"]+)\" y=\"([^\"]+)\" font-size=\"([^\"]+)\" class=\"[^\"]*\"( "
      "text-anchor=\"(middle|end)\")?>([^<]*)</text>");
  std::vector<TextBox> out;
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    const std::smatch& m = *it;
    const double x = std::stod(m[1]), y = std::stod(m[2]), size = std::stod(m[3]);
    const std::string text = unescaped(m[6]);
    const double width = text_width(text, size);
    const double left = m[5] == "middle" ? x - width / 2 : m[5] == "end" ? x - width : x;
    // Ascenders reach 0.75 of the size above the line, descenders 0.22 below it.
    out.push_back({left, left + width, y - 0.75 * size, y + 0.22 * size, text});
  }
  return out;
}

inline std::vector<std::string> attributes_of(const std::string& svg, const std::string& name) {
  const std::regex pattern(" " + name + "=\"([^\"]*)\"");
  std::vector<std::string> out;
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    out.push_back(unescaped((*it)[1]));
  }
  return out;
}

inline double height_of(const std::string& svg) {
  std::smatch m;
  std::regex_search(svg, m, std::regex("viewBox=\"0 0 360 ([^\"]+)\""));
  return std::stod(m[1]);
}

}  // namespace kvspan::testing
