// SPDX-License-Identifier: Apache-2.0
// Going back, under every recipe: to any number of tokens from the least on, with every row before
// it, and from there on as well as a cache that never went further.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/base/sweep.h"
#include "tests/method/held_positions.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace truncate_test {

using testing::SuiteRecipe;
using testing::SyntheticText;

constexpr std::int32_t kTokens = 240;
constexpr std::int32_t kFilled = 190;

class TruncateSuite : public ::testing::TestWithParam<SuiteRecipe> {
 protected:
  static const SyntheticText& text() {
    static const SyntheticText text(testing::synthetic_shape(), kTokens, 11);
    return text;
  }
  using Codes = std::shared_ptr<const Prepared>;
  static Codes prepared(const std::string& recipe) {
    static const Calibration calibration = text().calibration();
    return prepare(text().shape(), Recipe::parse(recipe).value(), &calibration).value();
  }
  // Tokens 0 .. n-1, those from 150 on one by one.
  static std::unique_ptr<MethodCache> filled(const Codes& codes, std::int32_t n) {
    auto cache = std::make_unique<MethodCache>(codes);
    testing::run(*cache, text(), 0, std::min(n, 150), 50);
    if (n > 150) testing::run(*cache, text(), 150, n - 150, 1);
    return cache;
  }
  static std::vector<float> rest(KvCache& cache, std::int32_t n) {
    return testing::run(cache, text(), n, kTokens - n, 1);
  }
  // What an exact cache answers from token n on: the same for every recipe.
  static const std::vector<float>& exact_rest(std::int32_t n) {
    static const Codes full = prepared("full:store=f32");
    static std::map<std::int32_t, std::vector<float>> known;
    auto& found = known[n];
    if (found.empty()) found = rest(*filled(full, n), n);
    return found;
  }
  static std::vector<std::vector<std::int32_t>> held(const MethodCache& cache) {
    std::vector<std::vector<std::int32_t>> all;
    for (int layer = 0; layer < 2; ++layer) {
      for (std::size_t g = 0; g < cache.groups(layer); ++g) {
        all.push_back(testing::held_positions(cache.group(layer, g)));
      }
    }
    return all;
  }
  // Positions of the oldest rows that nothing has been done to.
  static std::vector<std::int32_t> waiting_from(const MethodCache& cache) {
    std::vector<std::int32_t> all;
    for (int layer = 0; layer < 2; ++layer) {
      for (std::size_t g = 0; g < cache.groups(layer); ++g) {
        const Group& group = cache.group(layer, g);
        all.push_back(group.extent().next - group.waiting());
      }
    }
    return all;
  }
};

TEST_P(TruncateSuite, KeepsEveryRowBeforeAnyNumberFromTheLeastOn) {
  const auto cache = filled(prepared(GetParam().text), kFilled);
  const auto all = held(*cache);
  const std::int32_t least = cache->least_tokens();
  EXPECT_GE(least, 1);
  EXPECT_LE(least, kFilled);
  if (!GetParam().drops) {
    EXPECT_EQ(least, 1);
  }
  constexpr std::int32_t kEvery = testing::kSanitized ? 5 : 1;
  static_assert(kFilled % kEvery == 0, "one token more than there are is among them");
  for (std::int32_t n = 1; n <= kFilled + 1; n += kEvery) {
    const auto fork = cache->fork().value();
    const Status truncated = fork->truncate(n);
    ASSERT_EQ(truncated.has_value(), n >= least) << n;
    if (!truncated) {
      EXPECT_EQ(truncated.error().code, ErrorCode::kInvalidArgument);
      EXPECT_NE(truncated.error().message.find("allowed: 0, or"), std::string::npos);
      ASSERT_EQ(fork->tokens(), kFilled) << "a refusal changes nothing";
      continue;
    }
    ASSERT_EQ(fork->tokens(), std::min(n, kFilled));
    EXPECT_LE(fork->least_tokens(), n);
    auto expected = all;
    for (auto& group : expected)
      group.erase(std::lower_bound(group.begin(), group.end(), n), group.end());
    ASSERT_EQ(held(static_cast<const MethodCache&>(*fork)), expected) << n;
  }
}

double root_mean_square(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Noise: how far the outputs of a cache that never went further are from those of an exact one.
// Rows that were coded when it went back stay coded, rows of a tile that was cut are coded twice,
// and what was learnt from rows is learnt again, from others: within twice the noise where a method learns
// from the sequence, else within 1.4 times. Where no row had been coded or looked at since, the bits are the same.
TEST_P(TruncateSuite, GoesOnAsWellAsACacheThatNeverWentFurther) {
  const Codes codes = prepared(GetParam().text);
  const auto is = [](std::string_view words) { return GetParam().text.find(words) != std::string::npos; };
  const bool learns = is("fd:") || is("oja:") || is("rotate:") || is("calib=online");
  for (const std::int32_t n : {1, 77, 150, 171, kFilled - 1}) {
    const auto cache = filled(codes, kFilled);
    if (n < cache->least_tokens()) continue;
    const auto straight = filled(codes, n);
    const bool untouched = waiting_from(*straight) == waiting_from(*cache);
    ASSERT_TRUE(cache->truncate(n));
    EXPECT_EQ(cache->bytes().total, cache->ledger()->total()) << n;
    const std::vector<float> a = rest(*cache, n), b = rest(*straight, n), &right = exact_rest(n);
    const bool learns_ahead = is("fd:");
    if (untouched && GetParam().splits && !learns_ahead) {
      EXPECT_EQ(a, b) << n;
    }
    EXPECT_LE(root_mean_square(a, right), (learns ? 2.0 : 1.4) * root_mean_square(b, right) + 1e-6) << n;
  }
}

TEST_P(TruncateSuite, ToNothingEqualsANewCache) {
  const Codes codes = prepared(GetParam().text);
  const auto cache = filled(codes, 150);
  MethodCache fresh(codes);
  ASSERT_TRUE(cache->truncate(0));
  EXPECT_EQ(testing::run(*cache, text(), 0, 150, 50), testing::run(fresh, text(), 0, 150, 50));
}

INSTANTIATE_TEST_SUITE_P(Recipes, TruncateSuite, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

}  // namespace truncate_test
}  // namespace kvspan
