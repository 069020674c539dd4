// SPDX-License-Identifier: Apache-2.0
#include "cli/output/inspect_json.h"

namespace kvspan::cli {
namespace {

std::string text_of(Side side) {
  return std::string(name_of(side));
}

void add_figures(const SpectrumFigures& figures, Json& to) {
  to["energy"] = figures.energy;
  to["rank90"] = figures.ranks[0];
  to["rank95"] = figures.ranks[1];
  to["rank99"] = figures.ranks[2];
  to["top16"] = figures.top16;
  to["entropy"] = figures.entropy;
  to["effective_dim"] = figures.effective;
}

Json to_json(const ChunkInspection& chunk) {
  Json json{{"from", chunk.from}, {"to", chunk.to}, {"rows", chunk.rows}};
  add_figures(chunk.figures, json);
  json["overlap"] = chunk.overlaps;
  json["spectrum"] = chunk.spectrum;
  return json;
}

Json to_json(const CorpusPair& pair) {
  Json json{{"a", pair.a},
            {"b", pair.b},
            {"overlap", Json::array()},
            {"retained", Json::array()},
            {"rer", Json::array()}};
  for (const Comparison& one : pair.comparisons) {
    json["overlap"].push_back(one.overlap);
    json["retained"].push_back(one.retained);
    json["rer"].push_back(one.rer);
  }
  return json;
}

Json to_json(const HeadInspection& head) {
  Json json{{"side", text_of(head.side)}, {"head", head.head}, {"dim", head.spectrum.size()}};
  add_figures(head.figures, json);
  json["gain_bits"] = head.gain_bits;
  json["ranks"] = head.ranks;
  if (!head.sensitivities.empty()) json["sensitivity"] = head.sensitivities;
  json["spectrum"] = head.spectrum;
  json["texts"] = Json::array();
  for (const SpectrumFigures& figures : head.by_corpus) {
    Json one = Json::object();
    add_figures(figures, one);
    json["texts"].push_back(std::move(one));
  }
  json["pairs"] = Json::array();
  for (const CorpusPair& pair : head.pairs) json["pairs"].push_back(to_json(pair));
  json["chunks"] = Json::array();
  for (const ChunkInspection& chunk : head.chunks) json["chunks"].push_back(to_json(chunk));
  json["residuals"] = Json::array();
  for (const PositionBin& bin : head.residuals) {
    json["residuals"].push_back(
        {{"from", bin.from}, {"to", bin.to}, {"rows", bin.rows}, {"residual", bin.residuals}});
  }
  return json;
}

}  // namespace

void add_inspection(const Inspection& inspection, Json& to) {
  to["sides"] = Json::array();
  for (const Side side : inspection.sides) to["sides"].push_back(text_of(side));
  to["layers"] = Json::array();
  for (const LayerInspection& layer : inspection.layers) {
    Json json{{"layer", layer.layer},
              {"gains", Json::array()},
              {"joint_gains", Json::array()},
              {"heads", Json::array()}};
    for (const LayerGain& gain : layer.gains) {
      json["gains"].push_back(
          {{"side", text_of(gain.side)}, {"head_bits", gain.head}, {"layer_bits", gain.layer}});
    }
    for (const JointGain& gain : layer.joint) {
      json["joint_gains"].push_back({{"side", text_of(gain.side)},
                                     {"head_bits", gain.head},
                                     {"layer_bits", gain.layer},
                                     {"key_value_bits", gain.key_value}});
    }
    for (const HeadInspection& head : layer.heads) json["heads"].push_back(to_json(head));
    to["layers"].push_back(std::move(json));
  }
}

}  // namespace kvspan::cli
