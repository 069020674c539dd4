// SPDX-License-Identifier: Apache-2.0
#include "cuda/attend_plan.h"

#include <algorithm>

namespace kvspan::cuda {
namespace {

// Sums are whole numbers of 32 bits: a token adds at most 255 x 255.
constexpr std::int32_t kMostTeamTokens = 32768;
// Full-rank rows are read 16 at a time, and each sixteen is a wait for memory: a warp takes one where there
// are no more of them than processors or rows have more than 128 numbers, else two at least, since it keeps
// others waiting and what it leaves has to be merged. Warps that a multiprocessor has for them.
constexpr std::int32_t kRowTile = 16, kShortRow = 128;
constexpr int kRowWarps = 16;
// Of layers that are full rank, rows of an item from which on warps of a block share a part, and
// merge what they have of it: else merging so many parts takes longer than reading the rows.
constexpr std::int32_t kSharedRows = 512;

std::int32_t ceil_div(std::int64_t a, std::int64_t b) {
  return static_cast<std::int32_t>((a + b - 1) / b);
}

Range cut(std::int32_t first, std::int32_t last, std::int32_t seen_first, std::int32_t seen_last) {
  const Range range{std::max(first, seen_first), std::min(last, seen_last)};
  return range.size() > 0 ? range : Range{};
}

std::int32_t steps_of(const Range& coded, int step_tokens) {
  if (coded.size() == 0) return 0;
  return ceil_div(coded.last, step_tokens) - coded.first / step_tokens;
}

void set_blocks(const Range& coded, int length, std::int32_t& first, std::int32_t& count) {
  first = coded.first / length;
  count = coded.size() > 0 ? ceil_div(coded.last, length) - first : 0;
}

}  // namespace

void set_ranges(const Extent& extent, std::int32_t position, std::int32_t window,
                AttendItem& item) {
  const std::int32_t first = window > 0 ? std::max(0, position - window + 1) : 0;
  const std::int32_t last = std::min(position + 1, extent.tokens);
  const bool coded = extent.coded > extent.sink;
  item.before = coded ? cut(0, extent.sink, first, last) : Range{};
  item.coded = coded ? cut(extent.sink, extent.coded, first, last) : Range{};
  item.after = cut(coded ? extent.coded : 0, extent.tokens, first, last);
}

int plan_call(const PlanLimits& limits, std::span<AttendItem> items, const AttendCall& call,
              AttendPlan& plan) {
  plan.item_count = 0;
  plan.total_anchors = plan.total_means = plan.total_parts = plan.total_row_parts = 0;
  plan.total_move_tiles = plan.total_fold_tiles = 0;
  const int groups = std::max(1, call.groups);
  std::int64_t steps = 0, rows = 0, anchors = 0, means = 0;
  int count = 0;
  for (AttendItem& item : items) {
    if (count == kMaxItems) break;
    if (call.groups > 0) {
      set_blocks(item.coded, call.anchor, item.first_anchor, item.anchors);
      set_blocks(item.coded, kMeanBlock, item.first_mean, item.means);
    }
    if (anchors + item.anchors > limits.anchors || means + item.means > limits.means) break;
    anchors += item.anchors;
    means += item.means;
    steps += steps_of(item.coded, limits.step_tokens);
    rows += item.before.size() + item.after.size();
    ++count;
  }
  // One block for each place that there is, each as long as the others; a block has several teams.
  const std::int64_t places =
      std::max<std::int64_t>(1, std::int64_t{limits.processors} * limits.blocks_at_once / groups);
  const std::int64_t quantum = std::max<std::int64_t>(limits.teams, (steps + places - 1) / places);
  const bool shared = call.groups == 0 && rows >= std::int64_t{kSharedRows} * count;
  plan.row_warps = shared ? kPrepareWarps : 1;
  const std::int64_t row_places =
      std::max<std::int64_t>(1, std::int64_t{limits.processors} * kRowWarps /
                                    (plan.row_warps * std::max(1, call.kv_heads)));
  const bool few_rows = rows * std::max(1, call.kv_heads) <= std::int64_t{kRowTile} * limits.processors;
  const std::int64_t least_rows =
      few_rows || shared || std::max(call.key_dim, call.value_dim) > kShortRow ? kRowTile
                                                                               : 2 * kRowTile;
  const std::int64_t row_tile = std::int64_t{kRowTile} * plan.row_warps;
  const std::int64_t row_quantum =
      (std::max<std::int64_t>(least_rows, (rows + row_places - 1) / row_places) + row_tile - 1) /
      row_tile * row_tile;
  // Blocks that prepare queries. Two of any kind share a processor; one that finds no place begins when another
  // has ended, and all that comes after waits for it.
  const int places_to_prepare = 2 * limits.processors;
  // Those that move them: about one for each processor, of long heads, whose rows are in several, half as many.
  const int movers = std::max(call.key_dim, call.value_dim) > kShortRow ? places_to_prepare / 4 : places_to_prepare / 2;
  plan.move_anchors = kMoveAnchors;
  while (plan.move_anchors < kMostMoveAnchors &&
         anchors * call.kv_heads > std::int64_t{plan.move_anchors} * movers) {
    plan.move_anchors *= 2;
  }
  // Those that fold them: as many as there is room for beside those and rows, and enough for each to be short: they wait
  // for one answer of memory after the other, so that a few that begin late take less than all would with more blocks
  // each. Of long heads, whose work is more for each block of the mean, half as many.
  const std::int64_t row_tiles = rows * call.kv_heads / row_quantum * ceil_div(std::max(1, call.value_dim), kShortRow);
  const std::int64_t taken =
      anchors * call.kv_heads / plan.move_anchors + row_tiles / kPrepareWarps;
  const std::int64_t enough = call.key_dim > kShortRow ? limits.processors : places_to_prepare;
  const std::int64_t room = std::max<std::int64_t>(enough, 17 * places_to_prepare / 16 - taken);
  plan.fold_blocks = kFoldTile;
  while (plan.fold_blocks < kMostFoldTiles * kFoldTile &&
         means * call.fold_pairs() > plan.fold_blocks * room) {
    plan.fold_blocks *= 2;
  }
  for (int i = 0; i < count; ++i) {
    AttendItem item = items[static_cast<std::size_t>(i)];
    const std::int32_t own = steps_of(item.coded, limits.step_tokens);
    const std::int32_t least = ceil_div(std::int64_t{own} * limits.step_tokens,
                                        std::int64_t{limits.teams} * kMostTeamTokens);
    item.parts = own > 0 ? std::clamp(static_cast<std::int32_t>(own / quantum), std::max(1, least),
                                      kMaxParts)
                         : 0;
    const std::int32_t own_rows = item.before.size() + item.after.size();
    item.row_parts = ceil_div(own_rows, row_quantum);
    if (plan.total_parts + item.parts > limits.parts ||
        plan.total_row_parts + item.row_parts > limits.row_parts) {
      break;
    }
    item.anchors_before = plan.total_anchors;
    item.means_before = plan.total_means;
    plan.parts_before[plan.item_count] = plan.total_parts;
    plan.row_parts_before[plan.item_count] = plan.total_row_parts;
    plan.move_tiles_before[plan.item_count] = plan.total_move_tiles;
    plan.fold_tiles_before[plan.item_count] = plan.total_fold_tiles;
    plan.total_anchors += item.anchors;
    plan.total_means += item.means;
    plan.total_parts += item.parts;
    plan.total_row_parts += item.row_parts;
    plan.total_move_tiles += ceil_div(item.anchors, plan.move_anchors);
    plan.total_fold_tiles += ceil_div(item.means, plan.fold_blocks);
    plan.items[plan.item_count++] = item;
  }
  return plan.item_count;
}

PlanCapacity PlanCapacity::of(const AttendPlan& plan) {
  PlanCapacity capacity{plan.item_count,
                        plan.total_parts,
                        1,
                        plan.total_row_parts,
                        1,
                        plan.total_move_tiles,
                        plan.total_fold_tiles,
                        plan.move_anchors == kMoveAnchors,
                        plan.row_warps};
  for (const AttendItem& item :
       std::span(plan.items).first(static_cast<std::size_t>(plan.item_count))) {
    capacity.item_parts = std::max(capacity.item_parts, item.parts);
    capacity.item_row_parts = std::max(capacity.item_row_parts, item.row_parts);
  }
  return capacity;
}

bool PlanCapacity::holds(const PlanCapacity& other) const {
  return items == other.items && few_anchors == other.few_anchors && row_warps == other.row_warps &&
         (parts > 0) == (other.parts > 0) && parts >= other.parts &&
         item_parts >= other.item_parts && row_parts >= other.row_parts &&
         item_row_parts >= other.item_row_parts && move_tiles >= other.move_tiles &&
         fold_tiles >= other.fold_tiles;
}

PlanCapacity PlanCapacity::with_spare(std::int32_t most) const {
  PlanCapacity capacity = *this;
  if (parts > 0) capacity.parts = std::max(parts, std::min(parts + parts / 8 + items, most));
  for (std::int32_t* const n : {&capacity.item_parts, &capacity.item_row_parts}) *n += *n / 8 + 2;
  for (std::int32_t* const n : {&capacity.row_parts, &capacity.move_tiles, &capacity.fold_tiles}) {
    if (*n > 0) *n += *n / 8 + items;
  }
  return capacity;
}

PlanLimits limits_for(std::int64_t tokens, int anchor, int processors, int blocks_at_once,
                      int step_tokens, int teams) {
  PlanLimits limits{processors, blocks_at_once, step_tokens, teams};
  // A range meets at most two blocks more than its length has.
  limits.anchors = anchor > 0 ? tokens / anchor + 2 * kMaxItems : 0;
  limits.means = anchor > 0 ? tokens / kMeanBlock + 2 * kMaxItems : 0;
  limits.parts = std::int64_t{processors} * blocks_at_once + kMaxItems +
                 tokens / (std::int64_t{teams} * kMostTeamTokens);
  limits.row_parts = std::int64_t{processors} * kRowWarps + 16 * kMaxItems;
  return limits;
}

}  // namespace kvspan::cuda
