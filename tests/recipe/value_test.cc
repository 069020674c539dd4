// SPDX-License-Identifier: Apache-2.0
#include "recipe/value.h"

#include <gtest/gtest.h>

namespace kvspan {
namespace {

// The canonical text of what `text` writes; "-" if it writes nothing of that kind.
std::string canonical(ValueKind kind, std::string_view text) {
  const auto value = read_value(kind, text);
  return value ? text_of(kind, *value) : "-";
}

TEST(RecipeValue, PrintsCanonically) {
  struct Case {
    ValueKind kind;
    std::string_view text, expected;
  };
  const Case cases[] = {
      {ValueKind::kCount, "016", "16"},
      {ValueKind::kCount, "-1", "-"},
      {ValueKind::kCount, "1.5", "-"},
      {ValueKind::kCount, "99999999999", "-"},
      {ValueKind::kNumber, "0.150", "0.15"},
      {ValueKind::kNumber, "15%", "0.15"},
      {ValueKind::kNumber, "1e-5", "1e-05"},
      {ValueKind::kNumber, "nan", "-"},
      {ValueKind::kNumber, "inf", "-"},
      {ValueKind::kNumber, "%", "-"},
      {ValueKind::kShare, "0.05", "5%"},
      {ValueKind::kShare, "7%", "7%"},
      {ValueKind::kShare, "0.5%", "0.5%"},
      {ValueKind::kShare, "1", "100%"},
      {ValueKind::kRank, "full", "full"},
      {ValueKind::kRank, "16", "16"},
      {ValueKind::kRank, "d", "d"},
      {ValueKind::kRank, "d/1", "d"},
      {ValueKind::kRank, "d/4", "d/4"},
      {ValueKind::kRank, "0.25", "0.25"},
      {ValueKind::kRank, "25%", "0.25"},
      {ValueKind::kRank, "1.0", "1.0"},
      {ValueKind::kRank, "0", "-"},
      {ValueKind::kRank, "d/0", "-"},
      {ValueKind::kRank, "d4", "-"},
      {ValueKind::kRank, "1.5", "-"},
      {ValueKind::kAmount, "1024", "1024"},
      {ValueKind::kAmount, "50%", "0.5"},
      {ValueKind::kAmount, "1.0", "1.0"},
      {ValueKind::kAmount, "1.5", "-"},
      {ValueKind::kRows, "2r", "2r"},
      {ValueKind::kRows, "64", "64"},
      {ValueKind::kRows, "r", "-"},
      {ValueKind::kRows, "0r", "-"},
      {ValueKind::kBytes, "512MiB", "512MiB"},
      {ValueKind::kBytes, "1.5GiB", "1536MiB"},
      {ValueKind::kBytes, "1024MiB", "1GiB"},
      {ValueKind::kBytes, "64kB", "64000B"},
      {ValueKind::kBytes, "1000", "1000B"},
      {ValueKind::kBytes, "12XB", "-"},
      {ValueKind::kBytes, "9999999TiB", "-"},
      {ValueKind::kLevels, "0-6/8", "0-6/8"},
      {ValueKind::kLevels, "8/4/2/0", "0/2/4/8"},
      {ValueKind::kLevels, "0/1/2/3", "0-3"},
      {ValueKind::kLevels, "3/4", "3/4"},
      {ValueKind::kLevels, "6-0", "-"},
      {ValueKind::kLevels, "0-9", "-"},
      {ValueKind::kLevels, "0/", "-"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(canonical(c.kind, c.text), c.expected) << name_of(c.kind) << " " << c.text;
    if (c.expected != "-") {
      EXPECT_EQ(canonical(c.kind, c.expected), c.expected);
    }
  }
}

TEST(RecipeValue, EveryShareThatPrintsReadsBackToTheSameNumber) {
  for (int i = 1; i <= 10000; ++i) {
    const double share = i / 10000.0;
    const auto back = read_value(ValueKind::kShare, text_of(ValueKind::kShare, share));
    ASSERT_TRUE(back);
    ASSERT_EQ(std::get<double>(*back), share) << text_of(ValueKind::kShare, share);
  }
}

TEST(RecipeValue, RanksResolveAgainstTheHead) {
  const auto rank = [](std::string_view text, std::int32_t dim) {
    return std::get<RankValue>(*read_value(ValueKind::kRank, text)).resolve(dim);
  };
  EXPECT_EQ(rank("full", 64), std::nullopt);
  EXPECT_EQ(rank("16", 64), 16);
  EXPECT_EQ(rank("100", 64), 100);  // for whoever knows the shape to refuse
  EXPECT_EQ(rank("d", 64), 64);
  EXPECT_EQ(rank("d/4", 64), 16);
  EXPECT_EQ(rank("d/4", 2), 1);
  EXPECT_EQ(rank("0.3", 64), 19);
  EXPECT_EQ(rank("0.001", 64), 1);
}

TEST(RecipeValue, AmountsAndSketchRowsResolve) {
  EXPECT_EQ((Amount{true, 0.5}.resolve(101)), 51);
  EXPECT_EQ((Amount{false, 1024}.resolve(100)), 100);
  EXPECT_EQ((Amount{false, 10}.resolve(100)), 10);
  EXPECT_EQ((SketchRows{true, 2}.resolve(16)), 32);
  EXPECT_EQ((SketchRows{false, 40}.resolve(16)), 40);
}

TEST(RecipeValue, LevelSetKnowsItsEnds) {
  const auto set = std::get<LevelSet>(*read_value(ValueKind::kLevels, "2-4/8"));
  EXPECT_EQ(set.lowest(), 2);
  EXPECT_EQ(set.highest(), 8);
  EXPECT_TRUE(set.contains(3));
  EXPECT_FALSE(set.contains(5));
  EXPECT_FALSE(set.contains(-1));
}

}  // namespace
}  // namespace kvspan
