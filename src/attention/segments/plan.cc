// SPDX-License-Identifier: Apache-2.0
#include "attention/segments/plan.h"

#include <algorithm>

#include "attention/coded/coded_series.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

constexpr std::int32_t ceil_div(std::int32_t a, std::int32_t b) {
  return (a + b - 1) / b;
}

// Token indices from position `first` to `last`.
IndexRange seen_tokens(const SegmentList& list, std::int32_t first, std::int32_t last) {
  IndexRange seen;
  for (const Segment& segment : list.segments()) {
    const IndexRange part = segment.positions.between(first, last);
    seen.begin += part.begin;
    seen.end += part.end;
  }
  return seen;
}

}  // namespace

std::size_t AttentionPlan::state_floats() const noexcept {
  return static_cast<std::size_t>(padded_rows) * static_cast<std::size_t>(value_dim + 2);
}

std::size_t AttentionPlan::work_floats() const noexcept {
  const auto r = static_cast<std::size_t>(padded_rows);
  const auto queries = r * static_cast<std::size_t>(key_dim);
  const auto ranges = 3 * r;  // begin, end, decay
  const auto scores = r * static_cast<std::size_t>(rows_form() ? kRowsStride : kPanelTokens);
  const auto widened =
      rows_form() ? 0 : static_cast<std::size_t>(kPanelTokens * (key_dim + value_dim));
  return state_floats() + queries + ranges + scores + widened + coded_work_floats;
}

std::size_t AttentionPlan::partial_floats() const noexcept {
  return partial ? static_cast<std::size_t>(items) * state_floats() : 0;
}

IndexRange GroupPlan::chunk(std::int32_t index, std::int32_t chunk_tokens) const noexcept {
  const std::int32_t from = (first_chunk + index) * chunk_tokens;
  return {std::max(tokens.begin, from), std::min(tokens.end, from + chunk_tokens)};
}

namespace {

// Cuts every group into chunks of this many tokens and numbers the items.
void cut(AttentionPlan& plan, std::int32_t chunk_tokens) {
  plan.chunk_tokens = chunk_tokens;
  plan.items = 0;
  plan.partial = false;
  std::int32_t sums = 0;
  for (GroupPlan& group : plan.groups) {
    group.first_chunk = group.tokens.begin / chunk_tokens;
    group.chunks =
        group.tokens.empty() ? 0 : ceil_div(group.tokens.end, chunk_tokens) - group.first_chunk;
    group.first_item = plan.items;
    group.first_sum = sums;
    plan.items += group.heads * plan.blocks * std::max(group.chunks, 1);
    sums += group.heads * plan.blocks;
    plan.partial |= group.chunks > 1;
  }
}

}  // namespace

AttentionPlan plan_shape(const LayerShape& layer, std::int32_t positions) noexcept {
  AttentionPlan plan;
  plan.group = layer.query_heads / layer.kv_heads;
  plan.key_dim = padded_dim(layer.key_dim);
  plan.value_dim = padded_dim(layer.value_dim);
  plan.positions = positions;
  if (plan.positions == 0) return plan;
  plan.block_positions = std::min(plan.positions, std::max(1, kBlockRows / plan.group));
  plan.blocks = ceil_div(plan.positions, plan.block_positions);
  plan.rows = plan.block_positions * plan.group;
  plan.padded_rows = plan.rows_form() ? plan.rows : ceil_div(plan.rows, kPanelRows) * kPanelRows;
  return plan;
}

std::int32_t most_items(const AttentionPlan& plan) noexcept {
  return plan.rows <= kPanelRows ? kMaxItems : kMaxBlockItems;
}

AttentionPlan plan_attention(const LayerShape& layer, HeadGroups groups,
                             std::span<const std::int32_t> query_positions) {
  AttentionPlan plan = plan_shape(layer, static_cast<std::int32_t>(query_positions.size()));
  if (plan.positions == 0) return plan;
  plan.groups.reserve(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const HeadGroup group = groups[i];
    plan.coded_work_floats = std::max(plan.coded_work_floats, coded_floats(plan, *group.list));
    GroupPlan part;
    part.first_head = group.first_head;
    part.heads = group.list->shape().heads;
    part.list = group.list;
    part.tokens = seen_tokens(*group.list, first_seen(layer, query_positions.front()),
                              query_positions.back());
    plan.groups.push_back(part);
  }
  const std::int32_t most = most_items(plan);
  const bool coded = plan.coded_work_floats > 0;
  for (std::int32_t tokens = coded ? kCodedChunkTokens : kChunkTokens;; tokens *= 2) {
    cut(plan, tokens);
    if (!plan.partial || plan.items <= most) return plan;
  }
}

}  // namespace kvspan
