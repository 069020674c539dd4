// SPDX-License-Identifier: Apache-2.0
#include "cuda/attend_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvspan::cuda {
namespace {

bool in(const Range& range, std::int32_t position) {
  return position >= range.first && position < range.last;
}

TEST(SetRanges, EveryPositionThatIsSeenIsInOneRange) {
  for (const Extent& extent : {Extent{32, 0, 20}, Extent{32, 0, 100}, Extent{32, 48, 190},
                               Extent{0, 160, 290}, Extent{16, 320, 448}}) {
    for (std::int32_t position = 0; position < extent.tokens; ++position) {
      for (const std::int32_t window : {0, 1, 7, 64, 300}) {
        AttendItem item{};
        set_ranges(extent, position, window, item);
        for (std::int32_t t = 0; t < extent.tokens; ++t) {
          const bool sees = t <= position && (window == 0 || t > position - window);
          const int times = in(item.before, t) + in(item.coded, t) + in(item.after, t);
          ASSERT_EQ(times, sees ? 1 : 0)
              << "position " << position << " window " << window << " token " << t;
          EXPECT_TRUE(!in(item.coded, t) || (t >= extent.sink && t < extent.coded));
        }
      }
    }
  }
}

std::vector<AttendItem> items_of(const std::vector<std::int32_t>& lengths) {
  std::vector<AttendItem> items;
  for (const std::int32_t n : lengths) {
    AttendItem item{};
    set_ranges({32, n > 200 ? (n - 160) / 16 * 16 : 0, n}, n - 1, 0, item);
    items.push_back(item);
  }
  return items;
}

TEST(PlanCall, KeepsWithinTheMemoryThatLimitsAskFor) {
  AttendCall call;
  AttendPlan plan;
  call.groups = 4;
  call.kv_heads = 8;
  call.anchor = 256;
  for (const std::vector<std::int32_t>& lengths : {std::vector<std::int32_t>{1},
                                                   {131072},
                                                   std::vector<std::int32_t>(16, 32768),
                                                   {5, 70000, 300, 1, 260},
                                                   std::vector<std::int32_t>(200, 700)}) {
    const PlanLimits limits = limits_for(600000, call.anchor, 132, 3, kTileTokens, 4);
    std::vector<AttendItem> items = items_of(lengths);
    std::size_t done = 0;
    while (done < items.size()) {
      const int planned = plan_call(limits, std::span(items).subspan(done), call, plan);
      ASSERT_GT(planned, 0);
      EXPECT_LE(plan.total_anchors, limits.anchors);
      EXPECT_LE(plan.total_means, limits.means);
      EXPECT_LE(plan.total_parts, limits.parts);
      EXPECT_LE(plan.total_row_parts, limits.row_parts);
      for (int i = 0; i < planned; ++i) {
        const AttendItem& item = plan.items[i];
        EXPECT_EQ(item.parts > 0, item.coded.size() > 0);
        EXPECT_EQ(item.row_parts > 0, item.before.size() + item.after.size() > 0);
        EXPECT_LE(item.parts, kMaxParts);
        if (item.coded.size() == 0) continue;
        EXPECT_LE(item.first_anchor * call.anchor, item.coded.first);
        EXPECT_GE((item.first_anchor + item.anchors) * call.anchor, item.coded.last);
        EXPECT_GE((item.first_mean + item.means) * kMeanBlock, item.coded.last);
      }
      done += static_cast<std::size_t>(planned);
    }
  }
}

TEST(PlanCall, FillsTheDeviceOnceWithEqualSequences) {
  AttendCall call;
  AttendPlan plan;
  call.groups = 4;
  call.kv_heads = 8;
  call.anchor = 256;
  const PlanLimits limits = limits_for(600000, call.anchor, 132, 3, kTileTokens, 4);
  std::vector<AttendItem> items = items_of(std::vector<std::int32_t>(16, 32768));
  ASSERT_EQ(plan_call(limits, items, call, plan), 16);
  EXPECT_LE(plan.total_parts * call.groups, 132 * 3);
  EXPECT_GE(plan.total_parts * call.groups, 132 * 3 * 9 / 10);
}

// Two blocks share a processor. Those that move queries take longest: late ones would keep all that comes after them
// waiting. Those that fold them are as many as can begin together once others have ended.
TEST(PlanCall, BlocksThatPrepareQueriesOfOneKindBeginAtOnce) {
  constexpr int kProcessors = 132;
  for (const int kv_heads : {1, 8}) {
    AttendCall call;
    AttendPlan plan;
    call.groups = kv_heads == 1 ? 1 : kv_heads / 2;
    call.kv_heads = kv_heads;
    call.key_dim = call.value_dim = kv_heads == 1 ? 256 : 128;
    call.anchor = 1024;
    call.padded_queries = 8;
    const PlanLimits limits = limits_for(600000, call.anchor, kProcessors, 1, 2 * kTileTokens, 6);
    for (const std::vector<std::int32_t>& lengths :
         {std::vector<std::int32_t>{8192}, {32768}, {131072}, std::vector<std::int32_t>(16, 32768)}) {
      std::vector<AttendItem> items = items_of(lengths);
      ASSERT_EQ(plan_call(limits, items, call, plan), static_cast<int>(lengths.size()));
      EXPECT_EQ(plan.fold_blocks % kFoldTile, 0);
      for (const int blocks :
           {plan.total_move_tiles * call.kv_heads, plan.total_fold_tiles * call.fold_pairs()}) {
        EXPECT_LE(blocks, 2 * kProcessors) << lengths.size() << " of " << lengths[0] << ", " << kv_heads << " heads";
      }
    }
  }
}

// A recorded step goes on for hundreds of tokens before it has to be recorded anew.
TEST(PlanCapacity, HoldsPlansOfLaterSteps) {
  AttendCall call;
  call.groups = 1;
  call.kv_heads = 2;
  call.query_heads = 12;
  call.key_dim = call.value_dim = 128;
  call.anchor = 1024;
  call.padded_queries = 16;
  const PlanLimits limits = limits_for(600000, call.anchor, 132, 1, 64, 4);
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>{8000}, {30000}, std::vector<std::int32_t>(32, 8000)}) {
    AttendPlan plan;
    std::vector<AttendItem> items = items_of(lengths);
    ASSERT_EQ(plan_call(limits, items, call, plan), static_cast<int>(lengths.size()));
    const PlanCapacity own = PlanCapacity::of(plan), spare = own.with_spare(132);
    EXPECT_TRUE(own.holds(own));
    EXPECT_TRUE(spare.holds(own));
    EXPECT_FALSE(own.holds(spare));
    for (std::int32_t later = 1; later <= 300; ++later) {
      std::vector<std::int32_t> longer = lengths;
      for (std::int32_t& n : longer) n += later;
      items = items_of(longer);
      ASSERT_EQ(plan_call(limits, items, call, plan), static_cast<int>(lengths.size()));
      ASSERT_TRUE(spare.holds(PlanCapacity::of(plan))) << lengths.size() << " of " << longer[0];
    }
  }
  // Other kernels, or another number of sequences.
  PlanCapacity other;
  other.items = 1;
  EXPECT_FALSE(other.holds(PlanCapacity{.items = 2}));
  EXPECT_FALSE((PlanCapacity{.few_anchors = false}.holds(PlanCapacity{})));
  EXPECT_FALSE((PlanCapacity{.row_warps = 8}.holds(PlanCapacity{})));
}

TEST(PlanCall, LeavesOutWhatNeverFits) {
  AttendCall call;
  AttendPlan plan;
  call.groups = 1;
  call.anchor = 256;
  const PlanLimits limits = limits_for(1000, call.anchor, 132, 3, kTileTokens, 4);
  std::vector<AttendItem> items = items_of({200000});
  EXPECT_EQ(plan_call(limits, items, call, plan), 0);
}

}  // namespace
}  // namespace kvspan::cuda
