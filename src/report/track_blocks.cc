// SPDX-License-Identifier: Apache-2.0
// run --track: errors of every layer and step beside their bounds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/blocks.h"

namespace kvspan {
namespace {

constexpr std::size_t kMostPoints = 240;  // of a scatter chart: more hide each other

struct Pairing {
  std::string what, error, bound, unit;
};
const Pairing kPairings[] = {{"logits", "logit_error", "logit_bound", "logit"},
                             {"attention output", "output_error", "output_bound", "output units"}};

// Pearson's, of the logarithms; not finite for fewer than two different points.
double log_correlation(const std::vector<std::pair<double, double>>& points) {
  double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (const auto& [error, bound] : points) {
    if (!(error > 0.0) || !(bound > 0.0)) continue;
    const double a = std::log(error), b = std::log(bound);
    n += 1, x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
  }
  return (n * xy - x * y) / std::sqrt((n * xx - x * x) * (n * yy - y * y));
}

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Cell finite(double value) {
  return std::isfinite(value) ? Cell(value) : Cell();
}

using ErrorsAndBounds = std::vector<std::pair<double, double>>;

std::vector<Cell> bound_row(const Cell& layer, const ErrorsAndBounds& points) {
  double errors = 0.0, largest = 0.0, bounds = 0.0, above = 0.0;
  std::vector<double> ratios;
  for (const auto& [error, bound] : points) {
    errors += error;
    bounds += bound;
    largest = std::max(largest, error);
    above += error > bound ? 1.0 : 0.0;
    if (error > 0.0) ratios.push_back(bound / error);
  }
  const auto n = static_cast<double>(points.size());
  return {layer,      n,
          errors / n, largest,
          bounds / n, finite(median(ratios)),
          above,      finite(log_correlation(points))};
}

// Every stride-th point, in the colour of its recipe, and the line on which bound and error are
// equal.
LineChart bound_chart(const Pairing& pairing, const ErrorsAndBounds& points,
                      const std::vector<std::string>& recipes, std::size_t stride) {
  LineChart chart{fmt::format("Error against bound: {}", pairing.what),
                  {"measured error", pairing.unit, true},
                  {"bound", pairing.unit, true},
                  {{"bound = error", {}, Series::Draw::kLine}}};
  double low = 1e300, high = 0.0;
  for (std::size_t i = 0; i < points.size(); i += stride) {
    if (!(points[i].first > 0.0)) continue;
    std::size_t at = 1;
    while (at < chart.series.size() && chart.series[at].name != recipes[i]) ++at;
    if (at == chart.series.size()) chart.series.push_back({recipes[i], {}, Series::Draw::kPoints});
    chart.series[at].points.push_back(points[i]);
    low = std::min(low, points[i].first);
    high = std::max(high, points[i].first);
  }
  if (high > 0.0) chart.series[0].points = {{low, low}, {high, high}};
  return chart;
}

Block bound_block(const NamedDocument& document, const Pairing& pairing) {
  std::map<int, ErrorsAndBounds> layers;
  ErrorsAndBounds all;
  std::vector<std::string>
      recipes;  // of `all`; a file of --track is of one, which it does not name
  for (const Document& line : document.json) {
    const double error = number_of(line, pairing.error), bound = number_of(line, pairing.bound);
    if (!std::isfinite(error) || !std::isfinite(bound)) continue;
    layers[line.at("layer").get<int>()].emplace_back(error, bound);
    all.emplace_back(error, bound);
    const std::string recipe = text_of(line, "recipe");
    recipes.push_back(recipe.empty() ? "steps" : recipe);
  }
  Block block;
  if (all.empty()) return block;
  block.table.id = fmt::format("bound-{}-{}", id_of(pairing.what), id_of(document.name));
  block.table.title = fmt::format("Error against bound, {}: {}", pairing.what, document.name);
  block.table.columns = {{"layer", ""},
                         {"steps", ""},
                         {"mean error", pairing.unit},
                         {"largest error", pairing.unit},
                         {"mean bound", pairing.unit},
                         {"bound over error, median", "x"},
                         {"errors above their bound", "steps"},
                         {"correlation of logarithms", ""}};
  for (const auto& [layer, points] : layers) {
    block.table.add(bound_row(static_cast<double>(layer), points));
  }
  block.table.add(bound_row(std::string("all"), all));
  block.note =
      "Each point is one layer and step; a certificate holds where it lies on or above the line.";
  const std::size_t stride = (all.size() + kMostPoints - 1) / kMostPoints;
  if (stride > 1) block.note += fmt::format(" Drawn is every {}th.", stride);
  block.figures.push_back(
      {"bound_" + id_of(pairing.what), bound_chart(pairing, all, recipes, stride)});
  return block;
}

Block position_block(const NamedDocument& document) {
  struct Sum {
    double steps = 0, relative = 0, correlation = 0, overlap = 0;
  };
  std::map<double, Sum> positions;
  for (const Document& line : document.json) {
    const double norm = number_of(line, "output_norm");
    Sum& sum = positions[number_of(line, "position")];
    sum.steps += 1;
    sum.relative += norm > 0.0 ? number_of(line, "output_error") / norm : 0.0;
    sum.correlation += number_of(line, "attention_correlation");
    sum.overlap += number_of(line, "top10_overlap");
  }
  Block block;
  block.table.id = "error-position-" + id_of(document.name);
  block.table.title = fmt::format("Error by position: {}", document.name);
  block.table.columns = {{"position", "tokens"},
                         {"layers", ""},
                         {"relative output error", "share"},
                         {"attention correlation", ""},
                         {"top-10 overlap", "share"}};
  Series error{"relative output error", {}};
  for (const auto& [position, sum] : positions) {
    block.table.add({position, sum.steps, finite(sum.relative / sum.steps),
                     finite(sum.correlation / sum.steps), finite(sum.overlap / sum.steps)});
    error.points.emplace_back(position, sum.relative / sum.steps);
  }
  block.note = "Means over layers, against exact attention over the same rows.";
  block.figures.push_back(
      {"error_by_position", LineChart{"Attention error by position",
                                      {"position of the query", "tokens"},
                                      {"|o - o^| / |o|, mean over layers", "share", false, {0.0}},
                                      {std::move(error)}}});
  return block;
}

}  // namespace

std::vector<Block> bound_blocks(const NamedDocument& document) {
  std::vector<Block> out;
  for (const Pairing& pairing : kPairings) {
    if (Block block = bound_block(document, pairing); !block.figures.empty()) {
      out.push_back(std::move(block));
    }
  }
  return out;
}

std::vector<Block> track_blocks(const NamedDocument& document) {
  std::vector<Block> out = bound_blocks(document);
  out.push_back(position_block(document));
  return out;
}

}  // namespace kvspan
