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

BarChart task_bars(const Document& rows, const std::string& metric) {
  // Shares are seen against all there is, so that pages can be compared.
  BarChart chart{fmt::format("Scores: {}", metric),
                 {"task", "name"},
                 {metric, "share", false, {0.0, 1.0}},
                 {},
                 {}};
  std::vector<std::string> recipes;
  const auto other_unit = [&](const char* unit) {
    chart.y.unit = unit;
    chart.y.include = {0.0};
  };
  for (const Document& row : rows) {
    if (!row.contains(metric + "_low")) continue;
    if (metric == "ppl") other_unit("perplexity");
    if (metric.ends_with("nll")) other_unit("nats");
    index_of(chart.group_names, text_of(row, "task"));
    index_of(recipes, text_of(row, "recipe"));
  }
  for (const std::string& recipe : recipes) {
    const std::size_t groups = chart.group_names.size();
    chart.series.push_back({recipe, std::vector<std::optional<double>>(groups), {}});
    // Intervals of a perplexity reach so far up that they would flatten the bars.
    if (metric != "ppl") chart.series.back().intervals.resize(groups);
  }
  for (const Document& row : rows) {
    if (!row.contains(metric + "_low")) continue;
    const std::size_t group = index_of(chart.group_names, text_of(row, "task"));
    BarChart::Bars& bars = chart.series[index_of(recipes, text_of(row, "recipe"))];
    bars.values[group] = number_of(row, metric);
    if (bars.intervals.empty()) continue;
    bars.intervals[group] = {number_of(row, metric + "_low"), number_of(row, metric + "_high")};
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
                   {"KV cache", "bytes"},
                   {"failed", ""}};
  std::vector<std::string> metrics;
  for (const Document& row : rows) {
    const std::vector<std::string> measured = metrics_of(row);
    if (measured.empty() && !text_of(row, "failed").empty()) {  // before its first row was scored
      std::vector<Cell> cells(table.columns.size());
      cells.front() = cell_of(row, "task");
      cells[1] = cell_of(row, "recipe");
      cells.back() = cell_of(row, "failed");
      table.add(std::move(cells));
    }
    for (const std::string& metric : measured) {
      index_of(metrics, metric);
      const std::string difference = difference_of(row, metric);
      table.add({cell_of(row, "task"), cell_of(row, "recipe"), metric, cell_of(row, metric),
                 cell_of(row, metric + "_low"), cell_of(row, metric + "_high"),
                 cell_of(row, difference), cell_of(row, difference + "_low"),
                 cell_of(row, difference + "_high"), cell_of(row, metric + "_p"),
                 cell_of(row, "rows"), cell_of(row, "kv_ratio"), cell_of(row, "kv_bytes"),
                 cell_of(row, "failed")});
    }
  }
  const double length = number_of(document.json, "length");
  block.note = fmt::format(
      "Model {}, weights {}{}{}. 95 % intervals by bootstrap over rows (the lines on bars); "
      "differences are paired with the full cache.{}",
      text_of(document.json, "model"), text_of(document.json, "weights"),
      length == length ? fmt::format(", prompt and answer {} tokens at most", length) : "",
      text_of(document.json, "chat") == "yes" ? ", asked in the chat template" : "",
      text_of(document.json, "cancelled") == "yes" ? " Ended early by Ctrl-C." : "");
  for (const std::string& metric : metrics) {
    block.figures.push_back({"task_" + metric, task_bars(rows, metric)});
  }
  return {std::move(block)};
}

}  // namespace kvspan
