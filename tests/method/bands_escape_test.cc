// SPDX-License-Identifier: Apache-2.0
// Which tokens bands keep exact.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

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
  const BandsStore& keys = cache.group(0, 0).bands()[0].keys;
  std::vector<std::int32_t> found;
  for (std::int32_t t = 0; t < keys.tokens(); ++t) {
    if ((keys.escaped(t / 16) >> (t % 16) & 1) != 0) found.push_back(keys.first_position() + t);
  }
  return found;
}

class BandsEscape : public ::testing::Test {
 protected:
  BandsEscape() : text(testing::synthetic_shape(), 400, 11) {
    Random random(12);
    for (const std::int32_t t : {0, 101, 205, 290}) text.make_massive(t, random);
  }
  SyntheticText text;
};

TEST_F(BandsEscape, TokensWithTheFirstOnesValuesStayExact) {
  const std::vector<std::int32_t> massive = {101, 205, 290};
  EXPECT_EQ(escapes(text, "bands:bits=2,sink=16,recent=32,anchor=32,escape=3%"), massive);
  EXPECT_EQ(escapes(text, "bands:bits=2,sink=16,recent=32,anchor=32,escape=3%,ends=int8"), massive);
}

TEST_F(BandsEscape, TheirShareOfTheTokensSoFarIsBounded) {
  const std::string recipe = "bands:bits=2,sink=16,recent=32,anchor=32,escape=";
  // Token 101 is the 86th that is coded: one in a hundred would be too many there.
  EXPECT_EQ(escapes(text, recipe + "1%"), (std::vector<std::int32_t>{205, 290}));
  EXPECT_TRUE(escapes(text, recipe + "0").empty());
}

}  // namespace
}  // namespace kvspan
