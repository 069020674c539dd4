// SPDX-License-Identifier: Apache-2.0
#include "attention/scratch.h"

#include <algorithm>
#include <new>

#include "attention/coded/coded_series.h"
#include "base/expect.h"

namespace kvspan {
namespace {

void grow(Buffer& buffer, std::size_t floats) {
  if (buffer.bytes() >= floats * sizeof(float)) return;
  buffer = Buffer();  // returned first: the old contents are not needed
  buffer = Buffer(floats * sizeof(float), MemoryKind::kFullRank, nullptr);
}

}  // namespace

std::size_t most_scratch_bytes(const LayerShape& layer, int threads) noexcept {
  const std::int32_t group = layer.query_heads / layer.kv_heads;
  std::size_t work = 0, partials = 0;
  for (std::int32_t positions = 1; positions <= std::max(1, kBlockRows / group); ++positions) {
    AttentionPlan plan = plan_shape(layer, positions);
    // A code has at most as many coefficients as the heads it joins have numbers.
    plan.coded_work_floats =
        series_floats(plan, layer.kv_heads * layer.key_dim, layer.kv_heads * layer.value_dim);
    work = std::max(work, floats_in_lines(plan.work_floats()));
    plan.partial = true;
    plan.items = most_items(plan);
    partials = std::max(partials, plan.partial_floats());
  }
  return Buffer::allocated_for(work * static_cast<std::size_t>(threads) * sizeof(float)) +
         Buffer::allocated_for(partials * sizeof(float));
}

float* AttentionScratch::lse(std::size_t count) {
  grow(lse_, count);
  return lse_.as<float>();
}

void AttentionScratch::prepare(const LayerShape& layer, HeadGroups groups,
                               std::span<const std::int32_t> query_positions, int threads,
                               bool as_series) noexcept {
  ready_ = false;
  // An exception must not leave the leader while the others wait for it at the barrier.
  try {
    plan_ = plan_attention(layer, groups, query_positions);
    if (as_series) {
      plan_.coded_work_floats = std::max(plan_.coded_work_floats, series_floats(plan_, 0, 0));
    }
    work_stride_ = floats_in_lines(plan_.work_floats());  // no line shared by threads
    state_floats_ = plan_.state_floats();
    grow(work_, work_stride_ * static_cast<std::size_t>(threads));
    grow(partials_, plan_.partial_floats());
  } catch (const std::bad_alloc&) {
    return;
  }
  if (plan_.partial) {
    KVSPAN_EXPECT(plan_.items <= kMaxSums, "chunks are several only for few items");
    for (std::int32_t i = 0; i < plan_.items; ++i) done_[i].store(0, std::memory_order_relaxed);
  }
  ready_ = true;
}

}  // namespace kvspan
