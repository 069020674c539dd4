// SPDX-License-Identifier: Apache-2.0
#include "method/calibrated/calibrated_side.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fail.h"
#include "linalg/symmetric_eigen.h"
#include "method/calibrated/moments.h"
#include "method/methods/prepare_subspace.h"

namespace kvspan::detail {
namespace {

// Ranks of keys and values for early, middle and late layers: those of Holographic Spectral
// Compression, 7.6, where layers 0-5, 6-20 and 21-31 of 32 are told apart.
struct LayerRanks {
  std::int32_t keys, values;
};
LayerRanks ranks_by_depth(std::size_t layer, std::size_t layers) {
  const double depth = static_cast<double>(layer) / static_cast<double>(layers);
  if (depth < 6.0 / 32.0) return {12, 24};
  if (depth < 21.0 / 32.0) return {16, 32};
  return {20, 40};
}

Domain key_domain(const RecipePart& method) {
  const std::string_view rope = method.word("rope");
  return rope == "pre"      ? Domain::kPreRopeKey
         : rope == "anchor" ? Domain::kAnchoredKey
                            : Domain::kPostRopeKey;
}

std::int32_t anchor_of(const RecipePart& method) {
  return static_cast<std::int32_t>(method.count("anchor"));
}

// Directions of one head; nullopt: not coded. 0: by energy.
Result<std::optional<std::int32_t>> head_rank(const RecipePart& method, bool keys,
                                              std::int32_t dim) {
  const std::string_view key = keys ? "rk" : "rv";
  if (method.has("ratio")) {
    return std::optional(
        std::max(1, static_cast<std::int32_t>(std::lround(method.number("ratio") * dim))));
  }
  if (method.has(key)) {
    const std::optional<std::int32_t> rank = method.rank(key).resolve(dim);
    if (rank && *rank > dim) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}={} exceeds the head dimension {}; allowed: 1 to {}, or full", key, *rank, dim,
                  dim);
    }
    if (rank || !method.has("energy")) return rank;
    return std::optional<std::int32_t>();
  }
  return std::optional(0);
}

// The directions of all groups, so many on average as asked for, by the level that their shares of
// the energy reach: ranks=table.
Status spread(const PrepareInput& in, bool keys,
              std::vector<std::vector<std::optional<RankRule>>>& ranks) {
  struct Direction {
    double share;
    std::size_t layer, group;
  };
  std::vector<Direction> all;
  std::size_t wanted = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const LayerShape& layer = in.shape.layers[i];
    const std::vector<HeadRange> groups = head_groups(layer, in.method);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      wanted += static_cast<std::size_t>(ranks[i][g]->directions);
      const Moment moment =
          moment_of(layer, in.calibration->layers[i], keys ? key_domain(in.method) : Domain::kValue,
                    groups[g], anchor_of(in.method));
      KVSPAN_TRY(const SymmetricEigen eigen, symmetric_eigen(moment.second.view()));
      double total = 0.0;
      for (const double value : eigen.values) total += std::max(value, 0.0);
      for (const double value : eigen.values) {
        all.push_back({total > 0.0 ? value / total * groups[g].count : 0.0, i, g});
      }
      ranks[i][g]->directions = 0;
    }
  }
  // Largest shares first; every group gets at least one.
  std::stable_sort(all.begin(), all.end(),
                   [](const Direction& a, const Direction& b) { return a.share > b.share; });
  for (std::size_t k = 0; k < std::min(wanted, all.size()); ++k) {
    ++ranks[all[k].layer][all[k].group]->directions;
  }
  for (auto& layer : ranks) {
    for (auto& rank : layer) rank->directions = std::max(rank->directions, 1);
  }
  return {};
}

// The same, or as it was saved.
Status spread_once(const PrepareInput& in, bool keys,
                   std::vector<std::vector<std::optional<RankRule>>>& ranks) {
  for (const auto& layer : ranks) {
    for (const auto& rank : layer) {
      if (!rank) return {};
    }
  }
  if (!in.designs.are_saved()) KVSPAN_CHECK_OK(spread(in, keys, ranks));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::vector<HeadRange> groups = head_groups(in.shape.layers[i], in.method);
    const std::int32_t dim = keys ? in.shape.layers[i].key_dim : in.shape.layers[i].value_dim;
    for (std::size_t g = 0; g < ranks[i].size(); ++g) {
      KVSPAN_TRY(const double directions, in.designs.number([&]() -> Result<double> {
        return double(ranks[i][g]->directions);
      }));
      const double most = double(groups[g].count) * double(dim);
      if (!(directions >= 1.0 && directions <= most)) {
        return fail(ErrorCode::kCorruptData, "codes: {} directions of layer {}; allowed: 1 to {}",
                    directions, i, most);
      }
      ranks[i][g]->directions = static_cast<std::int32_t>(directions);
    }
  }
  return {};
}

