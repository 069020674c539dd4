// SPDX-License-Identifier: Apache-2.0
#include "attention/plan.h"

#include <algorithm>

#include "attention/coded_run.h"

namespace kvspan {
namespace {

constexpr std::int32_t ceil_div(std::int32_t a, std::int32_t b) {
  return (a + b - 1) / b;
}

// Token indices seen by queries whose positions run from `first` to `last`.
IndexRange seen_tokens(const SegmentList& list, std::int32_t first, std::int32_t last,
                       std::int32_t window) {
  IndexRange seen;
  for (const Segment& segment : list.segments()) {
    seen.begin += segment.positions.visible(first, window).begin;
    seen.end += segment.positions.visible(last, 0).end;
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
  const auto scores = r * static_cast<std::size_t>(rows_form() ? kRunStride : kTileTokens);
  const auto tiles_of_rows =
      rows_form() ? 0 : static_cast<std::size_t>(kTileTokens * (key_dim + value_dim));
  return state_floats() + queries + ranges + scores + tiles_of_rows + coded_work_floats;
}

std::size_t AttentionPlan::partial_floats() const noexcept {
  return chunks > 1 ? static_cast<std::size_t>(items()) * state_floats() : 0;
}

AttentionPlan plan_attention(const LayerShape& layer, const SegmentList& list,
                             std::span<const std::int32_t> query_positions) {
  AttentionPlan plan;
  plan.heads = layer.kv_heads;
  plan.group = layer.query_heads / layer.kv_heads;
  plan.key_dim = padded_dim(layer.key_dim);
  plan.value_dim = padded_dim(layer.value_dim);
  plan.positions = static_cast<std::int32_t>(query_positions.size());
  if (plan.positions == 0) return plan;
  plan.tile_positions = std::min(plan.positions, std::max(1, kTileRows / plan.group));
  plan.tiles = ceil_div(plan.positions, plan.tile_positions);
  plan.rows = plan.tile_positions * plan.group;
  plan.padded_rows = plan.rows_form() ? plan.rows : ceil_div(plan.rows, kPanelRows) * kPanelRows;
  plan.coded_work_floats = coded_floats(plan, list);
  plan.tokens = seen_tokens(list, query_positions.front(), query_positions.back(), layer.window);

  const std::int32_t most = plan.rows <= kPanelRows ? kMaxItems : kMaxTileItems;
  plan.chunk_tokens = kChunkTokens;
  for (;; plan.chunk_tokens *= 2) {
    plan.first_chunk = plan.tokens.begin / plan.chunk_tokens;
    plan.chunks = ceil_div(plan.tokens.end, plan.chunk_tokens) - plan.first_chunk;
    if (plan.tokens.empty()) plan.chunks = 0;
    if (plan.chunks <= 1 || plan.items() <= most) return plan;
  }
}

}  // namespace kvspan
