// SPDX-License-Identifier: Apache-2.0
#include "attention/received.h"

#include <algorithm>
#include <limits>

#include "attention/attend.h"
#include "attention/coded/coded_series.h"
#include "base/expect.h"
#include "base/fail.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

// The tokens of one chunk, for one KV head.
struct Chunk {
  const AttentionPlan& plan;
  const AttentionKernels& kernels;
  const LayerShape& layer;
  const Queries& queries;
  const TensorView<const float, 2>& lse;  // of the chosen queries
  float* work;

  void receive(const GroupPlan& group, std::int32_t list_head, IndexRange tokens, float* received);
};

void Chunk::receive(const GroupPlan& group, std::int32_t list_head, IndexRange tokens,
                    float* received) {
  float* const row_lse = work;  // [padded_rows], base 2
  for (std::int32_t block = 0; block < plan.blocks; ++block) {
    AttentionItem item;
    item.group = &group;
    item.list_head = list_head;
    item.head = group.first_head + list_head;
    item.block = block;
    item.first_position = block * plan.block_positions;
    item.positions = std::min(plan.block_positions, plan.positions - item.first_position);
    for (std::int32_t r = 0; r < item.positions * plan.group; ++r) {
      const std::int32_t query = item.first_position + r / plan.group;
      row_lse[r] = kLog2e * lse.row(query)[item.head * plan.group + r % plan.group];
    }
    CodedSeries series(plan, kernels, layer, queries, item, work + plan.state_floats());
    series.receive(row_lse, received);
    const auto visit = [&](const Segment& segment, IndexRange part, std::int32_t index) {
      if (series.open() && !series.continues(segment)) series.finish();
      if (!series.open()) series.start(segment);
      series.add(segment, part, index);
    };
    const std::int32_t last = item.first_position + item.positions - 1;
    const std::int32_t first = queries.positions[static_cast<std::size_t>(item.first_position)];
    each_part(*group.list, tokens, first_seen(layer, first),
              queries.positions[static_cast<std::size_t>(last)], visit);
    if (series.open()) series.finish();
  }
}

void check_received(HeadGroups groups, std::span<const TensorView<float, 2>> received) {
  KVSPAN_EXPECT(received.size() == groups.size(), "one output for each group");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto heads = static_cast<std::size_t>(groups[g].list->shape().heads);
    KVSPAN_EXPECT(received[g].shape[0] == heads || received[g].shape[0] == 1,
                  "a row for each head of the group, or one for all");
    KVSPAN_EXPECT(received[g].shape[1] == static_cast<std::size_t>(groups[g].list->tokens()),
                  "a number for each token");
  }
}

}  // namespace

// What CodedSeries does with a batch's scores here, in both forms. A row's own largest weight may
// exceed 1 by a rounding; the kernel wants exponents that are not positive.
void CodedSeries::receive_rows() {
  for (std::int32_t r = 0; r < rows_; ++r) {
    const std::int32_t count = end_[r] - begin_[r];
    if (count <= 0 || lse_[r] == -std::numeric_limits<float>::infinity()) continue;
    float* s = scores_ + static_cast<std::ptrdiff_t>(r) * kBatchStride + begin_[r];
    if (layer_.soft_cap > 0.0f) kernels_.cap(s, count, layer_.soft_cap);
    add_bias(r);
    for (std::int32_t t = 0; t < count; ++t) s[t] = std::min(s[t] - lse_[r], 0.0f);
    kernels_.exp2(s, count, s);
    float* to = received_ + first_index_ + begin_[r];
    for (std::int32_t t = 0; t < count; ++t) to[t] += s[t];
  }
}

void CodedSeries::receive_panels() {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  if (layer_.soft_cap > 0.0f) kernels_.cap(scores_, tokens_ * padded_rows_, layer_.soft_cap);
  for (std::int32_t r = 0; r < rows_; ++r) add_bias(r);
  for (std::int32_t t = 0; t < tokens_; ++t) {
    float* s = scores_ + static_cast<std::ptrdiff_t>(t) * padded_rows_;
    for (std::int32_t r = 0; r < rows_; ++r) {
      const bool seen = t >= begin_[r] && t < end_[r] && lse_[r] != kNothing;
      s[r] = seen ? std::min(s[r] - lse_[r], 0.0f) : kNothing;
    }
    kernels_.exp2(s, rows_, s);
    float sum = 0.0f;
    for (std::int32_t r = 0; r < rows_; ++r) sum += s[r];
    received_[first_index_ + t] += sum;
  }
}

Status received_attention(const LayerShape& layer, HeadGroups groups, const Queries& queries,
                          const TensorView<const float, 2>& lse, std::int32_t first_query,
                          std::span<const TensorView<float, 2>> received, AttentionScratch& scratch,
                          Team& team) {
  const std::size_t n = queries.positions.size();
  const auto first = std::min(n, static_cast<std::size_t>(std::max(first_query, 0)));
  KVSPAN_EXPECT(groups_fit(layer, groups), "groups are all KV heads, in order");
  KVSPAN_EXPECT(lse.shape[0] == n && lse.shape[1] == static_cast<std::size_t>(layer.query_heads),
                "lse is [n, query_heads]");
  check_received(groups, received);
  Queries chosen = queries;
  chosen.rows = {queries.rows.row(first, 0),
                 {n - first, queries.rows.shape[1], queries.rows.shape[2]},
                 queries.rows.strides};
  chosen.positions = queries.positions.subspan(first);
  const TensorView<const float, 2> chosen_lse{
      lse.row(first), {n - first, lse.shape[1]}, lse.strides};
  if (team.leader()) scratch.prepare(layer, groups, chosen.positions, team.size(), true);
  team.barrier();
  if (!scratch.ready()) {
    team.barrier();
    return fail(ErrorCode::kOutOfBudget,
                "no memory to attend to {} groups of heads with {} queries", groups.size(),
                n - first);
  }
  const AttentionPlan& plan = scratch.plan();
  Chunk chunk{plan,       attention_kernels(cpu_level()), layer, chosen,
              chosen_lse, scratch.work(team.index())};
  // Items: a chunk of a group, of one head or of all that share an output. Items of a group are
  // neighbours; `before` counts those of the groups before it.
  std::int32_t item = team.take(), before = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    const auto outputs = static_cast<std::int32_t>(received[g].shape[0]);
    const std::int32_t items = group.chunks * outputs;
    for (; item - before < items; item = team.take()) {
      const std::int32_t output = (item - before) / group.chunks;
      const IndexRange tokens = group.chunk((item - before) % group.chunks, plan.chunk_tokens);
      const bool all = outputs < group.heads;
      for (std::int32_t h = all ? 0 : output; h < (all ? group.heads : output + 1); ++h) {
        chunk.receive(group, h, tokens, received[g].row(output));
      }
    }
    before += items;
  }
  team.barrier();
  return {};
}

}  // namespace kvspan