// <l, l~> / <l~, l~> over independent queries and keys: tr(M S P') / tr(M P S P').
double fitted_gamma(const MatrixD& metric, const MatrixD& moment, const Code& code) {
  const auto d = moment.rows();
  MatrixD projected(d, d);  // P S: columns of S through the code
  std::vector<float> x(d), c(static_cast<std::size_t>(code.rank())), back(d);
  const auto project = [&](const MatrixD& from, bool rows, MatrixD& to) {
    for (std::size_t j = 0; j < d; ++j) {
      for (std::size_t i = 0; i < d; ++i) {
        x[i] = static_cast<float>(rows ? from(j, i) : from(i, j));
      }
      code.analyse(x.data(), c.data());
      for (std::int32_t h = 0; h < code.heads(); ++h) {
        code.synthesise(h, c.data(), back.data() + static_cast<std::ptrdiff_t>(h) * code.dim());
      }
      for (std::size_t i = 0; i < d; ++i) (rows ? to(j, i) : to(i, j)) = back[i];
    }
  };
  project(moment, false, projected);
  MatrixD both(d, d);  // P S P'
  project(projected, true, both);
  double cross = 0.0, square = 0.0;
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      cross += metric(i, j) * projected(i, j);
      square += metric(i, j) * both(i, j);
    }
  }
  return square > 0.0 ? cross / square : 1.0;
}

// gamma as a number or sqrt(r/d), as far as it is known; `fit` takes a code first.
void set_gamma(const RecipePart& method, bool keys, SidePlan& plan) {
  if (!keys) return;
  if (!method.is_word("gamma")) {
    plan.style.gamma = static_cast<float>(method.number("gamma"));
  } else if (method.word("gamma") == "sqrt" && plan.rank.directions > 0) {
    plan.style.gamma = std::sqrt(static_cast<float>(plan.rank.directions) /
                                 static_cast<float>(plan.style.heads * plan.style.dim));
  }
}

}  // namespace

std::vector<HeadRange> head_groups(const LayerShape& layer, const RecipePart& method) {
  const std::string_view share = method.word("share");
  const std::int32_t each = share == "head"    ? 1
                            : share == "layer" ? layer.kv_heads
                                               : static_cast<std::int32_t>(method.count("heads"));
  return even_groups(layer, each);
}

std::vector<HeadRange> even_groups(const LayerShape& layer, std::int32_t each) {
  std::vector<HeadRange> groups;
  for (std::int32_t first = 0; first < layer.kv_heads; first += each) {
    groups.push_back({first, std::min(each, layer.kv_heads - first)});
  }
  return groups;
}

CodecSpec store_codec(std::string_view store) {
  return *parse_codec_spec(store == "int4" ? "int4:group=32" : store);
}

Result<RankTable> rank_table(const PrepareInput& in) {
  const RecipePart& m = in.method;
  RankTable table;
  const bool by_depth = m.word("ranks") == "layers";
  for (std::size_t i = 0; i < in.shape.layers.size(); ++i) {
    const LayerShape& layer = in.shape.layers[i];
    const auto side = [&](bool keys) -> Result<std::vector<std::optional<RankRule>>> {
      const std::int32_t dim = keys ? layer.key_dim : layer.value_dim;
      std::optional<std::int32_t> rank;
      if (by_depth) {
        const LayerRanks depth = ranks_by_depth(i, in.shape.layers.size());
        rank = std::min(dim, keys ? depth.keys : depth.values);
      } else {
        KVSPAN_TRY(rank, head_rank(m, keys, dim));
      }
      std::vector<std::optional<RankRule>> rules;
      for (const HeadRange& heads : head_groups(layer, m)) {
        std::optional<RankRule> rule;
        if (rank) {
          rule = RankRule{*rank * heads.count, m.has("energy") ? m.number("energy") : 0.0};
        }
        rules.push_back(rule);
      }
      return rules;
    };
    KVSPAN_TRY(auto keys, side(true));
    KVSPAN_TRY(auto values, side(false));
    table.keys.push_back(std::move(keys));
    table.values.push_back(std::move(values));
  }
  if (m.word("ranks") == "table") {
    KVSPAN_CHECK_OK(spread_once(in, true, table.keys));
    KVSPAN_CHECK_OK(spread_once(in, false, table.values));
  }
  return table;
}

// Of the bases that come with segments.
BasisStore basis_store(const RecipePart& m, bool own_bases) {
  if (!own_bases || m.word("bases") == "f32") return BasisStore::kF32;
  return m.word("bases") == "f16" ? BasisStore::kF16 : BasisStore::kInt8;
}

