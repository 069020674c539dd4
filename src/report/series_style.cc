// SPDX-License-Identifier: Apache-2.0
#include "report/series_style.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "report/chart_style.h"

namespace kvspan {
namespace {

// The families that are drawn together most often differ; the others share colours with those that
// they seldom meet.
constexpr std::array<std::pair<std::string_view, std::size_t>, 21> kColours{
    {{"bands", 0},         {"quant", 1},    {"static", 2}, {"oscar", 3},     {"turbo", 4},
     {"kvtc", 5},          {"spectral", 6}, {"full", 7},   {"fd", 8},        {"oja", 9},
     {"rotate", 10},       {"prune", 11},   {"window", 6}, {"streaming", 9}, {"h2o", 8},
     {"scissorhands", 10}, {"snapkv", 11},  {"quest", 4},  {"shadowkv", 5},  {"auto", 0},
     {"llama.cpp", 7}}};

std::string_view first_word(std::string_view name) {
  if (name.starts_with("kvspan ")) name.remove_prefix(7);
  return name.substr(0, name.find_first_of(": +["));
}

}  // namespace

bool has_own_colour(std::string_view name, std::size_t& colour) {
  for (const auto& [method, own] : kColours) {
    if (first_word(name) != method) continue;
    colour = own;
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
