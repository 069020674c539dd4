// SPDX-License-Identifier: Apache-2.0
#include "report/series_style.h"

#include <fmt/format.h>

#include <array>

#include "recipe/declaration.h"
#include "report/chart_style.h"

namespace kvspan {
namespace {

std::string_view first_word(std::string_view name) {
  if (name.starts_with("kvspan ")) name.remove_prefix(7);
  return name.substr(0, name.find_first_of(": +["));
}

}  // namespace

bool has_own_colour(std::string_view name, std::size_t& colour) {
  std::string_view method = first_word(name);
  if (method == "llama.cpp") method = "full";  // it reads all, too
  const auto all = all_methods();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name != method) continue;
    colour = i % kSeriesColours;
    return true;
  }
  return false;
}

std::vector<SeriesStyle> styles_of(const std::vector<std::string>& names) {
  std::vector<SeriesStyle> out;
  std::array<std::size_t, kSeriesColours> used{};
  std::size_t others = 0;
  for (const std::string& name : names) {
    SeriesStyle style;
    if (!has_own_colour(name, style.colour)) style.colour = others++ % kSeriesColours;
    style.variant = used[style.colour]++;
    out.push_back(style);
  }
  return out;
}

std::string SeriesStyle::line_class() const {
  return fmt::format("kv-l{}{}", colour, variant % 2 == 1 ? " kv-dash" : "");
}

std::string SeriesStyle::fill_class() const {
  return fmt::format("kv-f{}", colour);
}

}  // namespace kvspan
