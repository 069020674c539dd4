// SPDX-License-Identifier: Apache-2.0
// inspect: ranks, spectra, residuals, overlaps and gains (docs/reference/inspect.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/blocks.h"
#include "report/inspect_means.h"

namespace kvspan {
namespace {

struct Inspected {
  const NamedDocument& document;
  std::vector<std::string> sides;
  const Document& layers;
};

void each_head(const Inspected& what, const std::string& side, const auto& visit) {
  for (const Document& layer : what.layers) {
    for (const Document& head : layer.at("heads")) {
      if (text_of(head, "side") == side) visit(layer, head);
    }
  }
}

HeatMap head_map(const Inspected& what, const std::string& side, std::string title, Axis value,
                 const auto& number) {
  HeatMap map{
      std::move(title), {"layer", "index"}, {"KV head", "index"}, std::move(value), {}, {}, {}};
  std::size_t columns = 0;
  each_head(what, side, [&](const Document& layer, const Document& head) {
    const std::string name = std::to_string(layer.at("layer").get<int>());
    if (map.row_names.empty() || map.row_names.back() != name) {
      map.row_names.push_back(name);
      map.cells.emplace_back();
    }
    const double found = number(head);
    map.cells.back().push_back(std::isfinite(found) ? std::optional(found) : std::nullopt);
    columns = std::max(columns, map.cells.back().size());
  });
  for (std::size_t j = 0; j < columns; ++j) map.column_names.push_back(std::to_string(j));
  for (auto& row : map.cells) row.resize(columns);
  return map;
}

// The middle of the ranks that lists are of: d/4 unless asked otherwise.
std::size_t middle(const Document& head) {
  return head.at("ranks").size() / 2;
}
double at_rank(const Document& object, const char* key, std::size_t index) {
  return object.contains(key) && index < object.at(key).size()
             ? object.at(key).at(index).get<double>()
             : std::nan("");
}

Block rank_block(const Inspected& what) {
  Block block;
  block.table.id = "ranks-" + id_of(what.document.name);
  block.table.title = "Ranks, entropies and sensitivities";
  block.table.columns = {{"layer", ""},
                         {"KV head", ""},
                         {"side", ""},
                         {"dimension", ""},
                         {"energy", "mean square"},
                         {"rank for 90 %", "directions"},
                         {"rank for 95 %", "directions"},
                         {"rank for 99 %", "directions"},
                         {"in the top 16", "share"},
                         {"entropy", "nats"},
                         {"effective dimension", "directions"},
                         {"coding gain", "bits an element"},
                         {"sensitivity at rank", "directions"},
                         {"sensitivity", "mean square"}};
  for (const std::string& side : what.sides) {
    each_head(what, side, [&](const Document& layer, const Document& head) {
      const std::size_t rank = middle(head);
      const double sensitivity = at_rank(head, "sensitivity", rank);
      const bool weighed = std::isfinite(sensitivity);
      block.table.add({cell_of(layer, "layer"), cell_of(head, "head"), side, cell_of(head, "dim"),
                       cell_of(head, "energy"), cell_of(head, "rank90"), cell_of(head, "rank95"),
                       cell_of(head, "rank99"), cell_of(head, "top16"), cell_of(head, "entropy"),
                       cell_of(head, "effective_dim"), cell_of(head, "gain_bits"),
                       weighed ? Cell(at_rank(head, "ranks", rank)) : Cell(),
                       weighed ? Cell(sensitivity) : Cell()});
    });
    block.figures.push_back(
        {"rank95_" + side,
         head_map(what, side, fmt::format("Rank for 95 % of the energy: {}", side),
                  {"rank", "directions"},
                  [](const Document& head) { return number_of(head, "rank95"); })});
  }
  for (const std::string& side : what.sides) {
    if (side != "key_post" && side != "value") continue;
    std::string rank;
    each_head(what, side, [&](const Document&, const Document& head) {
      rank = fmt::format("{}", at_rank(head, "ranks", middle(head)));
    });
    block.figures.push_back(
        {"sensitivity_" + side,
         head_map(what, side, fmt::format("Sensitivity to truncation at rank {}: {}", rank, side),
                  {"log10 of the modelled mean square error",
                   side == "value" ? "share of the residual stream" : "logit squared"},
                  [](const Document& head) {
                    return std::log10(at_rank(head, "sensitivity", middle(head)));
                  })});
  }
  block.note =
      "Directions that hold a share of the energy, for every layer and KV head. Keys before RoPE "
      "(key_pre), after (key_post) and anchored; sensitivity is the error that leaving out the "
      "other "
      "directions would cause, by query energy (keys) or output matrix (values).";
  return block;
}

Block spectrum_block(const Inspected& what) {
  Block block;
  block.table.id = "spectra-" + id_of(what.document.name);
  block.table.title = "Spectra";
  block.table.columns = {
      {"side", ""}, {"layer", ""}, {"direction", "index"}, {"share", "of the energy"}};
  block.note = "Eigenvalues over their sum, means over KV heads; the row \"all\" over layers too.";
  const auto add = [&](const std::string& side, const Cell& layer, const Means& means,
                       Series& series) {
    for (const auto& [index, mean] : means.values()) {
      block.table.add({side, layer, index, mean});
      series.points.emplace_back(index, mean);
    }
  };
  LineChart all{"Spectra, means over layers and heads",
                {"direction", "index"},
                {"energy of a direction", "share of all", true},
                {}};
  for (const std::string& side : what.sides) {
    Means means;
    std::map<int, Means> layers;
    each_head(what, side, [&](const Document& layer, const Document& head) {
      const double energy = number_of(head, "energy");
      if (!(energy > 0.0)) return;
      double index = 1.0;
      for (const Document& value : head.at("spectrum")) {
        const double share = value.get<double>() / energy;
        means.add(index, share);
        layers[layer.at("layer").get<int>()].add(index, share);
        index += 1.0;
      }
    });
    Series series{side, {}, Series::Draw::kLine};
    add(side, std::string("all"), means, series);
    all.series.push_back(std::move(series));
    // Five layers from first to last: more lines hide each other.
    LineChart chart{fmt::format("Spectra by layer, means over heads: {}", side),
                    {"direction", "index"},
                    {"energy of a direction", "share of all", true},
                    {}};
    std::vector<int> names;
    for (const auto& [layer, unused] : layers) names.push_back(layer);
    const std::size_t lines = std::min<std::size_t>(5, names.size());
    for (std::size_t i = 0; i < lines; ++i) {
      const int layer = names[lines == 1 ? 0 : i * (names.size() - 1) / (lines - 1)];
      Series one{fmt::format("layer {}", layer), {}, Series::Draw::kLine};
      add(side, static_cast<double>(layer), layers[layer], one);
      chart.series.push_back(std::move(one));
    }
    block.figures.push_back({"spectrum_" + side, std::move(chart)});
  }
  block.figures.insert(block.figures.begin(), {"spectrum", std::move(all)});
  return block;
}

Block residual_block(const Inspected& what) {
  Block block;
  block.table.id = "residuals-" + id_of(what.document.name);
  block.table.title = "Residuals by position";
  block.table.columns = {{"side", ""},
                         {"rank", "directions"},
                         {"position", "tokens"},
                         {"residual", "share of the length"}};
  block.note =
      "Mean of |(I-P)x| / |x| over layers and heads, P onto the leading directions of all texts.";
  for (const std::string& side : what.sides) {
    std::map<double, Means> ranks;
    each_head(what, side, [&](const Document&, const Document& head) {
      for (const Document& bin : head.at("residuals")) {
        for (std::size_t r = 0; r < head.at("ranks").size(); ++r) {
          ranks[head.at("ranks").at(r).get<double>()].add(number_of(bin, "from"),
                                                          at_rank(bin, "residual", r));
        }
      }
    });
    LineChart chart{fmt::format("Residual by position: {}", side),
                    {"position", "tokens"},
                    {"|(I-P)x| / |x|, mean", "share", false, {0.0}},
                    {}};
    for (const auto& [rank, means] : ranks) {
      Series series{fmt::format("rank {}", rank), {}};
      for (const auto& [position, mean] : means.values()) {
        block.table.add({side, rank, position, mean});
        series.points.emplace_back(position, mean);
      }
      chart.series.push_back(std::move(series));
    }
    block.figures.push_back({"residual_" + side, std::move(chart)});
  }
  return block;
}

Block chunk_block(const Inspected& what) {
  Block block;
  block.table.id = "chunks-" + id_of(what.document.name);
  block.table.title = "Chunks of the first window";
  block.table.columns = {{"side", ""},
                         {"from", "tokens"},
                         {"rank for 95 %", "directions"},
                         {"effective dimension", "directions"},
                         {"overlap with the chunk before", "share"}};
  block.note = fmt::format(
      "Chunks of {} tokens, means over layers and heads. Overlap of the leading d/4 directions (or "
      "the middle one of the ranks asked for) with those of the chunk before.",
      number_of(what.document.json, "chunk"));
  LineChart overlap{"Overlap of neighbouring chunks' directions",
                    {"start of the chunk", "tokens"},
                    {"overlap", "share", false, {0.0, 1.0}},
                    {}};
  LineChart rank{"Rank of chunks for 95 % of the energy",
                 {"start of the chunk", "tokens"},
                 {"rank", "directions", false, {0.0}},
                 {}};
  for (const std::string& side : what.sides) {
    Means ranks, effective, overlaps;
    each_head(what, side, [&](const Document&, const Document& head) {
      for (const Document& chunk : head.at("chunks")) {
        const double from = number_of(chunk, "from");
        ranks.add(from, number_of(chunk, "rank95"));
        effective.add(from, number_of(chunk, "effective_dim"));
        const double shared = at_rank(chunk, "overlap", middle(head));
        if (std::isfinite(shared)) overlaps.add(from, shared);
      }
    });
    Series one{side, {}}, two{side, {}};
    const auto shared = overlaps.values();
    for (const auto& [from, mean] : ranks.values()) {
      const auto found = shared.find(from);
      block.table.add({side, from, mean, effective.values().at(from),
                       found == shared.end() ? Cell() : Cell(found->second)});
      two.points.emplace_back(from, mean);
      if (found != shared.end()) one.points.emplace_back(from, found->second);
    }
    overlap.series.push_back(std::move(one));
    rank.series.push_back(std::move(two));
  }
  block.figures.push_back({"overlap_chunks", std::move(overlap)});
  block.figures.push_back({"rank95_chunks", std::move(rank)});
  return block;
}

}  // namespace

std::vector<Block> inspect_blocks(const NamedDocument& document) {
  Inspected what{document, {}, document.json.at("layers")};
  for (const Document& side : document.json.at("sides")) what.sides.push_back(side);
  std::vector<Block> out{rank_block(what), spectrum_block(what), residual_block(what),
                         chunk_block(what)};
  for (Block& block : inspect_layer_blocks(document, what.sides)) out.push_back(std::move(block));
  return out;
}

}  // namespace kvspan
