// SPDX-License-Identifier: Apache-2.0
// Which tokens bands keep exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "method/bands/bands_policy.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

// Positions that escaped, of a text read with a recipe.
std::vector<std::int32_t> escapes(const SyntheticText& text, const std::string& recipe) {
  const Calibration calibration = text.calibration();
  auto prepared = prepare(text.shape(), Recipe::parse(recipe).value(), &calibration);
  EXPECT_TRUE(prepared) << recipe << ": " << (prepared ? "" : prepared.error().message);
  MethodCache cache(*prepared);
  testing::run(cache, text, 0, text.size(), 16);
  const BandsStore& keys = bands_of(cache.group(0, 0))[0].keys();
  std::vector<std::int32_t> found;
  for (std::int32_t t = 0; t < keys.tokens(); ++t) {
    if ((keys.escaped(t / 16) >> (t % 16) & 1) != 0) found.push_back(keys.first_position() + t);
  }
  return found;
}

const std::string kRecipe = "bands:bits=2,sink=16,recent=32,anchor=32,escape=";

// Others escape, too: those whose coding error stands far out.
std::vector<std::int32_t> among(const std::vector<std::int32_t>& wanted,
                                const std::vector<std::int32_t>& found) {
  std::vector<std::int32_t> both;
  std::set_intersection(wanted.begin(), wanted.end(), found.begin(), found.end(),
                        std::back_inserter(both));
  return both;
}

TEST(BandsEscape, TokensWithTheFirstOnesValuesStayExact) {
  SyntheticText text(testing::synthetic_shape(), 400, 11);
  const std::vector<std::int32_t> massive = {101, 205, 290};
  EXPECT_TRUE(among(massive, escapes(text, kRecipe + "3%")).empty());
  Random random(12);
  for (const std::int32_t t : {0, 101, 205, 290}) text.make_massive(t, random);
  EXPECT_EQ(among(massive, escapes(text, kRecipe + "3%")), massive);
  EXPECT_EQ(among(massive, escapes(text, kRecipe + "3%,ends=int8")), massive);
}

TEST(BandsEscape, TheirShareOfTheTokensSoFarIsBounded) {
  SyntheticText text(testing::synthetic_shape(), 400, 11);
  Random random(12);
  for (std::int32_t t = 0; t < 400; t += 5) text.make_massive(t, random);
  for (const double share : {0.0, 0.01, 0.05}) {
    const std::vector<std::int32_t> found = escapes(text, kRecipe + std::to_string(share));
    for (std::size_t i = 0; i < found.size(); ++i) {
      // Tokens are coded from position 16 on.
      EXPECT_LE(double(i + 1), share * double(found[i] - 16 + 1));
    }
    EXPECT_EQ(found.empty(), share == 0.0);
  }
}

}  // namespace
}  // namespace kvspan
