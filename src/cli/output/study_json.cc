// SPDX-License-Identifier: Apache-2.0
#include "cli/output/study_json.h"

#include <algorithm>

#include "cli/commands/track_file.h"
#include "cli/output/perplexity_json.h"
#include "eval/bench/break_even.h"

namespace kvspan::cli {
namespace {

Json row_json(const StudyRow& row, std::int32_t context) {
  Json json{{"recipe", row.measured.recipe},
            {"family", row.family},
            {"group", row.group},
            {"label", row.label}};
  if (row.level) json["level"] = *row.level;
  if (row.rank_share) json["rank_share"] = *row.rank_share;
  json.update(to_json(row.measured, static_cast<std::size_t>(context)));
  return json;
}

StudyRow row_from(const Json& json) {
  StudyRow row;
  row.group = json.at("group").get<std::string>();
  row.label = json.at("label").get<std::string>();
  row.family = json.at("family").get<std::string>();
  if (json.contains("level")) row.level = json["level"].get<double>();
  if (json.contains("rank_share")) row.rank_share = json["rank_share"].get<double>();
  row.measured = perplexity_row_from(json);
  return row;
}

Json sample_json(const StudySample& sample) {
  Json json{{"recipe", sample.recipe}};
  json.update(track_json(sample.step));
  return json;
}

StudySample sample_from(const Json& json) {
  return {json.at("recipe").get<std::string>(), track_from(json)};
}

void add_interval(const std::string& name, const Interval& interval, Json& to) {
  to[name + "_low"] = interval.low;
  to[name + "_high"] = interval.high;
}

// A row with the intervals of its figures.
Json row_with_intervals(const StudyRow& row, const VerdictOptions& options) {
  Json json = row_json(row, options.context);
  if (row.measured.figures.positions == 0) return json;
  const RowParts parts = parts_of(row.measured, options.context);
  add_interval("dppl", dppl_interval(parts, options.bootstrap), json);
  add_interval("kl", kl_interval(parts, options.bootstrap), json);
  if (!json.contains("by_position")) return json;
  for (Json& part : json["by_position"]) {
    std::vector<Measured> within;
    for (const PositionBlock& block : row.measured.blocks) {
      const bool inside = block.position >= part["from"].get<std::int32_t>() &&
                          block.position < part["to"].get<std::int32_t>();
      if (inside) within.push_back({block.kl, static_cast<double>(block.count)});
    }
    add_interval("kl", bootstrap_interval(within, options.bootstrap), part);
  }
  return json;
}

Json number_json(const StudyNumber& number) {
  Json json{{"name", number.name}};
  if (!number.recipe.empty()) json["recipe"] = number.recipe;
  json["value"] = number.value;
  json["low"] = number.interval.low;
  json["high"] = number.interval.high;
  json["confidence"] = number.confidence;
  json["unit"] = std::string(number.unit);
  if (number.threshold) json["threshold"] = *number.threshold;
  json["n"] = number.n;
  json["decides"] = number.decides;
  return json;
}

std::vector<CostPoint> byte_points(const PerplexityRow& own, const PerplexityRow& other) {
  std::vector<CostPoint> points;
  for (std::size_t i = 0; i < std::min(own.bytes_at.size(), other.bytes_at.size()); ++i) {
    if (own.bytes_at[i].tokens != other.bytes_at[i].tokens) continue;
    points.push_back({static_cast<double>(own.bytes_at[i].tokens),
                      static_cast<double>(own.bytes_at[i].kv_bytes),
                      static_cast<double>(other.bytes_at[i].kv_bytes)});
  }
  return points;
}

// Time of a token at the depths where the bench has both.
std::vector<CostPoint> speed_points(const Json& bench, const std::string& recipe,
                                    const std::string& against) {
  std::vector<CostPoint> points;
  if (!bench.is_object() || !bench.contains("rows")) return points;
  for (const Json& own : bench["rows"]) {
    if (own.value("recipe", "") != recipe || own.value("engine", "") != "kvspan") continue;
    for (const Json& other : bench["rows"]) {
      if (other.value("recipe", "") != against || other.value("engine", "") != "kvspan") continue;
      if (other.value("depth", -1.0) != own.value("depth", -2.0)) continue;
      points.push_back({own["depth"].get<double>(), 1.0 / own.value("decode_tok_s", 0.0),
                        1.0 / other.value("decode_tok_s", 0.0)});
    }
  }
  return points;
}

}  // namespace

Json unit_json(const StudyData& data, std::int32_t context) {
  Json json{{"rows", Json::array()}, {"samples", Json::array()}};
  for (const StudyRow& row : data.rows) json["rows"].push_back(row_json(row, context));
  for (const StudySample& sample : data.samples) json["samples"].push_back(sample_json(sample));
  return json;
}

StudyData unit_from(const Json& json) {
  StudyData data;
  for (const Json& row : json.at("rows")) data.rows.push_back(row_from(row));
  for (const Json& sample : json.at("samples")) data.samples.push_back(sample_from(sample));
  return data;
}

std::vector<StudyBreakEven> break_evens(const StudyData& data, const Json& bench) {
  const PerplexityRow *full = nullptr, *quant = nullptr;
  for (const StudyRow& row : data.rows) {
    if (row.family == "full" && row.group != "noise" && full == nullptr) full = &row.measured;
    // The four bits of group length.
    if (row.family == "quant" && row.group == "length" && row.usable()) quant = &row.measured;
  }
  std::vector<StudyBreakEven> out;
  for (const StudyRow& row : data.rows) {
    const bool asked = row.group == "rank" || row.group == "equal_bytes" || row.group == "length";
    if (!asked || !row.usable() || row.family == "full") continue;
    for (const PerplexityRow* other : {full, quant}) {
      if (other == nullptr || other->recipe == row.measured.recipe) continue;
      const auto add = [&](std::string_view by, const std::vector<CostPoint>& points) {
        if (points.empty()) return;
        const auto found = break_even(points);
        StudyBreakEven length{row.measured.recipe, row.group, other->recipe, by, {}, false};
        if (found) {
          length.tokens = found->length;
          length.extrapolated = found->extrapolated;
        }
        out.push_back(std::move(length));
      };
      add("bytes", byte_points(row.measured, *other));
      add("decode", speed_points(bench, row.measured.recipe, other->recipe));
    }
  }
  return out;
}

void add_results(const StudyData& data, const std::vector<StudyVerdict>& verdicts,
                 const std::vector<StudyBreakEven>& lengths, const VerdictOptions& options,
                 Json& to) {
  to["verdicts"] = Json::array();
  for (const StudyVerdict& verdict : verdicts) {
    Json json{{"id", std::string(verdict.id)},
              {"claim", std::string(verdict.claim)},
              {"falsifier", std::string(verdict.falsifier)},
              {"verdict", std::string(name_of(verdict.outcome))},
              {"because", verdict.because},
              {"would_change", verdict.would_change},
              {"numbers", Json::array()}};
    for (const StudyNumber& number : verdict.numbers)
      json["numbers"].push_back(number_json(number));
    to["verdicts"].push_back(std::move(json));
  }
  to["groups"] = Json::array();
  for (const StudyGroup& group : study_groups()) {
    const auto recipes =
        std::count_if(data.rows.begin(), data.rows.end(),
                      [&](const StudyRow& row) { return row.group == group.name; });
    to["groups"].push_back({{"name", std::string(group.name)},
                            {"title", std::string(group.title)},
                            {"note", std::string(group.note)},
                            {"recipes", recipes}});
  }
  to["break_even"] = Json::array();
  for (const StudyBreakEven& length : lengths) {
    to["break_even"].push_back({{"recipe", length.recipe},
                                {"group", length.group},
                                {"against", length.against},
                                {"by", std::string(length.by)},
                                {"tokens", length.tokens ? Json(*length.tokens) : Json()},
                                {"extrapolated", length.extrapolated}});
  }
  to["rows"] = Json::array();
  for (const StudyRow& row : data.rows) to["rows"].push_back(row_with_intervals(row, options));
  to["samples"] = Json::array();
  for (const StudySample& sample : data.samples) to["samples"].push_back(sample_json(sample));
}

}  // namespace kvspan::cli
