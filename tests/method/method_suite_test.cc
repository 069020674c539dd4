// SPDX-License-Identifier: Apache-2.0
// What every recipe must do, whatever its method.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/certificate/certificate.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/held_positions.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SuiteRecipe;
using testing::SyntheticText;

constexpr std::int32_t kTokens = 300;

class MethodSuite : public ::testing::TestWithParam<SuiteRecipe> {
 protected:
  static const SyntheticText& text() {
    static const SyntheticText text(testing::synthetic_shape(), kTokens, 7);
    return text;
  }
  static const Calibration& calibration() {
    static const Calibration calibration =
        SyntheticText(testing::synthetic_shape(), kTokens, 7).calibration();
    return calibration;
  }
  static std::unique_ptr<MethodCache> make(const std::string& recipe) {
    Result<Recipe> parsed = Recipe::parse(recipe);
    EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
    Result<std::shared_ptr<const Prepared>> prepared =
        prepare(text().shape(), *parsed, &calibration());
    EXPECT_TRUE(prepared) << (prepared ? "" : prepared.error().message);
    return std::make_unique<MethodCache>(*prepared);
  }
  static std::unique_ptr<MethodCache> make() { return make(GetParam().text); }

  // Which tokens each coded segment has, and what each store has of which token, coded or not. (Full-rank rows may
  // lie in other pieces of memory.)
  struct Layout {
    std::vector<std::pair<std::int32_t, std::int32_t>> segments;
    std::vector<std::int32_t> positions;
    std::vector<float> rows;
    bool operator==(const Layout&) const = default;
  };
  static Layout layout(const MethodCache& cache) {
    Layout all;
    for (int layer = 0; layer < 2; ++layer) {
      for (std::size_t g = 0; g < cache.groups(layer); ++g) {
        const Group& group = cache.group(layer, g);
        for (const Segment& segment : group.list().segments()) {
          if (segment.coded()) all.segments.emplace_back(segment.positions.at(0), segment.tokens());
        }
        for (const TokenStore* store : testing::stores_of(group)) {
          const RowBlock held = testing::held_rows(group, std::span(&store, 1));
          all.positions.insert(all.positions.end(), held.positions.begin(), held.positions.end());
          all.rows.insert(all.rows.end(), held.keys.begin(), held.keys.end());
          all.rows.insert(all.rows.end(), held.values.begin(), held.values.end());
        }
      }
    }
    return all;
  }
};

TEST_P(MethodSuite, CanonicalTextMakesAnEqualCache) {
  const auto cache = make();
  EXPECT_EQ(make(cache->recipe())->recipe(), cache->recipe());
}

TEST_P(MethodSuite, NoRowIsLostOrDoubledHoweverCallsAreSplit) {
  std::vector<Layout> layouts;
  std::vector<float> last;
  for (const std::int32_t block : {1, 7, 64, kTokens}) {
    const auto cache = make();
    testing::run(*cache, text(), 0, kTokens - 1, block);
    ASSERT_EQ(cache->tokens(), kTokens - 1);
    for (int layer = 0; layer < 2; ++layer) {
      for (std::size_t g = 0; g < cache->groups(layer); ++g) {
        const std::vector<std::int32_t> held = testing::held_positions(cache->group(layer, g));
        for (std::size_t i = 1; i < held.size(); ++i) ASSERT_LT(held[i - 1], held[i]);
        ASSERT_EQ(held.back(), kTokens - 2);
        if (!GetParam().drops) {
          ASSERT_EQ(held.size(), std::size_t(kTokens - 1)) << block;
        }
      }
    }
    if (!GetParam().splits) continue;
    // The same rows; sums over full-rank ones may be made in another order.
    const std::vector<float> out = testing::run(*cache, text(), kTokens - 1, 1, 1);
    if (layouts.empty()) last = out;
    layouts.push_back(layout(*cache));
    EXPECT_EQ(layouts.back().segments, layouts.front().segments) << block;
    EXPECT_TRUE(layouts.back() == layouts.front()) << block;
    EXPECT_LE(testing::largest_difference(out, last), 1e-5) << block;
  }
}

TEST_P(MethodSuite, ForkGoesOnLikeTheOriginal) {
  const auto cache = make();
  testing::run(*cache, text(), 0, 200, 50);
  auto fork = cache->fork();
  ASSERT_TRUE(fork);
  const std::vector<float> a = testing::run(**fork, text(), 200, 60, 1);
  const std::vector<float> b = testing::run(*cache, text(), 200, 60, 1);
  EXPECT_EQ(a, b);
  EXPECT_EQ((*fork)->bytes().total, cache->bytes().total);
}

TEST_P(MethodSuite, EmptyAndOneRow) {
  const auto cache = make();
  EXPECT_EQ(cache->tokens(), 0);
  EXPECT_TRUE(cache->truncate(0));
  testing::run(*cache, text(), 0, 1, 1);
  EXPECT_EQ(cache->tokens(), 1);
  cache->clear();
  EXPECT_EQ(cache->tokens(), 0);
  EXPECT_EQ(cache->bytes().full_rank + cache->bytes().coefficients, 0u);
}

