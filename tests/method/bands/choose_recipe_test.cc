// SPDX-License-Identifier: Apache-2.0
#include "method/bands/choose_recipe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "method/method_cache.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

Calibration measured(const SyntheticText& text) {
  Calibration calibration = text.calibration();
  calibration.rates = {{1.0f, 0.04f, 0.05f}, {2.0f, 0.0064f, 0.007f}, {3.0f, 0.002f, 0.003f}};
  return calibration;
}

Result<Choice> choose(const SyntheticText& text, const std::string& recipe,
                      const Calibration& calibration) {
  return choose_recipe(text.shape(), Recipe::parse(recipe).value().method(), calibration);
}

// Whatever is chosen for a budget fits it when the tokens are there, and little more would not.
TEST(ChooseRecipe, FitsTheBudgetByTheBytesOfTheCache) {
  const SyntheticText text(testing::synthetic_shape(2, 2, 32), 1500, 5);
  const Calibration calibration = measured(text);
  const std::size_t full = full_rank_f16_bytes(text.shape(), 1500);
  for (const double share : {0.25, 0.3, 0.4, 0.6, 1.2}) {
    const auto budget = static_cast<std::size_t>(share * static_cast<double>(full));
    const std::string recipe = fmt::format("auto:budget={},ctx=1500", budget);
    const auto choice = choose(text, recipe, calibration);
    ASSERT_TRUE(choice) << choice.error().message;
    EXPECT_LE(choice->bytes, budget);
    MethodCache cache(prepare(text.shape(), Recipe::parse(recipe).value(), &calibration).value());
    EXPECT_EQ(cache.recipe(), choice->recipe);
    testing::run(cache, text, 0, 1500, 100);
    EXPECT_LE(cache.bytes().total, choice->bytes) << share << " " << choice->recipe;
    // Not wasteful: a good half of what was allowed is used, but for full rank.
    EXPECT_GT(double(cache.bytes().total), 0.7 * double(std::min(budget, full))) << share;
  }
}

TEST(ChooseRecipe, RefusesAnImpossibleBudgetWithTheLeastThatIsPossible) {
  const SyntheticText text(testing::synthetic_shape(2, 2, 32), 300, 5);
  const Calibration calibration = measured(text);
  const auto refused = choose(text, "auto:budget=10KiB,ctx=8192", calibration);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBudget);
  const std::size_t least = most_bands_bytes(text.shape(), 0.5, 32, 8192);
  EXPECT_NE(refused.error().message.find(std::to_string(least)), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(choose(text, fmt::format("auto:budget={},ctx=8192", least), calibration));
  const auto without = choose(text, "auto:budget=1MiB", calibration);
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("ctx=TOKENS"), std::string::npos);
}

TEST(ChooseRecipe, TakesTheFewestBitsThatAreGoodEnough) {
  const SyntheticText text(testing::synthetic_shape(), 300, 5);
  Calibration calibration = measured(text);
  EXPECT_EQ(choose(text, "auto:quality=5.1%", calibration)->recipe, "bands:bits=1");
  EXPECT_EQ(choose(text, "auto:quality=0.71%", calibration)->recipe, "bands");
  EXPECT_EQ(choose(text, "auto:quality=0.01%", calibration)->recipe, "full");
  const RatePoint half = expected_cost(calibration.rates, 1.5);
  EXPECT_NEAR(half.kl, std::sqrt(0.04 * 0.0064), 1e-6);
  EXPECT_NEAR(half.loss, std::sqrt(0.05 * 0.007), 1e-6);
  EXPECT_NEAR(expected_cost(calibration.rates, 0.5).kl, 0.04 * std::sqrt(0.04 / 0.0064), 1e-6);
  EXPECT_EQ(expected_cost(calibration.rates, 5.0).kl, 0.002f);
  calibration.rates.clear();
  const auto unknown = choose(text, "auto:quality=1%", calibration);
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("kvspan calibrate"), std::string::npos);
  const auto blind = choose(text, "auto:budget=1MiB,ctx=8192", calibration);
  ASSERT_TRUE(blind) << blind.error().message;
  EXPECT_FALSE(blind->expected);
}

}  // namespace
}  // namespace kvspan
