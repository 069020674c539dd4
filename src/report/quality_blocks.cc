// SPDX-License-Identifier: Apache-2.0
// eval ppl: quality against bytes.
#include <fmt/format.h>

#include <algorithm>

#include "report/blocks.h"

namespace kvspan {
namespace {

const std::vector<Member> kMembers{{"recipe", "recipe", ""},
                                   {"bits", "bits", "bits an element"},
                                   {"kv_bytes", "KV cache", "bytes"},
                                   {"kv_bytes_full", "KV cache in f16", "bytes"},
                                   {"kv_ratio", "ratio", "x"},
                                   {"kl", "KL", "nats"},
                                   {"kl_p99", "KL, 99th percentile", "nats"},
                                   {"ppl", "perplexity", ""},
                                   {"dppl_pct", "perplexity change", "%"},
                                   {"top1", "same argmax", "share"},
                                   {"positions", "positions", ""},
                                   {"tokens", "tokens", ""},
                                   {"shared_bytes", "shared codes", "bytes"},
                                   {"failed", "failed", ""}};

// Rows with their cache in MiB, for an axis that people read.
Document with_mebibytes(const Document& rows) {
  Document out = rows;
  for (Document& row : out) row["kv_mib"] = number_of(row, "kv_bytes") / (1024.0 * 1024.0);
  return out;
}

Block by_position(const NamedDocument& document) {
  Block block;
  Document rows = Document::array();
  for (const Document& row : document.json.at("rows")) {
    if (!row.contains("by_position")) continue;
    for (Document part : row.at("by_position")) {
      part["recipe"] = row.at("recipe");
      rows.push_back(std::move(part));
    }
  }
  if (rows.empty()) return block;
  block.table = table_of(rows, {{"recipe", "recipe", ""},
                                {"from", "from", "position"},
                                {"to", "to", "position"},
                                {"kl", "KL", "nats"},
                                {"ppl", "perplexity", ""},
                                {"dppl_pct", "perplexity change", "%"},
                                {"top1", "same argmax", "share"},
                                {"positions", "positions", ""}});
  block.table.id = "by-position-" + id_of(document.name);
  block.table.title = "Quality by position in the window";
  block.figures.push_back(
      {"kl_by_position", LineChart{"Divergence by position in the window",
                                   {"position", "tokens"},
                                   {"KL to full", "nats", true},
                                   series_of(rows, "from", "kl", [](const Document& row) {
                                     return text_of(row, "recipe");
                                   })}});
  return block;
}

}  // namespace

std::string family_of(const std::string& recipe) {
  if (recipe.starts_with("llama.cpp")) return recipe;
  std::string out;
  for (std::size_t at = 0; at <= recipe.size();) {
    const std::size_t end = std::min(recipe.find('+', at), recipe.size());
    const std::string part = recipe.substr(at, end - at);
    out += (out.empty() ? "" : "+") + part.substr(0, part.find(':'));
    at = end + 1;
  }
  return out;
}

DataTable table_of(const Document& rows, const std::vector<Member>& members) {
  DataTable table;
  std::vector<const Member*> used;
  for (const Member& member : members) {
    const bool any = std::any_of(rows.begin(), rows.end(), [&](const Document& row) {
      return !std::holds_alternative<std::monostate>(cell_of(row, member.key));
    });
    if (!any) continue;
    used.push_back(&member);
    table.columns.push_back({member.title, member.unit});
  }
  for (const Document& row : rows) {
    std::vector<Cell> cells;
    for (const Member* member : used) cells.push_back(cell_of(row, member->key));
    table.add(std::move(cells));
  }
  return table;
}

void sort_points(std::vector<Series>& series) {
  for (Series& one : series) std::sort(one.points.begin(), one.points.end());
}

std::string machine_of(const Document& json) {
  const auto machine = json.find("machine");
  if (machine != json.end() && machine->is_object()) {
    if (std::string cpu = text_of(*machine, "cpu"); !cpu.empty()) return cpu;
  }
  const std::string level = text_of(json, "cpu_level");
  return level.empty() ? "a machine that is not named" : "a CPU with " + level;
}

DataTable quality_table(const Document& rows, std::vector<Member> first) {
  first.insert(first.end(), kMembers.begin(), kMembers.end());
  return table_of(rows, first);
}

std::vector<Figure> quality_figures(const Document& rows,
                                    const std::function<std::string(const Document&)>& name,
                                    const std::vector<std::string>& notes) {
  const Document drawn = with_mebibytes(rows);
  // All rows are of the same tokens, so that bytes say the ratio.
  double full = 0.0;
  for (const Document& row : drawn) full = std::max(full, number_of(row, "kv_bytes_full"));
  const auto label = [full](double mib) {
    return full > 0.0 && mib > 0.0 ? fmt::format("{:.1f}x", full / (1024.0 * 1024.0) / mib) : "";
  };
  const auto chart = [&](const std::string& file, const std::string& title, const std::string& key,
                         Axis y) {
    std::vector<Series> series = series_of(drawn, "kv_mib", key, name);
    sort_points(series);
    return Figure{file, LineChart{title,
                                  {"KV cache at the end of a window", "MiB", true},
                                  std::move(y),
                                  std::move(series),
                                  notes,
                                  label}};
  };
  return {chart("kl_against_bytes", "Divergence from the full cache against bytes", "kl",
                {"KL to full", "nats", true}),
          chart("dppl_against_bytes", "Perplexity change against bytes", "dppl_pct",
                {"perplexity against full", "%", false, {0.0}})};
}

std::vector<Block> quality_blocks(const NamedDocument& document) {
  const Document& rows = document.json.at("rows");
  Block block;
  block.table = quality_table(rows, {});
  block.table.id = "quality-" + id_of(document.name);
  block.table.title = fmt::format("Quality against bytes: {}", document.name);
  block.note = fmt::format(
      "Model {}, windows of {} tokens, {} of them, weights {}, on {}. KL is the mean divergence of "
      "the "
      "next-token distribution from that with the full cache; every byte of the cache counts, "
      "codes "
      "that all sequences share on a column of their own.{}",
      text_of(document.json, "model"), number_of(document.json, "ctx"),
      number_of(document.json, "windows"), text_of(document.json, "weights"),
      machine_of(document.json),
      text_of(document.json, "cancelled") == "yes" ? " Ended early by Ctrl-C." : "");
  block.figures = quality_figures(
      rows, [](const Document& row) { return family_of(text_of(row, "recipe")); }, {});
  std::vector<Block> out{std::move(block)};
  if (Block parts = by_position(document); !parts.figures.empty()) out.push_back(std::move(parts));
  return out;
}

}  // namespace kvspan