TEST_P(MethodSuite, BytesReportedAreBytesAllocated) {
  const auto cache = make();
  for (const std::int32_t n : {1, 40, 100, 59, 100}) {
    testing::run(*cache, text(), cache->tokens(), n, 33);
    const CacheBytes bytes = cache->bytes();
    const Ledger& ledger = *cache->ledger();
    EXPECT_EQ(bytes.full_rank, ledger.bytes(MemoryKind::kFullRank));
    const auto held = [&](MemoryKind kind) { return ledger.bytes(kind); };
    if (cache->group(0, 0).added().empty()) {
      EXPECT_EQ(bytes.coefficients, held(MemoryKind::kCoefficients));
      EXPECT_EQ(bytes.scales, held(MemoryKind::kScales));
      EXPECT_EQ(bytes.positions, held(MemoryKind::kPositions));
    }
    // Other stores than lists may hold all three in one piece of memory.
    EXPECT_EQ(bytes.coefficients + bytes.scales + bytes.positions,
              held(MemoryKind::kCoefficients) + held(MemoryKind::kScales) + held(MemoryKind::kPositions));
    EXPECT_EQ(bytes.bases, ledger.bytes(MemoryKind::kBases));
    EXPECT_EQ(bytes.sketches, ledger.bytes(MemoryKind::kSketches));
    EXPECT_EQ(bytes.total, ledger.total());
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, MethodSuite, ::testing::ValuesIn(testing::suite_recipes()),
                         testing::recipe_name);

// The error of every step against an exact cache stays below its certificate.
TEST(MethodCertificate, BoundsTheErrorOfEveryMethodThatKeepsResiduals) {
  const SyntheticText text(testing::synthetic_shape(), 260, 3);
  const Calibration calibration = text.calibration();
  for (const char* recipe : {"static:rk=6,rv=8,sink=4,recent=8,certify=on",
                             "static:rk=6,rv=8,store=int4,rope=anchor,certify=on,sink=0,recent=0",
                             "fd:rk=6,rv=6,tau=0.3,certify=on,sink=4,recent=8",
                             "rotate:rk=6,rv=6,every=32,certify=on,sink=4,recent=8",
                             "spectral:rk=6,rv=6,block=48,certify=on,sink=4,recent=8",
                             "spectral:rk=6,rv=6,block=48,bases=f32,certify=on,sink=4,recent=8",
                             "spectral:rk=6,rv=6,block=48,bases=int8,certify=on,sink=4,recent=8",
                             "fd:rk=6,rv=6,shared=on,tau=0.3,certify=on,sink=4,recent=8",
                             "oja:rk=6,rv=6,certify=on,sink=4,recent=8",
                             "oja:rk=6,rv=6,stale=rotate,certify=on,sink=4,recent=8",
                             "quant:bits=2,group=16,certify=on,sink=4,recent=8",
                             "bands:bits=2,certify=on,sink=16,recent=16,anchor=32",
                             "bands:bits=2,rope=pre,certify=on,sink=0,recent=16",
                             "bands:bits=3,share=head,rope=post,certify=on,sink=0,recent=16"}) {
    const Recipe parsed = Recipe::parse(recipe).value();
    MethodCache cache(prepare(text.shape(), parsed, &calibration).value());
    MethodCache exact(prepare(text.shape(), Recipe::parse("full").value(), nullptr).value());
    testing::run(cache, text, 0, 250, 50);
    testing::run(exact, text, 0, 250, 50);
    const std::vector<float> a = testing::run(cache, text, 250, 1, 1);
    const std::vector<float> b = testing::run(exact, text, 250, 1, 1);
    std::size_t at = 0;
    for (std::size_t layer = 0; layer < text.shape().layers.size(); ++layer) {
      const LayerShape& shape = text.shape().layers[layer];
      for (std::size_t g = 0; g < cache.groups(static_cast<int>(layer)); ++g) {
        const Group& group = cache.group(static_cast<int>(layer), g);
        LayerShape part = shape;
        const std::int32_t per_head = shape.query_heads / shape.kv_heads;
        part.kv_heads = group.options().heads;
        part.query_heads = part.kv_heads * per_head;
        Queries queries = text.queries(layer, 250, 1);
        queries.rows.data += std::size_t(group.options().first_head * per_head * shape.key_dim);
        queries.rows.shape[1] = std::size_t(part.query_heads);
        std::vector<Certificate> bounds(std::size_t(part.query_heads));
        for (std::int32_t h = 0; h < part.kv_heads; ++h) {
          ASSERT_TRUE(certify(part, testing::stores_of(group), queries, h,
                              {bounds.data(), {1, std::size_t(part.query_heads)}}));
        }
        for (const Certificate& bound : bounds) {
          double error = 0.0;
          for (std::int32_t i = 0; i < shape.value_dim; ++i, ++at) {
            error += (double{a[at]} - b[at]) * (double{a[at]} - b[at]);
          }
          EXPECT_LE(std::sqrt(error), bound.output * 1.0001 + 1e-5) << recipe;
          EXPECT_GT(bound.output, 0.0) << recipe;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvspan
