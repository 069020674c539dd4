// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>

#include "cli/output/inspect_json.h"
#include "cli/output/table.h"

namespace kvspan::cli {
namespace {

using enum Table::Align;

// Of one side, in the words of a table's head.
std::string words_of(Side side) {
  switch (side) {
    case Side::kKeyPre:
      return "K pre";
    case Side::kKeyPost:
      return "K post";
    case Side::kKeyAnchored:
      return "K anch";
    case Side::kValue:
      break;
  }
  return "V";
}

struct Mean {
  double sum = 0.0, count = 0.0;
  void add(double value) {
    sum += value;
    count += 1.0;
  }
  double value() const { return count > 0.0 ? sum / count : 0.0; }
};

void each_head(const Inspection& inspection, Side side, const auto& visit) {
  for (const LayerInspection& layer : inspection.layers) {
    for (const HeadInspection& head : layer.heads) {
      if (head.side == side) visit(head);
    }
  }
}

std::string rank_list(const std::vector<std::size_t>& ranks) {
  return fmt::format("{}", fmt::join(ranks, "/"));
}
std::string joined(const std::vector<Mean>& means, int digits) {
  std::vector<std::string> texts;
  for (const Mean& mean : means) texts.push_back(fmt::format("{:.{}f}", mean.value(), digits));
  return fmt::format("{}", fmt::join(texts, "/"));
}

// Numbers of one head by rank: "0.12/0.031/0.0004".
std::string listed(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(fmt::format("{:.2g}", value));
  return fmt::format("{}", fmt::join(texts, "/"));
}

}  // namespace

std::string rank_table(const Inspection& inspection) {
  std::vector<Table::Column> columns{{"layer", kRight}, {"head", kRight}};
  for (const Side side : inspection.sides) {
    columns.push_back({words_of(side), kRight});
    columns.push_back({"dim", kRight});
    columns.push_back({"top 16", kRight});
  }
  Table table(std::move(columns));
  for (const LayerInspection& layer : inspection.layers) {
    const std::size_t heads = layer.heads.size() / inspection.sides.size();
    for (std::size_t h = 0; h < heads; ++h) {
      std::vector<std::string> cells{std::to_string(layer.layer), std::to_string(h)};
      for (std::size_t s = 0; s < inspection.sides.size(); ++s) {
        const SpectrumFigures& f = layer.heads[s * heads + h].figures;
        cells.push_back(fmt::format("{}/{}/{}", f.ranks[0], f.ranks[1], f.ranks[2]));
        cells.push_back(fmt::format("{:.1f}", f.effective));
        cells.push_back(fmt::format("{:.1f} %", 100.0 * f.top16));
      }
      table.add_row(std::move(cells));
    }
  }
  return table.text();
}

std::string sensitivity_table(const Inspection& inspection) {
  std::vector<Table::Column> columns{{"layer", kRight}, {"head", kRight}, {"rank"}};
  for (const Side side : {Side::kKeyPost, Side::kValue})
    columns.push_back({words_of(side), kRight});
  Table table(std::move(columns));
  for (const LayerInspection& layer : inspection.layers) {
    for (const HeadInspection& key : layer.heads) {
      if (key.side != Side::kKeyPost) continue;
      for (const HeadInspection& value : layer.heads) {
        if (value.side != Side::kValue || value.head != key.head) continue;
        table.add_row({std::to_string(layer.layer), std::to_string(key.head), rank_list(key.ranks),
                       listed(key.sensitivities), listed(value.sensitivities)});
      }
    }
  }
  return table.text();
}

std::string residual_table(const Inspection& inspection) {
  Table table(
      {{"side"},
       {"positions", kRight},
       {fmt::format("rank {}", rank_list(inspection.layers.front().heads.front().ranks)), kRight}});
  for (const Side side : inspection.sides) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Mean>> bins;
    each_head(inspection, side, [&](const HeadInspection& head) {
      for (const PositionBin& bin : head.residuals) {
        auto& means = bins[{bin.from, bin.to}];
        means.resize(bin.residuals.size());
        for (std::size_t r = 0; r < means.size(); ++r) means[r].add(bin.residuals[r]);
      }
    });
    // Every fourth: all are in the JSON.
    std::size_t at = 0;
    for (const auto& [bin, means] : bins) {
      if (at++ % 4 != 0 && at != bins.size()) continue;
      table.add_row(
          {words_of(side), fmt::format("{}-{}", bin.first, bin.second - 1), joined(means, 3)});
    }
  }
  return table.text();
}

