// SPDX-License-Identifier: Apache-2.0
#include "report/axis.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvspan::testing {
namespace {

TEST(AxisTitle, HasTheUnit) {
  EXPECT_EQ(axis_title({"KL to full", "nats", true}), "KL to full (nats), log scale");
  EXPECT_EQ(axis_title({"depth", "tokens"}), "depth (tokens)");
}

TEST(Scale, HoldsEveryValueAndKeepsOrder) {
  for (const bool log : {false, true}) {
    const Scale scale({"x", "1", log}, {3.0, 0.02, 17.0});
    EXPECT_GE(scale.at(0.02), 0.0);
    EXPECT_LE(scale.at(17.0), 1.0);
    EXPECT_LT(scale.at(0.02), scale.at(3.0));
    EXPECT_LT(scale.at(3.0), scale.at(17.0));
  }
}

TEST(Scale, ShowsOnLogAxesOnlyWhatIsPositive) {
  const Scale log({"x", "1", true}, {0.0, 1.0, 100.0});
  EXPECT_FALSE(log.shows(0.0));
  EXPECT_FALSE(log.shows(-1.0));
  EXPECT_NEAR(log.at(10.0), 0.5, 1e-12);
  const Scale linear({"x", "1"}, {0.0, 1.0});
  EXPECT_TRUE(linear.shows(0.0));
  EXPECT_FALSE(linear.shows(std::nan("")));
}

TEST(Scale, TicksAreRoundFewAndWithin) {
  const std::vector<std::vector<double>> sets = {
      {0.0, 1.0}, {-3.2, 17.0}, {0.0021, 0.0023}, {5.0}, {1e6, 3e6}, {0.0}, {}, {16, 2048, 8100}};
  for (const bool log : {false, true}) {
    for (const auto& values : sets) {
      const Scale scale({"x", "1", log}, values);
      const auto ticks = scale.ticks(6);
      EXPECT_GE(ticks.size(), 1u);
      EXPECT_LE(ticks.size(), 6u);
      for (std::size_t i = 0; i < ticks.size(); ++i) {
        EXPECT_GE(scale.at(ticks[i]), -1e-6);
        EXPECT_LE(scale.at(ticks[i]), 1.0 + 1e-6);
        EXPECT_TRUE(i == 0 || ticks[i] > ticks[i - 1]);
        // What is written is what is meant: round numbers survive the text.
        EXPECT_NEAR(std::stod(tick_text(ticks[i])), ticks[i], 1e-9 + 1e-5 * std::abs(ticks[i]));
      }
    }
  }
}

TEST(Scale, IncludesWhatIsAsked) {
  const Scale scale({"x", "1", false, {0.0}}, {5.0, 9.0});
  EXPECT_NEAR(scale.at(0.0), 0.0, 1e-12);
}

}  // namespace
}  // namespace kvspan::testing
