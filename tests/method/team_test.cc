// SPDX-License-Identifier: Apache-2.0
// A team gives the bits that one thread gives, whatever the recipe: outputs, and all that the cache
// holds and has learnt.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "tests/base/sweep.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

// All members of the pool make each call, as an engine's do; a block that all write, then tokens
// that the leader writes.
std::vector<float> run_all(KvCache& cache, const SyntheticText& text, ThreadPool& pool) {
  const auto scratch = make_attention_scratch();
  std::vector<float> all;
  for (std::int32_t at = 0, n = 0; at < text.size(); at += n) {
    n = at < 200 ? std::min(150, text.size() - at) : 1;
    std::vector<float> out(2 * std::size_t(n) * 4 * 16);
    pool.run([&](Team& team) {
      for (std::size_t layer = 0; layer < 2; ++layer) {
        const int index = static_cast<int>(layer);
        float* to = out.data() + layer * out.size() / 2;
        const Status appended = cache.append(index, text.rows(layer, at, n), team);
        const Status attended = cache.attend(index, text.queries(layer, at, n),
                                             {to, {std::size_t(n), 4, 16}}, *scratch, team);
        const Status settled = cache.settle(index, team);
        if (!appended || !attended || !settled) ADD_FAILURE() << "a call failed";
      }
    });
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

class TeamSuite : public ::testing::TestWithParam<testing::SuiteRecipe> {};

TEST_P(TeamSuite, AnyNumberOfThreadsGivesTheSameBits) {
  static const SyntheticText text(testing::synthetic_shape(), 330, 7);
  static const Calibration calibration = text.calibration();
  const auto factory = CacheFactory::create(text.shape(), GetParam().text, &calibration);
  ASSERT_TRUE(factory) << factory.error().message;
  ThreadPool one(1);
  const auto alone = factory->make();
  const std::vector<float> expected = run_all(*alone, text, one);
  const auto bytes = alone->save();
  ASSERT_TRUE(bytes);
  // Teams of 2 to 16 for every recipe, or each recipe with one of them.
  const int some = static_cast<int>(std::hash<std::string>{}(GetParam().text) % 15) + 2;
  const int least = testing::all_cases() ? 2 : some, most = testing::all_cases() ? 16 : some;
  for (int threads = least; threads <= most; ++threads) {
    ThreadPool pool(threads);
    const auto together = factory->make();
    EXPECT_EQ(run_all(*together, text, pool), expected) << threads;
    EXPECT_EQ(*together->save(), *bytes) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, TeamSuite, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

// A member that is slow to see what is wrong finds the same as the others, who do not go on before.
TEST(TeamOfACache, ErrorsEndWithABarrier) {
  const SyntheticText text(testing::synthetic_shape(), 8, 7);
  const auto factory = CacheFactory::create(text.shape(), "full").value();
  const auto scratch = make_attention_scratch();
  ThreadPool pool(4);
  std::vector<float> out(4 * 16);
  for (int round = 0; round < 40; ++round) {
    const auto cache = factory.make();
    pool.run([&](Team& team) {
      const TensorView<float, 3> to(out.data(), {1, 4, 16});
      EXPECT_FALSE(cache->attend(0, text.queries(0, 0, 1), to, *scratch, team));  // nothing is held
      EXPECT_TRUE(cache->append(0, text.rows(0, 0, 1), team));
      EXPECT_FALSE(cache->append(0, text.rows(0, 0, 1), team));  // the position is taken
      EXPECT_FALSE(cache->append(7, text.rows(0, 1, 1), team));
      EXPECT_TRUE(cache->attend(0, text.queries(0, 0, 1), to, *scratch, team));
      EXPECT_FALSE(cache->settle(7, team));
      EXPECT_TRUE(cache->settle(0, team));
    });
    ASSERT_FALSE(::testing::Test::HasFailure()) << round;
  }
}

}  // namespace
}  // namespace kvspan
