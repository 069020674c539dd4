// SPDX-License-Identifier: Apache-2.0
// Layers whose queries see the last tokens only, under every recipe: what can still be seen is
// held, what cannot goes, and nothing else changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cache/visible.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/held_positions.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace layer_window_test {

using testing::SuiteRecipe;
using testing::SyntheticText;

constexpr std::int32_t kTokens = 500;

// A window in the first layer, chunks in the second.
CacheShape windowed_shape() {
  CacheShape shape = testing::synthetic_shape();
  shape.layers[0].window = 100;
  shape.layers[1].chunk = 90;
  return shape;
}

class LayerWindow : public ::testing::TestWithParam<SuiteRecipe> {
 protected:
  static const SyntheticText& text() {
    static const SyntheticText text(windowed_shape(), kTokens, 9);
    return text;
  }
  static std::shared_ptr<const Prepared> prepared(const CacheShape& shape) {
    static const Calibration calibration = text().calibration();
    return prepare(shape, Recipe::parse(GetParam().text).value(), &calibration).value();
  }
  static std::int32_t tokens_of(const MethodCache& cache, int layer) {
    std::size_t most = 0;
    for (std::size_t g = 0; g < cache.groups(layer); ++g) {
      most = std::max(most, testing::held_positions(cache.group(layer, g)).size());
    }
    return static_cast<std::int32_t>(most);
  }
};

TEST_P(LayerWindow, HoldsWhatLaterQueriesSeeAndLittleElse) {
  MethodCache cache(prepared(windowed_shape()));
  for (std::int32_t next = 0; next < kTokens; next = cache.tokens()) {
    testing::run(cache, text(), next, std::min(next < 200 ? 50 : 7, kTokens - next), 50);
    for (int layer = 0; layer < 2; ++layer) {
      const std::int32_t needed =
          first_seen(text().shape().layers[std::size_t(layer)], cache.tokens());
      for (std::size_t g = 0; g < cache.groups(layer) && !GetParam().drops; ++g) {
        std::vector<std::int32_t> held = testing::held_positions(cache.group(layer, g));
        held.erase(held.begin(), std::lower_bound(held.begin(), held.end(), needed));
        ASSERT_EQ(held.size(), std::size_t(cache.tokens() - needed)) << layer;
      }
      // What is seen, what waits for a unit of 64 rows behind 32 recent ones, or to learn from up
      // to 112, and a segment or block of 64 that goes whole.
      EXPECT_LE(tokens_of(cache, layer), 100 + 64 + 32 + 112 + 64) << layer << " at " << next;
    }
    EXPECT_EQ(cache.bytes().total, cache.ledger()->total());
  }
}

// A cache of the same recipe that sees the same, but whose layers do not forget: windows as long as
// the text, and queries that are held against the rows within.
TEST_P(LayerWindow, TakesFewerBytesThanTheWholeText) {
  if (GetParam().drops) return;
  MethodCache cache(prepared(windowed_shape())), whole(prepared(testing::synthetic_shape()));
  testing::run(cache, text(), 0, kTokens, 50);
  testing::run(whole, text(), 0, kTokens, 50);
  const auto tokens_bytes = [](const CacheBytes& bytes) {
    return bytes.full_rank + bytes.coefficients + bytes.scales;
  };
  EXPECT_LT(tokens_bytes(cache.bytes()), 0.75 * tokens_bytes(whole.bytes()));
}

TEST_P(LayerWindow, GoesBackAsFarAsWhatIsHeldAllows) {
  MethodCache cache(prepared(windowed_shape()));
  testing::run(cache, text(), 0, 400, 50);
  const std::int32_t least = cache.least_tokens();
  EXPECT_GT(least, 1);
  EXPECT_LE(least, 400);
  EXPECT_FALSE(cache.truncate(least - 1));
  for (std::int32_t n = least; n < 400; n += 11) {
    const auto fork = cache.fork().value();
    ASSERT_TRUE(fork->truncate(n));
    for (int layer = 0; layer < 2 && !GetParam().drops; ++layer) {
      const std::int32_t needed = first_seen(text().shape().layers[std::size_t(layer)], n);
      const auto& group = static_cast<MethodCache&>(*fork).group(layer, 0);
      std::vector<std::int32_t> held = testing::held_positions(group);
      held.erase(held.begin(), std::lower_bound(held.begin(), held.end(), needed));
      EXPECT_EQ(held.size(), std::size_t(n - needed)) << layer;
    }
    testing::run(*fork, text(), n, 90, 13);
  }
}

TEST_P(LayerWindow, SavedCachesGoOnAlike) {
  const auto from = prepared(windowed_shape());
  MethodCache cache(from);
  testing::run(cache, text(), 0, 333, 50);
  const std::vector<std::byte> bytes = cache.save().value();
  auto loaded = MethodCache::load(from, bytes);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(testing::run(**loaded, text(), 333, 160, 8), testing::run(cache, text(), 333, 160, 8));
  EXPECT_EQ((*loaded)->least_tokens(), cache.least_tokens());
}

INSTANTIATE_TEST_SUITE_P(Recipes, LayerWindow, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

}  // namespace layer_window_test
}  // namespace kvspan
