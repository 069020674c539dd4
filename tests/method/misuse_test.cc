// SPDX-License-Identifier: Apache-2.0
// Unusual orders of calls and recipes at their corners: errors or results, never the end of the
// program.
#include <gtest/gtest.h>

#include <string>

#include "kvspan/cache.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

// Calls that an engine would not make: settling what nobody attended to, attending twice, appending
// or going back between attention and settling.
class Misuse : public ::testing::TestWithParam<testing::SuiteRecipe> {};

TEST_P(Misuse, AnyOrderOfCallsIsAnswered) {
  static const SyntheticText text(testing::synthetic_shape(), 240, 5);
  static const Calibration calibration = text.calibration();
  const auto factory = CacheFactory::create(text.shape(), GetParam().text, &calibration);
  ASSERT_TRUE(factory) << factory.error().message;
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  std::vector<float> out(90 * 4 * 16);
  const auto attend = [&](KvCache& cache, std::int32_t at, std::int32_t n) {
    return cache.attend(0, text.queries(0, at, n), {out.data(), {std::size_t(n), 4, 16}}, *scratch,
                        team);
  };
  const auto cache = factory->make();
  EXPECT_TRUE(cache->settle(0, team));
  EXPECT_FALSE(attend(*cache, 0, 1));
  EXPECT_TRUE(cache->append(0, text.rows(0, 0, 90), team));
  EXPECT_TRUE(cache->settle(0, team));
  EXPECT_TRUE(cache->settle(0, team));
  EXPECT_TRUE(attend(*cache, 89, 1));
  EXPECT_TRUE(attend(*cache, 60, 30));
  EXPECT_TRUE(cache->append(0, text.rows(0, 90, 40), team));
  EXPECT_TRUE(cache->settle(0, team));
  EXPECT_TRUE(attend(*cache, 130, 20));
  EXPECT_EQ(cache->tokens(), 0) << "layer 1 holds none";
  (void)cache->truncate(100);
  EXPECT_TRUE(cache->settle(0, team));
  auto fork = cache->fork();
  ASSERT_TRUE(fork);
  const Status gap = (*fork)->append(0, text.rows(0, 130, 70), team);
  if (!gap) {
    // Only bands needs consecutive positions, and says so.
    EXPECT_NE(GetParam().text.find("bands:"), std::string::npos);
    EXPECT_NE(gap.error().message.find("consecutive positions"), std::string::npos);
  }
  EXPECT_TRUE(attend(**fork, 199, 1));
  EXPECT_TRUE((*fork)->settle(0, team));
  EXPECT_TRUE((*fork)->save());
}

// Forks hold what they need.
TEST_P(Misuse, ForksOutliveTheirParentAndItsFactory) {
  static const SyntheticText text(testing::synthetic_shape(), 240, 5);
  static const Calibration calibration = text.calibration();
  std::unique_ptr<KvCache> fork, straight;
  {
    const auto factory = CacheFactory::create(text.shape(), GetParam().text, &calibration);
    ASSERT_TRUE(factory) << factory.error().message;
    const auto parent = factory->make();
    straight = factory->make();
    testing::run(*parent, text, 0, 150, 50);
    fork = std::move(parent->fork().value());
  }
  testing::run(*straight, text, 0, 150, 50);
  EXPECT_EQ(testing::run(*fork, text, 150, 80, 1), testing::run(*straight, text, 150, 80, 1));
  EXPECT_EQ(fork->bytes().total, straight->bytes().total);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Misuse, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

// Rows are coded before they are part of a whole page, or dropped while a sketch waits for more of
// them.
TEST(MisuseRecipes, CornersThatComposeRun) {
  const SyntheticText text(testing::synthetic_shape(), 240, 5);
  const Calibration calibration = text.calibration();
  for (const char* recipe : {"quest:keep=64,page=24,skip=0+static:rk=8,rv=8,sink=5,recent=0",
                             "shadowkv:keep=64,chunk=24,outliers=2+quant:group=16,sink=5,recent=0",
                             "h2o:keep=0.5+fd:rk=6,rv=6,tau=0.3,sink=0,recent=0",
                             "scissorhands:keep=50,recent=1,drop=10,history=20"}) {
    const auto factory = CacheFactory::create(text.shape(), recipe, &calibration);
    ASSERT_TRUE(factory) << factory.error().message;
    for (const std::int32_t block : {1, 30}) {
      const auto cache = factory->make();
      testing::run(*cache, text, 0, 200, block);
      EXPECT_EQ(cache->tokens(), 200) << recipe;
      const auto saved = cache->save();
      ASSERT_TRUE(saved);
      auto loaded = factory->load(*saved);
      ASSERT_TRUE(loaded) << recipe << ": " << loaded.error().message;
      EXPECT_EQ(testing::run(**loaded, text, 200, 40, 1), testing::run(*cache, text, 200, 40, 1))
          << recipe;
    }
  }
}

TEST(MisuseRecipes, LayersWithOtherHeadsOfTheSameProductKeepTheirOwnCodes) {
  CacheShape shape = testing::synthetic_shape(2, 2, 16);
  LayerShape& wide = shape.layers[1];
  wide.query_heads = 2;
  wide.kv_heads = 1;
  wide.key_dim = wide.value_dim = 32;
  const SyntheticText text(shape, 120, 5);
  const auto cache = make_cache(shape, "quant:layout=tensor,bits=8,sink=4,recent=16").value();
  testing::run(*cache, text, 0, 120, 40);
  EXPECT_GT(cache->bytes().coefficients, 0u);
}

}  // namespace
}  // namespace kvspan
