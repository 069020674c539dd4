// SPDX-License-Identifier: Apache-2.0
// static, fd, rotate, oja and spectral: ranks, domains and bases of every group of heads.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fail.h"
#include "method/calibrated_side.h"
#include "method/fd_policy.h"
#include "method/fixed_policy.h"
#include "method/oja_policy.h"
#include "method/prepare_parts.h"
#include "method/rotate_policy.h"
#include "method/spectral_policy.h"

namespace kvspan::detail {
namespace {

constexpr std::int32_t kUnit = 64;

FdOptions fd_options(const PrepareInput& in, std::size_t layer, const CodingPlan& plan) {
  const RecipePart& m = in.method;
  FdOptions options;
  options.chunk = static_cast<std::int32_t>(m.count("chunk"));
  options.min_chunk = static_cast<std::int32_t>(m.count("min_chunk"));
  options.shared = m.on("shared");
  options.warm = static_cast<std::int32_t>(m.count("warm"));
  options.lookahead = static_cast<std::int32_t>(m.count("lookahead"));
  if (m.word("update") == "subsample") options.every = static_cast<std::int32_t>(m.count("step"));
  if (!m.is_word("merge")) options.merge = m.number("merge");
  const auto tau = [&](bool keys) {
    const std::string_view key = m.has("tau") ? "tau" : keys ? "tau_k" : "tau_v";
    if (!m.is_word(key)) return m.number(key);
    const std::optional<SidePlan>& side = keys ? plan.keys : plan.values;
    return side ? calibrated_tau(in.calibration->layers[layer], *side, plan.first_head, keys,
                                 m.number("percentile"))
                : 1.0;
  };
  options.key_tau = tau(true);
  options.value_tau = tau(false);
  return options;
}

OjaPolicyOptions oja_options(const RecipePart& m) {
  OjaPolicyOptions options;
  options.eta_prefill = m.number("eta_prefill");
  options.eta = m.number("eta");
  options.top = m.number("top");
  options.norm = m.word("norm") == "none"    ? OjaNorm::kNone
                 : m.word("norm") == "token" ? OjaNorm::kToken
                                             : OjaNorm::kBatch;
  options.stale = m.word("stale") == "segment"  ? Stale::kSegment
                  : m.word("stale") == "rotate" ? Stale::kRotate
                                                : Stale::kReuse;
  return options;
}

std::int32_t unit_of(const RecipePart& m) {
  if (m.name() == "rotate") return static_cast<std::int32_t>(m.count("every"));
  if (m.name() == "oja") return static_cast<std::int32_t>(m.count("buffer"));
  if (m.name() == "spectral") return static_cast<std::int32_t>(m.count("block"));
  return kUnit;
}

// l as a multiple of the rank; a fixed number of rows is rounded up to one.
std::int32_t sketch_per_rank(const RecipePart& m, const CodingPlan& plan) {
  const SketchRows rows = m.rows("sketch");
  if (rows.times_rank) return std::max(1, rows.count);
  std::int32_t rank = 1;
  if (plan.keys) rank = std::max(rank, plan.keys->rank.directions);
  if (plan.values) rank = std::max(rank, plan.values->rank.directions);
  return std::max(1, (rows.count + rank - 1) / rank);
}

void set_policy(const PrepareInput& in, std::size_t layer, std::shared_ptr<const CodingPlan> plan,
                PreparedGroup& group) {
  const RecipePart& m = in.method;
  if (m.name() == "static") {
    group.make_policy = [plan](const auto&) { return std::make_unique<FixedPolicy>(plan); };
  } else if (m.name() == "spectral") {
    group.options.scores = plan->weigh_values;
    group.observed_queries = plan->weigh_values ? kAllQueries : 0;
    group.make_policy = [plan](const auto&) { return std::make_unique<SpectralPolicy>(plan); };
  } else if (m.name() == "rotate") {
    group.make_policy = [plan, per_rank = sketch_per_rank(m, *plan)](const auto& ledger) {
      return std::make_unique<RotatePolicy>(plan, per_rank, ledger);
    };
  } else if (m.name() == "oja") {
    group.options.scores = true;
    group.observed_queries = static_cast<std::int32_t>(m.count("queries"));
    group.make_policy = [plan, options = oja_options(m)](const auto& ledger) {
      return std::make_unique<OjaPolicy>(plan, options, ledger);
    };
  } else {
    FdOptions options = fd_options(in, layer, *plan);
    options.sketch_per_rank = sketch_per_rank(m, *plan);
    group.make_policy = [plan, options](const auto& ledger) {
      return std::make_unique<FdPolicy>(plan, options, ledger);
    };
  }
}

// fd: shared=on has keys and values as rows of the same sketch.
Status check_shared_sketch(const RecipePart& m, const LayerShape& shape, const RankTable& ranks,
                           std::size_t layer) {
  if (m.name() != "fd" || !m.on("shared")) return {};
  if (shape.key_dim != shape.value_dim) {
    return fail(ErrorCode::kInvalidArgument,
                "fd: shared=on needs keys and values of one dimension; layer {} has {} and {}",
                layer, shape.key_dim, shape.value_dim);
  }
  for (std::size_t g = 0; g < ranks.keys[layer].size(); ++g) {
    if (ranks.keys[layer][g] && ranks.values[layer][g]) continue;
    return fail(ErrorCode::kInvalidArgument,
                "fd: shared=on with rk=full or rv=full; allowed: ranks for both");
  }
  return {};
}

}  // namespace

PreparedLayers prepare_subspace(const PrepareInput& in) {
  const RecipePart& m = in.method;
  KVSPAN_TRY(const RankTable ranks, rank_table(in));
  std::vector<PreparedLayer> layers;
  for (std::size_t i = 0; i < in.shape.layers.size(); ++i) {
    const LayerShape& shape = in.shape.layers[i];
    PreparedLayer layer;
    layer.reconstruct = m.name() == "static" && m.word("read") == "reconstruct";
    KVSPAN_CHECK_OK(check_shared_sketch(m, shape, ranks, i));
    const std::vector<HeadRange> groups = head_groups(shape, m);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      auto plan = std::make_shared<CodingPlan>();
      plan->first_head = groups[g].first;
      plan->heads = groups[g].count;
      plan->recent = static_cast<std::int32_t>(m.count("recent"));
      plan->unit = unit_of(m);
      plan->weigh_values = m.name() == "spectral" && m.word("weight") == "attention";
      KVSPAN_TRY(plan->keys, calibrated_side(in, i, groups[g], true, ranks.keys[i][g]));
      KVSPAN_TRY(plan->values, calibrated_side(in, i, groups[g], false, ranks.values[i][g]));
      PreparedGroup group;
      group.options.first_head = groups[g].first;
      group.options.heads = groups[g].count;
      group.options.ends = m.word("store") == "f32" ? Element::kF32 : Element::kF16;
      group.options.sink = static_cast<std::int32_t>(m.count("sink"));
      group.options.residuals = m.on("certify");
      for (const std::optional<SidePlan>* side : {&plan->keys, &plan->values}) {
        if (*side && (*side)->start) group.codes.push_back((*side)->start);
      }
      set_policy(in, i, std::move(plan), group);
      layer.groups.push_back(std::move(group));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace kvspan::detail
