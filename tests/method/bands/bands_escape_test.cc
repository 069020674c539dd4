// SPDX-License-Identifier: Apache-2.0
// Which tokens bands keep exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "method/bands/bands_design.h"
#include "method/bands/bands_policy.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

constexpr std::int32_t kSink = 16;
// Errors count as they are: a plain sum of squares tells them.
const std::string kRecipe = "bands:bits=2,sink=16,recent=32,anchor=32,metric=iso,escape=";

// A text of which some tokens are unlike what codes were designed for.
SyntheticText text_with_outliers() {
  SyntheticText text(testing::synthetic_shape(), 400, 11);
  Random random(12);
  for (std::int32_t t = 40; t < 360; t += 9) text.make_massive(t, random);
  return text;
}

struct Coded {
  std::int32_t position;
  bool exact;
  double error;  // plain: what the codes leave of the rows, squared
};

// The coded tokens of the first layer, those kept exact included, whose codes keep their place.
std::vector<Coded> coded(const SyntheticText& text, const std::string& recipe, const Calibration& calibration) {
  auto prepared = prepare(text.shape(), Recipe::parse(recipe).value(), &calibration);
  EXPECT_TRUE(prepared) << recipe << ": " << (prepared ? "" : prepared.error().message);
  MethodCache cache(*prepared);
  testing::run(cache, text, 0, text.size(), 16);
  const BandsStore& store = bands_of(cache.group(0, 0))[0].keys();
  const BandsCode& code = store.code();
  std::vector<float> c(std::size_t(code.places())), keys(std::size_t(code.key_width()));
  std::vector<float> values(std::size_t(code.width() - code.key_width()));
  std::vector<Coded> found;
  for (std::int32_t t = 0; t < store.tokens(); ++t) {
    const std::int32_t position = store.first_position() + t;
    store.coefficients(t, c.data());
    code.restore(c.data(), position, keys.data(), values.data());
    const KvRows row = text.rows(0, position, 1);
    double error = 0.0;
    for (std::size_t i = 0; i < keys.size(); ++i) error += std::pow(double{keys[i]} - row.keys.row(0, 0)[i], 2.0);
    for (std::size_t i = 0; i < values.size(); ++i) error += std::pow(double{values[i]} - row.values.row(0, 0)[i], 2.0);
    found.push_back({position, (store.escaped(t / 16) >> (t % 16) & 1) != 0, error});
  }
  return found;
}

// What a bit is worth to the codes of kRecipe.
double worth_of(const SyntheticText& text, const Calibration& calibration) {
  BandsOptions options;
  options.bits = 2.0;
  options.levels = std::get<LevelSet>(*read_value(ValueKind::kLevels, "0-6/8"));
  options.anchor = 32;
  options.query_metric = false;
  return design_bands(text.shape(), calibration, {{{0, 2}}, {{0, 2}}}, options, std::make_shared<Ledger>())
      .value()[0][0]
      .worth.keys;
}

TEST(BandsEscape, TokensStayExactWhoseErrorCostsMoreThanTheirRows) {
  const SyntheticText usual(testing::synthetic_shape(), 400, 11), text = text_with_outliers();
  const Calibration calibration = usual.calibration();
  const double worth = worth_of(text, calibration);
  for (const auto& [ends, bits] : {std::pair("", 16.0), std::pair(",ends=int8", 8.5)}) {
    const double most = worth * (bits * 64 + 32);
    std::size_t exact = 0, odd = 0;
    for (const Coded& token : coded(text, kRecipe + "100%" + ends, calibration)) {
      // B is rounded to f16, and rows at 8 bits before they are coded.
      if (std::abs(token.error - most) < 0.02 * most) continue;
      if (token.error > most) {
        EXPECT_TRUE(token.exact) << "position " << token.position << ends << ": error " << token.error << " of " << most;
      }
      if (token.exact) ++(token.error > most ? exact : odd);
    }
    EXPECT_GT(exact, 0u);
    // Those that stay exact for other reasons: 0.5 % of 400.
    EXPECT_LE(odd, 2u);
  }
}

TEST(BandsEscape, TokensWithTheFirstOnesValuesStayExact) {
  SyntheticText text(testing::synthetic_shape(), 1200, 11);
  const std::vector<std::int32_t> massive = {500, 800, 1100};
  const std::string recipe = "bands:bits=2,sink=16,recent=32,anchor=32";
  // Massive tokens that stay exact; one that does not finds the share of 0.5 % used up.
  const auto exact = [&](const std::string& ends, bool are_massive) {
    std::int32_t all = 0, found = 0;
    for (const Coded& token : coded(text, recipe + ends, text.calibration())) {
      const bool massive_one = std::ranges::find(massive, token.position) != massive.end();
      if (massive_one && are_massive && !token.exact) {
        EXPECT_GT(all + 1, 0.005 * (token.position - kSink + 1)) << "position " << token.position << ends;
      }
      all += token.exact ? 1 : 0;
      found += massive_one && token.exact ? 1 : 0;
    }
    return found;
  };
  EXPECT_EQ(exact("", false), 0);
  Random random(12);
  for (const std::int32_t t : {0, 500, 800, 1100}) text.make_massive(t, random);
  EXPECT_GE(exact("", true), 2);
  EXPECT_GE(exact(",ends=int8", true), 2);
}

TEST(BandsEscape, TheirShareOfTheTokensSoFarIsBounded) {
  const SyntheticText usual(testing::synthetic_shape(), 400, 11), text = text_with_outliers();
  const Calibration calibration = usual.calibration();
  for (const double share : {0.0, 0.01, 0.05}) {
    std::int32_t count = 0;
    for (const Coded& token : coded(text, kRecipe + std::to_string(share), calibration)) {
      if (!token.exact) continue;
      ++count;
      // Tokens are coded from position 16 on.
      EXPECT_LE(double(count), share * double(token.position - kSink + 1));
    }
    EXPECT_EQ(count == 0, share == 0.0);
  }
}

}  // namespace
}  // namespace kvspan
