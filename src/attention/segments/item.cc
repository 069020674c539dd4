// SPDX-License-Identifier: Apache-2.0
#include "attention/segments/item.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "attention/coded/coded_series.h"
#include "attention/score_bias.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

// Everything an item needs, with its part of the working memory laid out.
struct Runner {
  const AttentionPlan& plan;
  const AttentionKernels& kernels;
  const LayerShape& layer;
  const Queries& queries;
  const AttentionItem& item;
  StateView state;
  std::int32_t rows;         // of this block, without padding
  std::int32_t padded_rows;  // of this block
  float* q;                  // rows form: [rows][key_dim]; panel form: panels
  float* scores;
  float* decay;
  std::int32_t* begin;
  std::int32_t* end;
  float* keys;  // panel form: [kPanelTokens][key_dim]
  float* values;

  std::int32_t position(std::int32_t i) const {
    return queries.positions[static_cast<std::size_t>(item.first_position + i)];
  }
  std::int32_t query_head(std::int32_t row) const {
    return item.head * plan.group + row % plan.group;
  }
  void load_queries();
  void run_rows(const Segment& segment, IndexRange part, const std::byte* next_keys);
  void run_panels(const Segment& segment, IndexRange part);
  void run_panel(const Segment& segment, std::int32_t first, std::int32_t tokens, bool ranges);
};

void Runner::load_queries() {
  const float factor = query_factor(layer);
  const bool rows_form = plan.rows_form();
  const std::int32_t dim = plan.key_dim;
  std::fill_n(q, static_cast<std::size_t>(padded_rows) * static_cast<std::size_t>(dim), 0.0f);
  for (std::int32_t r = 0; r < rows; ++r) {
    const float* from = queries.rows.row(item.first_position + r / plan.group, query_head(r));
    float* to = rows_form ? q + r * dim : q + r / kPanelRows * kPanelRows * dim + r % kPanelRows;
    const std::int32_t step = rows_form ? 1 : kPanelRows;
    for (std::int32_t i = 0; i < layer.key_dim; ++i) to[i * step] = factor * from[i];
  }
}

// At most kRowsTokens tokens, in rows form.
void Runner::run_rows(const Segment& segment, IndexRange part, const std::byte* next_keys) {
  const std::int32_t n = part.size();
  const RowsView k = segment.keys.head(item.list_head).from(part.begin);
  const RowsView v = segment.values.head(item.list_head).from(part.begin);
  kernels.score_rows(q, rows, plan.key_dim, k, n, v.data, scores, kRowsStride);
  for (std::int32_t r = 0; r < rows; ++r) {
    float* s = scores + static_cast<std::ptrdiff_t>(r) * kRowsStride;
    const std::int32_t query = position(r / plan.group);
    IndexRange seen = segment.positions.between(first_seen(layer, query), query);
    seen = {std::clamp(seen.begin - part.begin, 0, n), std::clamp(seen.end - part.begin, 0, n)};
    if (seen.empty()) {
      std::fill_n(s, n, 0.0f);
      continue;
    }
    // What the row does not see gets weight 0; the range softens in place, and padding it with
    // zeros may write past its end, so the tail is cleared afterwards.
    if (layer.soft_cap > 0.0f) kernels.cap(s + seen.begin, seen.size(), layer.soft_cap);
    if (!layer.alibi.empty()) {
      add_alibi(s + seen.begin, 1, seen.size(), alibi_slope(layer, query_head(r)), query,
                [&](std::int32_t t) { return segment.positions.at(part.begin + seen.begin + t); });
    }
    const float old = state.max[r];
    const float added = kernels.soften_row(s + seen.begin, seen.size(), &state.max[r]);
    std::fill_n(s, seen.begin, 0.0f);
    std::fill(s + seen.end, s + n, 0.0f);
    if (old == state.max[r]) {
      state.sum[r] += added;
      continue;
    }
    const float factor = std::exp2(old - state.max[r]);
    state.sum[r] = state.sum[r] * factor + added;
    float* out = state.out + static_cast<std::ptrdiff_t>(r) * plan.value_dim;
    for (std::int32_t i = 0; i < plan.value_dim; ++i) out[i] *= factor;
  }
  kernels.weigh_rows(scores, kRowsStride, rows, v, plan.value_dim, n, next_keys, state.out);
}

// Tokens first .. first + tokens - 1 of the segment.
void Runner::run_panel(const Segment& segment, std::int32_t first, std::int32_t tokens,
                      bool ranges) {
  const RowsView k = segment.keys.head(item.list_head).from(first);
  const RowsView v = segment.values.head(item.list_head).from(first);
  kernels.widen(k, plan.key_dim, tokens, keys);
  kernels.score_panels(q, padded_rows, plan.key_dim, keys, tokens, scores);
  if (layer.soft_cap > 0.0f) kernels.cap(scores, tokens * padded_rows, layer.soft_cap);
  for (std::int32_t r = 0; r < rows && !layer.alibi.empty(); ++r) {
    add_alibi(scores + r, padded_rows, tokens, alibi_slope(layer, query_head(r)),
              position(r / plan.group),
              [&](std::int32_t t) { return segment.positions.at(first + t); });
  }
  kernels.soften_panels(scores, padded_rows, tokens, ranges ? begin : nullptr, end, state.max,
                      state.sum, decay);
  kernels.widen(v, plan.value_dim, tokens, values);
  kernels.weigh_panels(scores, padded_rows, values, plan.value_dim, tokens, decay, state.out);
}

