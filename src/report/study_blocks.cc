// SPDX-License-Identifier: Apache-2.0
// study: verdicts with the numbers that decide them, and the rows behind
// (docs/reference/formats/study.md).
#include <fmt/format.h>

#include <algorithm>

#include "report/blocks.h"

namespace kvspan {
namespace {

const std::vector<Member> kRowMembers{{"recipe", "recipe", ""},
                                      {"label", "varied", ""},
                                      {"level", "bits aimed at", "bits an element"},
                                      {"rank_share", "rank", "share of d"},
                                      {"bits", "bits", "bits an element"},
                                      {"kv_bytes", "KV cache", "bytes"},
                                      {"kv_ratio", "ratio", "x"},
                                      {"kl", "KL", "nats"},
                                      {"kl_low", "KL from", "nats"},
                                      {"kl_high", "KL to", "nats"},
                                      {"kl_p99", "KL, 99th percentile", "nats"},
                                      {"ppl", "perplexity", ""},
                                      {"dppl_pct", "perplexity change", "%"},
                                      {"dppl_low", "change from", "%"},
                                      {"dppl_high", "change to", "%"},
                                      {"top1", "same argmax", "share"},
                                      {"positions", "positions", ""},
                                      {"shared_bytes", "shared codes", "bytes"},
                                      {"failed", "failed", ""}};

Block verdict_block(const NamedDocument& document) {
  Block block;
  block.table = table_of(document.json.at("verdicts"), {{"id", "falsifier", ""},
                                                        {"verdict", "verdict on the claim", ""},
                                                        {"claim", "claim", ""},
                                                        {"falsifier", "refuted if", ""},
                                                        {"because", "because", ""},
                                                        {"would_change", "would change", ""}});
  block.table.id = "verdicts-" + id_of(document.name);
  block.table.title = "Verdicts";
  if (text_of(document.json, "complete") == "no") {
    block.note = "The study is not complete yet.";
  }
  return block;
}

Block number_block(const NamedDocument& document) {
  Document numbers = Document::array();
  for (const Document& verdict : document.json.at("verdicts")) {
    if (!verdict.contains("numbers")) continue;
    for (Document number : verdict.at("numbers")) {
      number["id"] = verdict.at("id");
      numbers.push_back(std::move(number));
    }
  }
  Block block;
  block.table = table_of(numbers, {{"id", "falsifier", ""},
                                   {"name", "number", ""},
                                   {"recipe", "recipe", ""},
                                   {"value", "value", ""},
                                   {"low", "from", ""},
                                   {"high", "to", ""},
                                   {"threshold", "threshold", ""},
                                   {"unit", "unit", ""},
                                   {"n", "n", ""},
                                   {"decides", "decides", ""}});
  block.table.id = "verdict-numbers-" + id_of(document.name);
  block.table.title = "Numbers that decide the verdicts";
  return block;
}

BarChart bars_of(const Document& rows, const std::string& title) {
  BarChart chart{title, {"variant", "recipe or key"}, {"KL to full", "nats"}, {}, {{"KL", {}}}};
  for (const Document& row : rows) {
    const double kl = number_of(row, "kl");
    if (text_of(row, "recipe") == "full" || kl != kl || !text_of(row, "failed").empty()) continue;
    const std::string label = text_of(row, "label");
    chart.group_names.push_back(label.empty() ? text_of(row, "recipe") : label);
    chart.series[0].values.push_back(kl);
  }
  return chart;
}

LineChart by_position(const Document& rows, const std::string& title) {
  LineChart chart{title, {"position in the window", "tokens"}, {"KL to full", "nats", true}, {}};
  for (const Document& row : rows) {
    if (!row.contains("by_position") || text_of(row, "recipe") == "full") continue;
    Series series{text_of(row, "recipe"), {}};
    for (const Document& part : row.at("by_position")) {
      series.points.emplace_back(number_of(part, "from"), number_of(part, "kl"));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// Tokens from which a recipe holds fewer bytes than full: one bar each, the first group's recipes.
BarChart break_even_chart(const Document& lengths) {
  BarChart chart{"Length from which a recipe holds fewer bytes than full",
                 {"recipe", ""},
                 {"from", "tokens"},
                 {},
                 {{"tokens", {}}}};
  constexpr std::size_t kMost = 12;
  for (const Document& length : lengths) {
    const double tokens = number_of(length, "tokens");
    const std::string recipe = text_of(length, "recipe");
    const bool seen = std::find(chart.group_names.begin(), chart.group_names.end(), recipe) !=
                      chart.group_names.end();
    if (text_of(length, "by") != "bytes" || text_of(length, "against") != "full" || seen) continue;
    if (tokens != tokens || chart.group_names.size() == kMost) continue;
    chart.group_names.push_back(recipe);
    chart.series[0].values.push_back(tokens);
  }
  return chart;
}

Block group_block(const NamedDocument& document, const std::string& group, const std::string& title,
                  const std::string& note, const Document& rows) {
  Block block;
  block.table = table_of(rows, kRowMembers);
  block.table.id = fmt::format("study-{}-{}", id_of(group), id_of(document.name));
  block.table.title = title;
  block.note = note;
  if (group == "length") {
    LineChart chart = by_position(rows, title);
    if (!chart.series.empty()) block.figures.push_back({"study_length", std::move(chart)});
  } else if (group == "rank" || group == "equal_bytes") {
    const auto family = [](const Document& row) { return text_of(row, "family"); };
    for (const bool kl : {true, false}) {
      std::vector<Series> series = series_of(rows, "bits", kl ? "kl" : "dppl_pct", family);
      sort_points(series);
      if (group == "rank") {  // variants of a rank, which no line joins
        for (Series& one : series) one.draw = Series::Draw::kPoints;
      }
      const Axis y = kl ? Axis{"KL to full", "nats", true}
                        : Axis{"perplexity against full", "%", false, {0.0}};
      block.figures.push_back({fmt::format("study_{}_{}", group, kl ? "kl" : "dppl"),
                               LineChart{title + (kl ? ": divergence" : ": perplexity"),
                                         {"bytes held", "bits an element", true},
                                         y,
                                         std::move(series),
                                         {},
                                         [](double bits) { return fmt::format("{:.1f}", bits); }}});
    }
  } else {
    BarChart chart = bars_of(rows, title);
    if (!chart.group_names.empty()) block.figures.push_back({"study_" + group, std::move(chart)});
  }
  return block;
}

}  // namespace

std::vector<Block> study_blocks(const NamedDocument& document) {
  std::vector<Block> out{verdict_block(document), number_block(document)};
  std::vector<std::pair<std::string, Document>> groups;  // in order of appearance
  for (const Document& row : document.json.at("rows")) {
    const std::string group = text_of(row, "group");
    std::size_t at = 0;
    while (at < groups.size() && groups[at].first != group) ++at;
    if (at == groups.size()) groups.emplace_back(group, Document::array());
    groups[at].second.push_back(row);
  }
  for (const auto& [group, rows] : groups) {
    std::string title = group, note;
    if (document.json.contains("groups")) {
      for (const Document& named : document.json.at("groups")) {
        if (text_of(named, "name") != group) continue;
        if (const std::string words = text_of(named, "title"); !words.empty()) title = words;
        note = text_of(named, "note");
      }
    }
    out.push_back(group_block(document, group, title, note, rows));
  }
  if (document.json.contains("break_even") && !document.json.at("break_even").empty()) {
    Block block;
    block.table = table_of(document.json.at("break_even"), {{"recipe", "recipe", ""},
                                                            {"group", "group", ""},
                                                            {"against", "against", ""},
                                                            {"by", "by", ""},
                                                            {"tokens", "from", "tokens"},
                                                            {"extrapolated", "extrapolated", ""}});
    block.table.id = "break-even-" + id_of(document.name);
    block.table.title = "Length from which compression pays";
    block.figures.push_back({"study_break_even", break_even_chart(document.json.at("break_even"))});
    out.push_back(std::move(block));
  }
  if (document.json.contains("samples") && !document.json.at("samples").empty()) {
    auto bounds = bound_blocks({document.name, DocumentKind::kTrack, document.json.at("samples")});
    out.insert(out.end(), bounds.begin(), bounds.end());
  }
  return out;
}

}  // namespace kvspan
