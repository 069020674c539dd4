// SPDX-License-Identifier: Apache-2.0
#include "eval/study/study_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "eval/bench/break_even.h"
#include "eval/study/rank_statistics.h"
#include "recipe/recipe.h"

namespace kvspan::testing {
namespace {

TEST(StudyPlan, HasUnitsOfRecipesThatParseInGroupsThatAreListed) {
  std::set<std::string_view> groups{"bounds"};
  for (const StudyGroup& group : study_groups()) groups.insert(group.name);
  for (const bool quick : {true, false}) {
    const StudyOptions options = study_options(quick, 8192);
    std::set<std::string> names;
    for (const StudyUnit& unit : study_plan(options)) {
      EXPECT_TRUE(names.insert(unit.name).second) << unit.name;
      for (const PlannedRecipe& planned : unit.recipes) {
        EXPECT_TRUE(groups.contains(planned.group)) << planned.group;
        if (planned.level) {
          const auto open = Recipe::parse(family_recipe(planned.family, options));
          ASSERT_TRUE(open) << open.error().message;
          EXPECT_FALSE(open->method().method().size_keys.empty()) << planned.family;
          continue;
        }
        const auto parsed = Recipe::parse(planned.recipe);
        EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
      }
    }
  }
}

TEST(StudyPlan, OfAQuickStudyStaysWithinItsTokens) {
  const StudyOptions options = study_options(true, 8192);
  std::size_t tokens = fitting_tokens(options);
  std::set<std::string> read;
  for (const StudyUnit& unit : study_plan(options)) tokens += tokens_of(unit, options, read);
  EXPECT_LE(tokens, 45000u);  // ten minutes at less than the 120 tokens a second of two slow cores
}

TEST(StudyPlan, FitsAModelOfShortContext) {
  const StudyOptions options = study_options(false, 500);
  EXPECT_EQ(options.context, 448);
  EXPECT_EQ((options.sink + options.recent) % options.block, 0);
  EXPECT_EQ((study_options(true, 8192).sink + study_options(true, 8192).recent) % 64, 0);
}

TEST(BreakEven, LiesBetweenThePointsWhereItTurns) {
  const std::vector<CostPoint> points{{100, 50, 40}, {200, 60, 55}, {300, 70, 90}};
  const auto found = break_even(points);
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->length, 220.0);  // 5 above, then 20 below
  EXPECT_FALSE(found->extrapolated);
}

TEST(BreakEven, IsTheFirstLengthWhereItAlwaysPays) {
  const std::vector<CostPoint> points{{100, 1, 2}, {200, 1, 2}};
  EXPECT_EQ(break_even(points)->length, 100.0);
}

TEST(BreakEven, GoesOnAlongTheLinesBeyondTheLastPoint) {
  const std::vector<CostPoint> meeting{{100, 150, 10}, {200, 160, 20 + 40}, {300, 170, 120}};
  const auto found = break_even(meeting);  // 100 and 50 above: 0 after another 100
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->length, 400.0);
  EXPECT_TRUE(found->extrapolated);
  const std::vector<CostPoint> parting{{100, 20, 10}, {200, 40, 20}, {300, 60, 30}};
  EXPECT_FALSE(break_even(parting));
}

// 0.8207826816681233 is what scipy.stats.spearmanr gives (an example of its documentation).
TEST(RankStatistics, SpearmanIsScipys) {
  EXPECT_NEAR(spearman(std::vector{1.0, 2.0, 3.0, 4.0, 5.0}, std::vector{5.0, 6.0, 7.0, 8.0, 7.0}),
              0.8207826816681233, 1e-15);
  EXPECT_DOUBLE_EQ(spearman(std::vector{1.0, 5.0, 9.0}, std::vector{-1.0, -2.0, -8.0}), -1.0);
  EXPECT_TRUE(std::isnan(spearman(std::vector{1.0, 2.0}, std::vector{3.0, 3.0})));
}

TEST(RankStatistics, SlopeIsThatOfTheLine) {
  EXPECT_DOUBLE_EQ(
      least_squares_slope(std::vector{0.0, 1.0, 2.0, 3.0}, std::vector{1.0, 3.0, 5.0, 7.0}), 2.0);
  EXPECT_TRUE(std::isnan(least_squares_slope(std::vector{2.0, 2.0}, std::vector{3.0, 4.0})));
}

}  // namespace
}  // namespace kvspan::testing