std::string gain_table(const Inspection& inspection) {
  std::vector<Table::Column> columns{{"layer", kRight}};
  for (const Side side : inspection.sides) {
    columns.push_back({words_of(side), kRight});
    columns.push_back({"joint", kRight});
  }
  for (const JointGain& gain : inspection.layers.front().joint) {
    columns.push_back({words_of(gain.side) + "+V", kRight});
    columns.push_back({"heads", kRight});
    columns.push_back({"all", kRight});
  }
  Table table(std::move(columns));
  const auto bits = [](double value) { return fmt::format("{:.2f}", value); };
  for (const LayerInspection& layer : inspection.layers) {
    std::vector<std::string> cells{std::to_string(layer.layer)};
    for (const LayerGain& gain : layer.gains) {
      cells.push_back(bits(gain.head));
      cells.push_back(bits(gain.layer));
    }
    for (const JointGain& gain : layer.joint) {
      for (const double value : {gain.head, gain.layer, gain.key_value})
        cells.push_back(bits(value));
    }
    table.add_row(std::move(cells));
  }
  return table.text();
}

std::string text_table(const Inspection& inspection, const std::vector<std::string>& names) {
  Table table({{"directions of"},
               {"energy of"},
               {"side"},
               {"rank", kRight},
               {"overlap", kRight},
               {"retained", kRight},
               {"RER", kRight}});
  for (const Side side : inspection.sides) {
    std::vector<std::size_t> ranks;
    std::map<std::pair<std::size_t, std::size_t>, std::vector<std::array<Mean, 3>>> pairs;
    each_head(inspection, side, [&](const HeadInspection& head) {
      ranks = head.ranks;
      for (const CorpusPair& pair : head.pairs) {
        auto& means = pairs[{pair.a, pair.b}];
        means.resize(std::max(means.size(), pair.comparisons.size()));
        for (std::size_t r = 0; r < pair.comparisons.size(); ++r) {
          means[r][0].add(pair.comparisons[r].overlap);
          means[r][1].add(pair.comparisons[r].retained);
          means[r][2].add(pair.comparisons[r].rer);
        }
      }
    });
    for (const auto& [pair, means] : pairs) {
      for (std::size_t r = 0; r < means.size(); ++r) {
        table.add_row({names[pair.first], names[pair.second], words_of(side),
                       std::to_string(ranks[r]), fmt::format("{:.3f}", means[r][0].value()),
                       fmt::format("{:.3f}", means[r][1].value()),
                       fmt::format("{:.4f}", means[r][2].value())});
      }
    }
  }
  return table.text();
}

std::string time_table(const Inspection& inspection) {
  const HeadInspection& any = inspection.layers.front().heads.front();
  Table table(
      {{"positions", kRight},
       {"side"},
       {"rank 95 %", kRight},
       {"e^entropy", kRight},
       {fmt::format("overlap with the chunk before, rank {}", rank_list(any.ranks)), kRight}});
  for (const Side side : inspection.sides) {
    struct Chunk {
      std::int32_t to = 0;
      Mean rank, effective;
      std::vector<Mean> overlaps;
    };
    std::map<std::int32_t, Chunk> chunks;
    each_head(inspection, side, [&](const HeadInspection& head) {
      for (const ChunkInspection& one : head.chunks) {
        Chunk& chunk = chunks[one.from];
        chunk.to = one.to;
        chunk.rank.add(static_cast<double>(one.figures.ranks[1]));
        chunk.effective.add(one.figures.effective);
        chunk.overlaps.resize(one.overlaps.size());
        for (std::size_t r = 0; r < one.overlaps.size(); ++r)
          chunk.overlaps[r].add(one.overlaps[r]);
      }
    });
    for (const auto& [from, chunk] : chunks) {
      table.add_row({fmt::format("{}-{}", from, chunk.to - 1), words_of(side),
                     fmt::format("{:.1f}", chunk.rank.value()),
                     fmt::format("{:.1f}", chunk.effective.value()),
                     chunk.overlaps.empty() ? "-" : joined(chunk.overlaps, 3)});
    }
  }
  return table.text();
}

}  // namespace kvspan::cli