namespace {

// The code that a side begins with, from the calibration.
Result<std::shared_ptr<const Code>> design_start(const PrepareInput& in,
                                                 const SubspaceMethod& method, std::size_t layer,
                                                 const HeadRange& heads, bool keys, SidePlan plan) {
  const RecipePart& m = in.method;
  const LayerShape& shape = in.shape.layers[layer];
  const LayerCalibration& calibration = in.calibration->layers[layer];
  Moment moment = moment_of(shape, calibration, plan.style.domain, heads, plan.style.anchor_block);
  std::optional<MatrixD> metric;
  const std::string_view basis = keys ? method.key_basis : "k";
  if (basis != "k") metric = by_heads(shape, calibration.query_moment, plan.style.domain, heads);
  MatrixD stacked = moment.second;
  if (basis == "qk") {
    // Queries and keys as rows of one matrix.
    for (std::size_t i = 0; i < stacked.rows() * stacked.cols(); ++i) {
      stacked.data()[i] += metric->data()[i];
    }
  }
  KVSPAN_TRY(
      const Transform transform,
      leading_transform(stacked, basis == "attn" ? std::optional(ridged(*metric)) : std::nullopt));
  plan.rank.directions = plan.rank.choose(transform.power);
  set_gamma(m, keys, plan);  // now that the rank is known
  if (keys && m.is_word("gamma") && m.word("gamma") == "fit") {
    KVSPAN_TRY(const std::shared_ptr<const Code> trial,
               transform_code(plan.style, transform, plan.rank.directions, moment.mean, nullptr,
                              MemoryKind::kShared));
    plan.style.gamma = static_cast<float>(fitted_gamma(
        by_heads(shape, calibration.query_moment, plan.style.domain, heads), moment.second, *trial));
  }
  return transform_code(plan.style, transform, plan.rank.directions, moment.mean, in.shared,
                        MemoryKind::kShared);
}

}  // namespace

Result<std::optional<SidePlan>> calibrated_side(const PrepareInput& in,
                                                const SubspaceMethod& method, std::size_t layer,
                                                const HeadRange& heads, bool keys,
                                                const std::optional<RankRule>& rank) {
  if (!rank) return std::optional<SidePlan>();
  const RecipePart& m = in.method;
  const LayerShape& shape = in.shape.layers[layer];
  SidePlan plan;
  plan.style.domain = keys ? key_domain(m) : Domain::kValue;
  plan.style.heads = heads.count;
  plan.style.dim = keys ? shape.key_dim : shape.value_dim;
  plan.style.anchor_block = anchor_of(m);
  plan.style.rope = keys ? &shape.rope : nullptr;
  plan.style.codec = store_codec(m.word("store"));
  if (method.scale_rows != 1 && is_integer(plan.style.codec.kind)) {
    plan.style.codec.unit_rows = static_cast<std::size_t>(method.scale_rows);
    plan.style.codec.unit_cols = 0;
  }
  plan.style.bases = basis_store(m, method.own_bases);
  plan.rank = *rank;
  set_gamma(m, keys, plan);
  if (!method.starts_calibrated) return std::optional(std::move(plan));

  KVSPAN_TRY(plan.start, in.designs.code(heads.count, plan.style.dim, in.shared, [&] {
    return design_start(in, method, layer, heads, keys, plan);
  }));
  plan.rank.directions = plan.start->rank();
  plan.style.gamma = plan.start->gamma();
  return std::optional(std::move(plan));
}

double calibrated_tau(const LayerCalibration& calibration, const SidePlan& side,
                      std::int32_t first_head, bool keys, double percentile) {
  const std::vector<float>& table = keys ? calibration.key_residuals : calibration.value_residuals;
  const std::size_t columns = kResidualPercentiles.size();
  // Nearest percentile tabulated, the rank between its neighbours; heads of a group averaged.
  std::size_t column = 0;
  for (std::size_t p = 1; p < columns; ++p) {
    if (std::abs(kResidualPercentiles[p] - 100.0 * percentile) <
        std::abs(kResidualPercentiles[column] - 100.0 * percentile)) {
      column = p;
    }
  }
  const double rank = static_cast<double>(side.rank.directions) / side.style.heads;
  const double place = std::clamp(8.0 * rank / side.style.dim - 1.0, 0.0, kResidualRanks - 1.0);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min<std::size_t>(below + 1, kResidualRanks - 1);
  const double part = place - static_cast<double>(below);
  double sum = 0.0;
  for (std::int32_t h = 0; h < side.style.heads; ++h) {
    const float* rows = table.data() + static_cast<std::size_t>(first_head + h) *
                                           static_cast<std::size_t>(kResidualRanks) * columns;
    sum += (1.0 - part) * rows[below * columns + column] + part * rows[above * columns + column];
  }
  return sum / side.style.heads;
}

}  // namespace kvspan::detail