void Runner::run_panels(const Segment& segment, IndexRange part) {
  for (std::int32_t t = part.begin; t < part.end; t += kPanelTokens) {
    const std::int32_t n = std::min(kPanelTokens, part.end - t);
    bool ranges = false;
    bool any = false;
    std::fill_n(begin, padded_rows, 0);
    std::fill_n(end, padded_rows, 0);  // padding sees nothing
    for (std::int32_t i = 0; i < item.positions; ++i) {
      const IndexRange seen =
          segment.positions.between(first_seen(layer, position(i)), position(i));
      const std::int32_t from = std::clamp(seen.begin - t, 0, n);
      const std::int32_t to = std::clamp(seen.end - t, 0, n);
      any |= from < to;
      ranges |= from > 0 || to < n;
      std::fill_n(begin + i * plan.group, plan.group, from);
      std::fill_n(end + i * plan.group, plan.group, to);
    }
    if (any) run_panel(segment, t, n, ranges);
  }
}

// Where a full-rank segment's keys of a head begin; null for others: nothing to ask for ahead.
const std::byte* first_key(const Segment& segment, std::int32_t head) noexcept {
  return segment.coded_keys ? nullptr : segment.keys.head(head).data;
}

}  // namespace

AttentionItem item_at(const AttentionPlan& plan, std::int32_t index) noexcept {
  std::size_t g = plan.groups.size() - 1;
  while (plan.groups[g].first_item > index) --g;
  const GroupPlan& group = plan.groups[g];
  index -= group.first_item;
  AttentionItem item;
  item.group = &group;
  const std::int32_t chunks = std::max(group.chunks, 1);
  item.chunk = index % chunks;
  item.list_head = index / chunks % group.heads;
  item.head = group.first_head + item.list_head;
  item.block = plan.blocks - 1 - index / chunks / group.heads;
  item.first_position = item.block * plan.block_positions;
  item.positions = std::min(plan.block_positions, plan.positions - item.first_position);
  return item;
}

void run_item(const AttentionPlan& plan, const AttentionKernels& kernels, const LayerShape& layer,
              const Queries& queries, const AttentionItem& item, const StateView& state,
              float* work) noexcept {
  const std::int32_t rows = item.positions * plan.group;
  const std::int32_t padded_rows =
      plan.rows_form() ? rows : (rows + kPanelRows - 1) / kPanelRows * kPanelRows;
  Runner run{.plan = plan,
             .kernels = kernels,
             .layer = layer,
             .queries = queries,
             .item = item,
             .state = state,
             .rows = rows,
             .padded_rows = padded_rows,
             .q = work,
             .scores = nullptr,
             .decay = nullptr,
             .begin = nullptr,
             .end = nullptr,
             .keys = nullptr,
             .values = nullptr};
  const auto r = static_cast<std::size_t>(plan.padded_rows);
  run.decay = run.q + r * static_cast<std::size_t>(plan.key_dim);
  run.begin = reinterpret_cast<std::int32_t*>(run.decay + r);
  run.end = run.begin + r;
  run.scores = run.decay + 3 * r;
  run.keys = run.scores + r * static_cast<std::size_t>(kPanelTokens);
  run.values = run.keys + static_cast<std::ptrdiff_t>(kPanelTokens) * plan.key_dim;
  std::fill_n(state.max, padded_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, padded_rows, 0.0f);
  std::fill_n(state.out, static_cast<std::ptrdiff_t>(padded_rows) * plan.value_dim, 0.0f);
  bool loaded = false;
  CodedSeries coded(plan, kernels, layer, queries, item,
                 work + (plan.work_floats() - plan.state_floats() - plan.coded_work_floats));

  const IndexRange chunk = item.group->chunk(item.chunk, plan.chunk_tokens);
  const auto visit = [&](const Segment& segment, IndexRange needed, std::int32_t index) {
    if (coded.open() && (!segment.coded() || !coded.continues(segment))) coded.finish(state);
    if (segment.coded()) {
      const std::span<const Segment> all = item.group->list->segments();
      coded.foresee(segment, all.subspan(static_cast<std::size_t>(&segment - all.data()) + 1));
      if (!coded.open()) coded.start(segment);
      coded.add(segment, needed, index);
      return;
    }
    if (!loaded) run.load_queries();
    loaded = true;
    if (plan.rows_form()) {
      const bool another = index - needed.begin + segment.tokens() < chunk.end;
      for (std::int32_t t = needed.begin; t < needed.end; t += kRowsTokens) {
        const std::int32_t end = std::min(needed.end, t + kRowsTokens);
        const RowsView keys = segment.keys.head(item.list_head);
        const std::byte* next = end < needed.end ? keys.from(end).data
                                : another        ? first_key(*(&segment + 1), item.list_head)
                                                 : nullptr;
        run.run_rows(segment, {t, end}, next);
      }
    } else {
      run.run_panels(segment, needed);
    }
  };
  each_part(*item.group->list, chunk, first_seen(layer, run.position(0)),
            run.position(item.positions - 1), visit);
  if (coded.open()) coded.finish(state);
}

}  // namespace kvspan
