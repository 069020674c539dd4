// SPDX-License-Identifier: Apache-2.0
// One item of an attend call: a KV head, a block of query positions, a chunk of tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/kernels/kernels.h"
#include "attention/segments/plan.h"

namespace kvspan {

// Where an item keeps its softmax: max[r], sum[r] and the weighted sum of values out[r][value_dim],
// r over the rows of the block (query position major, then query head of the group).
struct StateView {
  float* max = nullptr;
  float* sum = nullptr;
  float* out = nullptr;

  StateView() = default;
  StateView(const AttentionPlan& plan, float* floats)
      : max(floats), sum(floats + plan.padded_rows), out(floats + 2 * plan.padded_rows) {}
};

// What queries are multiplied with to make scores base 2, or what the kernel `cap` expects.
inline float query_factor(const LayerShape& layer) noexcept {
  constexpr float kLog2e = 1.4426950408889634f;
  return layer.soft_cap > 0.0f ? layer.logit_scale * 2.0f * kLog2e / layer.soft_cap
                               : layer.logit_scale * kLog2e;
}

struct AttentionItem {
  const GroupPlan* group = nullptr;
  std::int32_t head = 0;       // KV head of the layer
  std::int32_t list_head = 0;  // the same within the group
  std::int32_t block = 0;
  std::int32_t chunk = 0;
  std::int32_t first_position = 0;  // index of the block's first query
  std::int32_t positions = 0;       // queries in the block
};

// A group's items in the order in which a team takes them: the blocks with most tokens (the last)
// first.
AttentionItem item_at(const AttentionPlan& plan, std::int32_t index) noexcept;

// Runs the item; leaves its state in `state`, whose memory may lie in `work` (plan.work_floats()
// minus plan.state_floats() floats) or elsewhere.
void run_item(const AttentionPlan& plan, const AttentionKernels& kernels, const LayerShape& layer,
              const Queries& queries, const AttentionItem& item, const StateView& state,
              float* work) noexcept;

// Calls visit(segment, part, index) for every part of a segment within `chunk`, a range of the
// list's token indices, from position `first` to `last`; `index` is the token index of the part's
// beginning.
template <class Visit>
void each_part(const SegmentList& list, IndexRange chunk, std::int32_t first, std::int32_t last,
               Visit visit) {
  std::int32_t start = 0;  // index of the segment's first token
  for (const Segment& segment : list.segments()) {
    if (start >= chunk.end) break;
    const IndexRange part{std::max(0, chunk.begin - start),
                          std::min(segment.tokens(), chunk.end - start)};
    if (!part.empty()) {
      const IndexRange seen = segment.positions.between(first, last);
      const IndexRange needed{std::max(part.begin, seen.begin), std::min(part.end, seen.end)};
      if (!needed.empty()) visit(segment, needed, start + needed.begin);
    }
    start += segment.tokens();
  }
}

}  // namespace kvspan
