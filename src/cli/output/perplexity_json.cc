// SPDX-License-Identifier: Apache-2.0
#include "cli/output/perplexity_json.h"

#include <limits>

namespace kvspan::cli {
namespace {

PerplexityFigures figures_from(const Json& json) {
  PerplexityFigures out;
  out.positions = json.at("positions").get<std::size_t>();
  out.ppl = number_from(json.at("ppl"));
  out.dppl_pct = number_from(json.at("dppl_pct"));
  out.kl = number_from(json.at("kl"));
  out.kl_p99 = number_from(json.at("kl_p99"));
  out.top1 = number_from(json.at("top1"));
  return out;
}

Json blocks_json(const std::vector<PositionBlock>& blocks) {
  Json out{{"window", Json::array()},
           {"position", Json::array()},
           {"count", Json::array()},
           {"nll_diff", Json::array()},
           {"kl", Json::array()}};
  for (const PositionBlock& block : blocks) {
    out["window"].push_back(block.window);
    out["position"].push_back(block.position);
    out["count"].push_back(block.count);
    out["nll_diff"].push_back(block.nll_diff);
    out["kl"].push_back(block.kl);
  }
  return out;
}

std::vector<PositionBlock> blocks_from(const Json& json) {
  std::vector<PositionBlock> out(json.at("window").size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].window = json["window"][i].get<std::int32_t>();
    out[i].position = json.at("position").at(i).get<std::int32_t>();
    out[i].count = json.at("count").at(i).get<std::int32_t>();
    out[i].nll_diff = number_from(json.at("nll_diff").at(i));
    out[i].kl = number_from(json.at("kl").at(i));
  }
  return out;
}

}  // namespace

double number_from(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

void add_figures(const PerplexityFigures& figures, Json& to) {
  // Nothing was measured of a recipe that failed at once: no number, rather than a perfect 0.
  const auto measured = [&](double value) { return figures.positions > 0 ? Json(value) : Json(); };
  to["positions"] = figures.positions;
  to["ppl"] = measured(figures.ppl);
  to["dppl_pct"] = measured(figures.dppl_pct);
  to["kl"] = measured(figures.kl);
  to["kl_p99"] = measured(figures.kl_p99);
  to["top1"] = measured(figures.top1);
}

Json to_json(const PerplexityRow& row, std::size_t length) {
  Json json{{"recipe", row.recipe}};
  add_figures(row.figures, json);
  json["tokens"] = row.tokens;
  json["kv_bytes"] = row.kv_bytes;
  json["kv_bytes_full"] = row.kv_bytes_full;
  json["kv_ratio"] =
      ratio_or_null(static_cast<double>(row.kv_bytes_full), static_cast<double>(row.kv_bytes));
  json["bits"] = row.kv_bytes > 0 ? Json(row.bits()) : Json();
  json["shared_bytes"] = row.shared_bytes;
  json["compressed_positions"] = row.compressed_positions;
  if (!row.code.empty()) json["code"] = row.code;
  if (row.failed) json["failed"] = *row.failed;
  for (std::size_t b = 0; b < row.by_position.size(); ++b) {
    Json part{{"from", length * b / row.by_position.size()},
              {"to", length * (b + 1) / row.by_position.size()}};
    add_figures(row.by_position[b], part);
    json["by_position"].push_back(std::move(part));
  }
  json["by_window"] = blocks_json(row.blocks);
  Json& bytes = json["bytes_at"] = {{"tokens", Json::array()}, {"kv_bytes", Json::array()}};
  for (const BytesAt& at : row.bytes_at) {
    bytes["tokens"].push_back(at.tokens);
    bytes["kv_bytes"].push_back(at.kv_bytes);
  }
  return json;
}

PerplexityRow perplexity_row_from(const Json& json) {
  PerplexityRow row;
  row.recipe = json.at("recipe").get<std::string>();
  row.figures = figures_from(json);
  row.tokens = json.at("tokens").get<std::int32_t>();
  row.kv_bytes = json.at("kv_bytes").get<std::uint64_t>();
  row.kv_bytes_full = json.at("kv_bytes_full").get<std::uint64_t>();
  row.shared_bytes = json.at("shared_bytes").get<std::uint64_t>();
  // Files written before there was such a number: all of them.
  row.compressed_positions = json.value("compressed_positions", row.figures.positions);
  row.code = json.value("code", "");
  if (json.contains("failed")) row.failed = json["failed"].get<std::string>();
  if (json.contains("by_position")) {
    for (const Json& part : json["by_position"]) row.by_position.push_back(figures_from(part));
  }
  row.blocks = blocks_from(json.at("by_window"));
  const Json& bytes = json.at("bytes_at");
  for (std::size_t i = 0; i < bytes.at("tokens").size(); ++i) {
    row.bytes_at.push_back(
        {bytes["tokens"][i].get<std::int32_t>(), bytes.at("kv_bytes").at(i).get<std::uint64_t>()});
  }
  return row;
}

}  // namespace kvspan::cli
