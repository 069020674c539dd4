// SPDX-License-Identifier: Apache-2.0
// Bytes that caches report against what the allocator gave out, for every recipe; and the working
// memory of attention against its stated bound.
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "tests/base/allocation_watch.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::buffer_bytes;
using testing::plain_bytes;
using testing::SyntheticText;

class AllocatedBytes : public ::testing::TestWithParam<testing::SuiteRecipe> {};

TEST_P(AllocatedBytes, ReportedBytesAreWhatTheAllocatorGaveOut) {
  static const SyntheticText text(testing::synthetic_shape(), 300, 7);
  static const Calibration calibration = text.calibration();
  const long long nothing = buffer_bytes();
  {
    const auto factory = CacheFactory::create(text.shape(), GetParam().text, &calibration);
    ASSERT_TRUE(factory) << factory.error().message;
    const long long shared = buffer_bytes() - nothing;
    EXPECT_EQ(shared, static_cast<long long>(factory->shared_bytes()));
    // Threads that code keep what they work in, whichever cache it is for: there before anything counts.
    testing::run(*factory->make(), text, 0, 300, 33);
    const long long before = plain_bytes();
    const auto cache = factory->make();
    std::int32_t at = 0;
    for (const std::int32_t n : {1, 40, 100, 59, 100}) {
      testing::run(*cache, text, at, n, 33);
      at += n;
      EXPECT_EQ(buffer_bytes() - nothing - shared, static_cast<long long>(cache->bytes().total))
          << at;
    }
    // Beside its buffers a cache has what names them: segments, codes, groups. No copy of rows or
    // scores hides there.
    const CacheBytes bytes = cache->bytes();
    std::size_t groups = 0;
    for (const LayerShape& layer : text.shape().layers) groups += std::size_t(layer.kv_heads);
    // A coded segment covers 32 tokens or more, a full-rank one is found per 32; each is below
    // 1 KB with its sides and codes, and vectors have up to twice the room they need.
    const std::size_t segments = groups * (300 / 32 + 3);
    EXPECT_LE(plain_bytes() - before, static_cast<long long>(2048 * segments + 4096))
        << bytes.total;

    auto fork = cache->fork();
    ASSERT_TRUE(fork);
    auto saved = cache->save();
    ASSERT_TRUE(saved);
    const long long both = buffer_bytes();
    auto loaded = factory->load(*saved);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(buffer_bytes() - both, static_cast<long long>((*loaded)->bytes().total));
    cache->clear();
    EXPECT_GE(buffer_bytes() - nothing - shared, static_cast<long long>((*fork)->bytes().total));
  }
  EXPECT_EQ(buffer_bytes(), nothing) << "nothing is left behind";
}

INSTANTIATE_TEST_SUITE_P(Recipes, AllocatedBytes, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

// One sequence grows from 250 tokens to 16000; queries come alone and in blocks. What attention
// takes beside the cache stays below the stated bound, and stops growing.
TEST(AttentionWorkspace, IsBoundedWhateverTheNumberOfTokens) {
  const CacheShape shape = testing::synthetic_shape(1, 2, 16);
  const SyntheticText text(shape, 500, 7);
  const Calibration calibration = text.calibration();
  for (const char* recipe : {"full", "static:rk=8,rv=8,sink=4,recent=16",
                             "static:rk=16,rv=16,share=layer,rope=anchor,sink=4,recent=16",
                             "quant:bits=4,group=16,sink=4,recent=16", "h2o:keep=1.0"}) {
    for (const int threads : {1, 3}) {
      const auto factory = CacheFactory::create(shape, recipe, &calibration);
      ASSERT_TRUE(factory) << factory.error().message;
      const std::size_t bound = most_attention_scratch_bytes(shape, threads);
      EXPECT_LT(bound, std::size_t{2} << 20);
      const auto cache = factory->make();
      const auto scratch = make_attention_scratch();
      ThreadPool pool(threads);
      std::vector<float> out(500 * 4 * 16);
      std::vector<std::int32_t> positions(500);
      std::vector<std::size_t> held;
      long long transient = 0;
      for (std::int32_t at = 0; at < 16000; at += 250) {
        for (std::size_t i = 0; i < 250; ++i) positions[i] = at + std::int32_t(i);
        KvRows rows = text.rows(0, 0, 250);
        rows.positions = std::span(positions).first(250);
        pool.run([&](Team& team) { EXPECT_TRUE(cache->append(0, rows, team)); });
        for (const std::size_t n : {1u, 2u, 3u, 5u, 250u}) {
          if (at % (n == 250 ? 4000 : 1000) != 0) continue;
          Queries queries = text.queries(0, 0, std::int32_t(n));
          queries.positions = std::span(positions).subspan(250 - n, n);
          const long long before = plain_bytes();
          pool.run([&](Team& team) {
            EXPECT_TRUE(
                cache->attend(0, queries, {out.data(), {n, 4, 16}}, *scratch, team).has_value());
          });
          transient = std::max(transient, plain_bytes() - before);
        }
        EXPECT_LE(attention_scratch_bytes(*scratch), bound) << recipe << " " << at;
        held.push_back(attention_scratch_bytes(*scratch));
        pool.run([&](Team& team) { EXPECT_TRUE(cache->settle(0, team)); });
      }
      EXPECT_EQ(held[held.size() / 2], held.back()) << "8000 tokens need what 16000 need";
      // On the plain heap: the plan, and where a method watches attention a number per token,
      // group and query head.
      const bool watches = std::string(recipe).starts_with("h2o");
      EXPECT_LE(transient, watches ? 2 * 4 * 16000 + 4 * 4 * 250 + 4096 : 4096) << recipe;
      std::printf("%-60s %d threads: %zu bytes of at most %zu\n", recipe, threads, held.back(),
                  bound);
    }
  }
}

// The figures that cache.h states.
TEST(AttentionWorkspace, OfUsualShapesIsAsStated) {
  const auto most = [](std::int32_t query_heads, std::int32_t kv_heads, std::int32_t dim) {
    LayerShape layer;
    layer.query_heads = query_heads;
    layer.kv_heads = kv_heads;
    layer.key_dim = layer.value_dim = dim;
    const std::size_t one = most_attention_scratch_bytes({{layer}}, 1);
    const std::size_t thread = most_attention_scratch_bytes({{layer}}, 2) - one;
    std::printf("%d query heads on %d, d = %d: %zu + %zu for each thread\n", query_heads, kv_heads,
                dim, one - thread, thread);
    return std::pair(one - thread, thread);
  };
  const auto [small, small_thread] = most(9, 3, 64);
  EXPECT_LE(small, 1'700'000u);
  EXPECT_LE(small_thread, 600'000u);
  const auto [large, large_thread] = most(32, 8, 128);
  EXPECT_LE(large, 3'200'000u);
  EXPECT_LE(large_thread, 2'000'000u);
}

}  // namespace
}  // namespace kvspan
