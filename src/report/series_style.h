// SPDX-License-Identifier: Apache-2.0
// Which colour, marker and stroke a series has. A method has one colour in all charts; several of
// its recipes in one chart differ by marker and stroke.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan {

struct SeriesStyle {
  std::size_t colour = 0;
  std::size_t variant = 0;  // of the colour, within a chart

  // Shapes of one colour differ, and those of one variant.
  std::size_t shape() const { return colour + variant; }
  std::string line_class() const;
  std::string fill_class() const;
};

// The colour of the method that a name begins with ("quant:bits=2", "kvspan quant", "quant [1]"),
// by its place in the table of methods; none where it is no method's.
bool has_own_colour(std::string_view name, std::size_t& colour);
// One for each name. Names that are no method's get colours in order.
std::vector<SeriesStyle> styles_of(const std::vector<std::string>& names);

}  // namespace kvspan
