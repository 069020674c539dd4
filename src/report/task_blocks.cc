// SPDX-License-Identifier: Apache-2.0
// eval TASK: scores of recipes.
#include <fmt/format.h>

#include <algorithm>

#include "report/blocks.h"

namespace kvspan {
namespace {

// Members of a row that are measured: those with an interval.
std::vector<std::string> metrics_of(const Document& row) {
  std::vector<std::string> out;
  for (const auto& [key, value] : row.items()) {
    if (!value.is_number() || !row.contains(key + "_low") || !row.contains(key + "_high")) continue;
    if (key.ends_with("_diff") || key.ends_with("_diff_nats")) continue;
    out.push_back(key);
  }
  return out;
}

std::string difference_of(const Document& row, const std::string& metric) {
  return row.contains(metric + "_diff_nats") ? metric + "_diff_nats" : metric + "_diff";
}

std::size_t index_of(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

BarChart bars_of(const Document& rows, const std::string& metric) {
  BarChart chart{fmt::format("Scores: {}", metric), {"task", "name"}, {metric, "share"}, {}, {}};
  std::vector<std::string> recipes;
  for (const Document& row : rows) {
    if (!row.contains(metric + "_low")) continue;
    if (row.contains(metric + "_diff_nats")) chart.y.unit = "perplexity";
    if (metric.ends_with("nll")) chart.y.unit = "nats";
    index_of(chart.group_names, text_of(row, "task"));
    index_of(recipes, text_of(row, "recipe"));
  }
  for (const std::string& recipe : recipes) {
    chart.series.push_back({recipe, std::vector<std::optional<double>>(chart.group_names.size())});
  }
  for (const Document& row : rows) {
    if (!row.contains(metric + "_low")) continue;
    const std::size_t group = index_of(chart.group_names, text_of(row, "task"));
    chart.series[index_of(recipes, text_of(row, "recipe"))].values[group] = number_of(row, metric);
  }
  return chart;
}

}  // namespace

std::vector<Block> task_blocks(const NamedDocument& document) {
  const Document& rows = document.json.at("rows");
  Block block;
  DataTable& table = block.table;
  table.id = "task-" + id_of(document.name);
  table.title = fmt::format("Tasks: {}", document.name);
  table.columns = {{"task", ""},
                   {"recipe", ""},
                   {"metric", ""},
                   {"value", ""},
                   {"95 % from", ""},
                   {"95 % to", ""},
                   {"against full", ""},
                   {"95 % from", "against full"},
                   {"95 % to", "against full"},
                   {"p", ""},
                   {"rows", ""},
                   {"ratio", "x"},
                   {"KV cache", "bytes"}};
  std::vector<std::string> metrics;
  for (const Document& row : rows) {
    for (const std::string& metric : metrics_of(row)) {
      index_of(metrics, metric);
      const std::string difference = difference_of(row, metric);
      table.add({cell_of(row, "task"), cell_of(row, "recipe"), metric, cell_of(row, metric),
                 cell_of(row, metric + "_low"), cell_of(row, metric + "_high"),
                 cell_of(row, difference), cell_of(row, difference + "_low"),
                 cell_of(row, difference + "_high"), cell_of(row, metric + "_p"),
                 cell_of(row, "rows"), cell_of(row, "kv_ratio"), cell_of(row, "kv_bytes")});
    }
  }
  block.note = fmt::format(
      "Model {}. Intervals by bootstrap over rows; differences are paired with the full cache.",
      text_of(document.json, "model"));
  for (const std::string& metric : metrics) {
    block.figures.push_back({"task_" + metric, bars_of(rows, metric)});
  }
  return {std::move(block)};
}

}  // namespace kvspan
