// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "report/inspect_means.h"

namespace kvspan {
namespace {

std::string text_name(const NamedDocument& document, const Document& index) {
  return text_of(document.json.at("texts").at(index.get<std::size_t>()), "name");
}

struct PairMean {
  double overlap = 0.0, retained = 0.0, rer = 0.0;
};
// By places of pair and rank, which are the same for all heads of a side.
struct PairMeans {
  std::map<std::pair<std::size_t, std::size_t>, PairMean> means;
  const Document* any_head = nullptr;
};

PairMeans pair_means(const Document& layer, const std::string& side) {
  PairMeans out;
  double heads = 0.0;
  for (const Document& head : layer.at("heads")) {
    if (text_of(head, "side") != side) continue;
    out.any_head = &head;
    heads += 1.0;
    for (std::size_t p = 0; p < head.at("pairs").size(); ++p) {
      const Document& pair = head.at("pairs").at(p);
      for (std::size_t r = 0; r < head.at("ranks").size(); ++r) {
        PairMean& sum = out.means[{p, r}];
        sum.overlap += pair.at("overlap").at(r).get<double>();
        sum.retained += pair.at("retained").at(r).get<double>();
        sum.rer += pair.at("rer").at(r).get<double>();
      }
    }
  }
  for (auto& [place, sum] : out.means)
    sum = {sum.overlap / heads, sum.retained / heads, sum.rer / heads};
  return out;
}

Block text_block(const NamedDocument& document, const std::vector<std::string>& sides) {
  Block block;
  block.table.id = "texts-" + id_of(document.name);
  block.table.title = "Texts against each other";
  block.table.columns = {{"directions of", ""},
                         {"energy of", ""},
                         {"side", ""},
                         {"layer", ""},
                         {"rank", "directions"},
                         {"overlap", "share"},
                         {"retained", "of the best"},
                         {"RER", "share"}};
  block.note =
      "Leading directions of one text used for another, means over heads. Overlap is 1 for the "
      "same "
      "subspace; retained is the energy that they hold over what the other text's own directions "
      "hold; RER the energy that they leave out. Charts: the first text's directions on the second "
      "text, at the middle rank.";
  LineChart overlap{"Overlap of two texts' directions",
                    {"layer", "index"},
                    {"overlap", "share", false, {1.0}},
                    {}};
  LineChart rer{"Energy of a text outside another's directions",
                {"layer", "index"},
                {"RER", "share", false, {0.0}},
                {}};
  for (const std::string& side : sides) {
    Series shared{side, {}}, left{side, {}};
    for (const Document& layer : document.json.at("layers")) {
      const PairMeans found = pair_means(layer, side);
      const double index = number_of(layer, "layer");
      for (const auto& [place, mean] : found.means) {
        const Document& pair = found.any_head->at("pairs").at(place.first);
        block.table.add({text_name(document, pair.at("a")), text_name(document, pair.at("b")), side,
                         index, found.any_head->at("ranks").at(place.second).get<double>(),
                         mean.overlap, mean.retained, mean.rer});
        if (place.first != 0 || place.second != found.any_head->at("ranks").size() / 2) continue;
        shared.points.emplace_back(index, mean.overlap);
        left.points.emplace_back(index, mean.rer);
      }
    }
    overlap.series.push_back(std::move(shared));
    rer.series.push_back(std::move(left));
  }
  block.figures.push_back({"overlap_texts", std::move(overlap)});
  block.figures.push_back({"rer_texts", std::move(rer)});
  return block;
}

// Every text's directions on every other, all sides, layers and heads together.
HeatMap text_map(const NamedDocument& document) {
  HeatMap map{"Energy retained between texts, mean over all heads at the middle rank",
              {"directions of", "text"},
              {"energy of", "text"},
              {"retained", "of the best"},
              {},
              {},
              {}};
  const std::size_t count = document.json.at("texts").size();
  std::map<std::pair<std::size_t, std::size_t>, std::pair<double, double>> sums;
  for (const Document& layer : document.json.at("layers")) {
    for (const Document& head : layer.at("heads")) {
      for (const Document& pair : head.at("pairs")) {
        auto& [sum, n] = sums[{pair.at("a").get<std::size_t>(), pair.at("b").get<std::size_t>()}];
        sum += pair.at("retained").at(head.at("ranks").size() / 2).get<double>();
        n += 1.0;
      }
    }
  }
  map.cells.resize(count, std::vector<std::optional<double>>(count, 1.0));
  for (const auto& [place, sum] : sums) {
    map.cells.at(place.first).at(place.second) = sum.first / sum.second;
  }
  for (const Document& text : document.json.at("texts")) {
    map.row_names.push_back(text_of(text, "name"));
    map.column_names.push_back(text_of(text, "name"));
  }
  return map;
}

Figure joint_gain_chart(const NamedDocument& document, std::size_t j) {
  std::string side;
  LineChart chart{
      "",
      {"layer", "index"},
      {"gain", "bits an element", false, {0.0}},
      {{"each head apart", {}}, {"heads together", {}}, {"keys and values together", {}}}};
  for (const Document& layer : document.json.at("layers")) {
    const Document& gain = layer.at("joint_gains").at(j);
    side = text_of(gain, "side");
    const char* keys[] = {"head_bits", "layer_bits", "key_value_bits"};
    for (std::size_t i = 0; i < 3; ++i) {
      chart.series[i].points.emplace_back(number_of(layer, "layer"), number_of(gain, keys[i]));
    }
  }
  chart.title = fmt::format("What coding together saves: {} and value", side);
  return {"gain_joint_" + side, std::move(chart)};
}

Block gain_block(const NamedDocument& document, const std::vector<std::string>& sides) {
  Block block;
  block.table.id = "gains-" + id_of(document.name);
  block.table.title = "Coding gain";
  block.table.columns = {{"layer", ""},
                         {"side", ""},
                         {"each head apart", "bits an element"},
                         {"heads together", "bits an element"},
                         {"keys and values together", "bits an element"}};
  block.note =
      "Bits an element that a transform saves over one step for all elements. The three columns "
      "are "
      "of the same elements with transforms of growing reach: what they gain on each other is what "
      "coding together saves. Rows with a third figure are of keys and values, each in units of "
      "its "
      "own mean variance.";
  std::map<std::string, Means> head, whole;
  for (const Document& layer : document.json.at("layers")) {
    const double index = number_of(layer, "layer");
    for (const Document& gain : layer.at("gains")) {
      block.table.add({index, cell_of(gain, "side"), cell_of(gain, "head_bits"),
                       cell_of(gain, "layer_bits"), Cell()});
      head[text_of(gain, "side")].add(0.0, number_of(gain, "head_bits"));
      whole[text_of(gain, "side")].add(0.0, number_of(gain, "layer_bits"));
    }
    for (const Document& gain : layer.at("joint_gains")) {
      block.table.add({index, text_of(gain, "side") + " and value", cell_of(gain, "head_bits"),
                       cell_of(gain, "layer_bits"), cell_of(gain, "key_value_bits")});
    }
  }
  BarChart bars{"Coding gain by side, means over layers",
                {"side", "name"},
                {"gain", "bits an element"},
                {},
                {{"each head apart", {}}, {"heads together", {}}}};
  for (const std::string& side : sides) {
    bars.group_names.push_back(side);
    bars.series[0].values.push_back(head[side].values().at(0.0));
    bars.series[1].values.push_back(whole[side].values().at(0.0));
  }
  block.figures.push_back({"gain_sides", std::move(bars)});
  for (std::size_t j = 0; j < document.json.at("layers").front().at("joint_gains").size(); ++j) {
    block.figures.push_back(joint_gain_chart(document, j));
  }
  return block;
}

}  // namespace

std::vector<Block> inspect_layer_blocks(const NamedDocument& document,
                                        const std::vector<std::string>& sides) {
  std::vector<Block> out;
  if (document.json.at("texts").size() > 1) {
    out.push_back(text_block(document, sides));
    if (document.json.at("texts").size() > 2) {
      out.back().figures.push_back({"retained_texts", text_map(document)});
    }
  }
  out.push_back(gain_block(document, sides));
  return out;
}

}  // namespace kvspan
