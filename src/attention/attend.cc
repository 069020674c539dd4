// SPDX-License-Identifier: Apache-2.0
#include "attention/attend.h"

#include <algorithm>

#include "attention/kernels/kernels.h"
#include "attention/segments/item.h"
#include "attention/softmax_state.h"
#include "base/expect.h"
#include "base/fail.h"
#include "base/help_wanted.h"

namespace kvspan {
namespace {

struct Output {
  const TensorView<float, 3>& rows;
  const TensorView<float, 2>& lse;
  bool adds;
};

// Merges the chunks' states of a block in their order, into the first, and writes the result.
void write_block(const AttentionPlan& plan, const LayerShape& layer, const AttentionItem& item,
                const StateView* states, std::int32_t chunks, const Output& output) noexcept {
  for (std::int32_t r = 0; r < item.positions * plan.group; ++r) {
    SoftmaxState whole{states[0].max[r], states[0].sum[r]};
    float* sum = states[0].out + static_cast<std::ptrdiff_t>(r) * plan.value_dim;
    for (std::int32_t c = 1; c < chunks; ++c) {
      const MergeFactors factors = merge_into(whole, {states[c].max[r], states[c].sum[r]});
      const float* part = states[c].out + static_cast<std::ptrdiff_t>(r) * plan.value_dim;
      for (std::int32_t i = 0; i < plan.value_dim; ++i) {
        sum[i] = sum[i] * factors.kept + part[i] * factors.added;
      }
    }
    const std::int32_t query = item.first_position + r / plan.group;
    const std::int32_t head = item.head * plan.group + r % plan.group;
    float* to = output.rows.row(query, head);
    if (output.adds) {
      if (whole.sum == 0.0f) continue;
      const MergeFactors parts = merge_outputs(whole.log_sum_exp(), output.lse.row(query)[head]);
      const float added = parts.added / whole.sum;
      for (std::int32_t i = 0; i < layer.value_dim; ++i) to[i] = to[i] * parts.kept + sum[i] * added;
      continue;
    }
    for (std::int32_t i = 0; i < layer.value_dim; ++i) {
      to[i] = whole.sum == 0.0f ? 0.0f : sum[i] / whole.sum;
    }
    if (output.lse.data != nullptr) output.lse.row(query)[head] = whole.log_sum_exp();
  }
}

// The chunks of a block and head are neighbours in item order.
void finish_block(const AttentionPlan& plan, const LayerShape& layer, const AttentionItem& item,
                 std::int32_t first_item, AttentionScratch& scratch, const Output& output) {
  StateView states[kMaxItems];
  for (std::int32_t c = 0; c < item.group->chunks; ++c) {
    states[c] = StateView(plan, scratch.partial(static_cast<std::size_t>(first_item + c)));
  }
  write_block(plan, layer, item, states, item.group->chunks, output);
}

void check_shapes(const LayerShape& layer, const Queries& queries,
                  const TensorView<float, 3>& out) {
  const auto n = queries.positions.size();
  const auto heads = static_cast<std::size_t>(layer.query_heads);
  KVSPAN_EXPECT(queries.rows.shape[0] == n && queries.rows.shape[1] == heads &&
                    queries.rows.shape[2] == static_cast<std::size_t>(layer.key_dim),
                "queries are [n, query_heads, key_dim], one position each");
  KVSPAN_EXPECT(out.shape[0] == n && out.shape[1] == heads &&
                    out.shape[2] == static_cast<std::size_t>(layer.value_dim),
                "out is [n, query_heads, value_dim]");
}

}  // namespace

bool groups_fit(const LayerShape& layer, HeadGroups groups) noexcept {
  std::int32_t heads = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const HeadGroup group = groups[i];
    const GroupShape& shape = group.list->shape();
    if (group.first_head != heads || shape.key_dim != layer.key_dim ||
        shape.value_dim != layer.value_dim) {
      return false;
    }
    heads += shape.heads;
  }
  return heads == layer.kv_heads;
}

Status attend_segments(const LayerShape& layer, const SegmentList& list, const Queries& queries,
                       const TensorView<float, 3>& out, const TensorView<float, 2>& lse,
                       AttentionScratch& scratch, Team& team, bool adds) {
  const HeadGroup group{0, &list};
  return attend_segments(layer, std::span<const HeadGroup>(&group, 1), queries, out, lse, scratch,
                         team, adds);
}

Status attend_segments(const LayerShape& layer, HeadGroups groups, const Queries& queries,
                       const TensorView<float, 3>& out, const TensorView<float, 2>& lse,
                       AttentionScratch& scratch, Team& team, bool adds) {
  KVSPAN_DEBUG_EXPECT(!adds || lse.data != nullptr, "parts of the tokens meet by their log-sum-exps");
  check_shapes(layer, queries, out);
  KVSPAN_EXPECT(groups_fit(layer, groups), "groups are all KV heads, in order");
  if (team.leader()) scratch.prepare(layer, groups, queries.positions, team.places());
  team.barrier();
  if (!scratch.ready()) {
    team.barrier();
    return fail(ErrorCode::kOutOfBudget,
                "no memory to attend to {} groups of heads with {} queries", groups.size(),
                queries.positions.size());
  }
  const AttentionPlan& plan = scratch.plan();
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  const Output output{out, lse, adds};
  with_help(team, [&](int place) {
    float* const own = scratch.work(place);
    float* const work = own + plan.state_floats();
    for (std::int32_t i; (i = team.take()) < plan.items;) {
      const AttentionItem item = item_at(plan, i);
      const GroupPlan& group = *item.group;
      const bool partial = group.chunks > 1;
      const StateView state(plan, partial ? scratch.partial(static_cast<std::size_t>(i)) : own);
      run_item(plan, kernels, layer, queries, item, state, work);
      if (!partial) {
        write_block(plan, layer, item, &state, 1, output);
      } else if (scratch.finish_chunk(group.first_sum + item.block * group.heads + item.list_head,
                                      group.chunks)) {
        finish_block(plan, layer, item, i - item.chunk, scratch, output);
      }
    }
  });
  team.barrier();
  return {};
}

}  // namespace kvspan
