// SPDX-License-Identifier: Apache-2.0
// Tokens leave a cache as plain numbers and make another one that is the same, byte for byte.
#include "method/layer_tokens.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace layer_tokens_test {

using testing::saved;
using testing::SyntheticText;

CacheShape shape_of(std::int32_t window) {
  CacheShape shape = testing::synthetic_shape(2, 4, 16);
  shape.layers[1].window = window;
  return shape;
}

constexpr std::int32_t kTokens = 420;
const SyntheticText& text() {
  static const SyntheticText text(shape_of(0), kTokens, 17);
  return text;
}

std::shared_ptr<const Prepared> prepared(const std::string& recipe, std::int32_t window = 0) {
  static const Calibration calibration = text().calibration();
  auto made = prepare(shape_of(window), Recipe::parse(recipe).value(), &calibration);
  EXPECT_TRUE(made) << recipe << ": " << (made ? "" : made.error().message);
  return std::move(made).value();
}

// A cache of `to` that has taken what `from` gave.
std::unique_ptr<MethodCache> moved(const MethodCache& from, std::shared_ptr<const Prepared> to) {
  auto made = std::make_unique<MethodCache>(std::move(to));
  for (int layer = 0; layer < 2; ++layer) {
    const auto tokens = from.give(layer);
    EXPECT_TRUE(tokens) << (tokens ? "" : tokens.error().message);
    if (!tokens) continue;
    const Status taken = made->take(layer, *tokens);
    EXPECT_TRUE(taken) << (taken ? "" : taken.error().message);
  }
  return made;
}

const char* const kRecipes[] = {
    "full",
    "bands:quantizer=uniform,escape=0,bits=2",
    "bands:quantizer=uniform,escape=0,bits=3,sink=16,recent=20",
    "bands:quantizer=uniform,escape=0,bits=1.55,share=kvgroup,heads=2,sink=0,recent=48",
    "bands:quantizer=uniform,escape=0,bits=6,levels=0/1/2/3/4/5/6/"
    "8,share=kvgroup,heads=1,sink=32,recent=17",
    "bands:quantizer=uniform,escape=0,bits=2.25,gain=none,sink=5,recent=64",
};

TEST(LayerTokens, MakeTheSameBytes) {
  for (const char* recipe : kRecipes) {
    for (const std::int32_t window : {0, 70, 200}) {
      const auto own = prepared(recipe, window);
      for (const std::int32_t n : {1, 16, 17, 33, 64, 149, 165, 300, 371}) {
        for (const std::int32_t block : {1, 50, 400}) {
          SCOPED_TRACE(fmt::format("{} window {} tokens {} block {}", recipe, window, n, block));
          MethodCache cache(own);
          testing::run(cache, text(), 0, n, block);
          const auto copy = moved(cache, own);
          ASSERT_EQ(saved(*copy), saved(cache));
          EXPECT_EQ(copy->least_tokens(), cache.least_tokens());
          EXPECT_EQ(copy->bytes().full_rank, cache.bytes().full_rank);
        }
      }
    }
  }
}

// Caches of every recipe, with a window in one layer and without, that have read 261 tokens.
template <class Use>
void each_read_cache(const Use& use) {
  for (const char* recipe : kRecipes) {
    for (const std::int32_t window : {0, 70}) {
      SCOPED_TRACE(fmt::format("{} window {}", recipe, window));
      const auto own = prepared(recipe, window);
      MethodCache cache(own);
      testing::run(cache, text(), 0, 261, 40);
      use(cache, own);
    }
  }
}

TEST(LayerTokens, GoOnBitForBit) {
  each_read_cache([](MethodCache& cache, const auto& own) {
    const auto copy = moved(cache, own);
    EXPECT_EQ(testing::run(*copy, text(), 261, 140, 7), testing::run(cache, text(), 261, 140, 7));
    EXPECT_EQ(saved(*copy), saved(cache));
  });
}

// A cache that was cut among its codes has rows waiting that were coded before, in segments that
// begin there: attention adds in another order. 300 terms below 5, each sum off by 2^-24 of itself.
TEST(LayerTokens, GoOnAfterACut) {
  constexpr double kOrder = 300 * 5 * 0x1p-24;
  each_read_cache([&](MethodCache& cache, const auto& own) {
    ASSERT_TRUE(cache.truncate(std::max(cache.least_tokens(), 155)));
    const auto copy = moved(cache, own);
    const auto go_on_alike = [&](std::int32_t first, std::int32_t n, std::int32_t block) {
      EXPECT_LE(testing::largest_difference(testing::run(*copy, text(), first, n, block),
                                            testing::run(cache, text(), first, n, block)),
                kOrder);
    };
    go_on_alike(cache.tokens(), 140, 7);
    ASSERT_EQ(copy->least_tokens(), cache.least_tokens());
    const std::int32_t least = cache.least_tokens();
    ASSERT_TRUE(copy->truncate(least));
    ASSERT_TRUE(cache.truncate(least));
    go_on_alike(least, 9, 1);
  });
}

// Memory that keeps what windows have passed gives what the host would hold.
TEST(LayerTokens, WhatWindowsHavePassedIsForgotten) {
  for (const char* recipe : kRecipes) {
    SCOPED_TRACE(recipe);
    MethodCache all(prepared(recipe)), windowed(prepared(recipe, 100));
    testing::run(all, text(), 0, 371, 30);
    testing::run(windowed, text(), 0, 371, 30);
    EXPECT_EQ(saved(*moved(all, prepared(recipe, 100))), saved(windowed));
  }
}

TEST(LayerTokens, AreWhatTheCacheHolds) {
  const auto own = prepared(kRecipes[3]);
  MethodCache cache(own);
  testing::run(cache, text(), 0, 200, 25);
  const LayerTokens tokens = cache.give(1).value();
  EXPECT_EQ(tokens.next, 200);
  EXPECT_EQ(tokens.first, 0);
  EXPECT_EQ(tokens.coded, 144);  // (200 - 48) / 16 * 16
  ASSERT_EQ(tokens.groups.size(), 2u);
  for (std::size_t g = 0; g < 2; ++g) {
    const GroupTokens& group = tokens.groups[g];
    EXPECT_EQ(group.gains.size(), 144u);
    ASSERT_EQ(group.keys.size(), std::size_t{56} * 2 * 16);
    const KvRows rows = text().rows(1, 144, 56);
    for (std::size_t t = 0; t < 56; ++t) {
      for (std::size_t h = 0; h < 2; ++h) {
        for (std::size_t i = 0; i < 16; ++i) {
          EXPECT_EQ(group.keys[(t * 2 + h) * 16 + i].bits,
                    to_half(rows.keys.row(t, 2 * g + h)[i]).bits);
        }
      }
    }
  }
}

TEST(LayerTokens, WhatOnlyTheHostHoldsIsRefused) {
  const auto refusal = [](const std::string& recipe) {
    MethodCache cache(prepared(recipe));
    testing::run(cache, text(), 0, 300, 50);
    const auto given = cache.give(0);
    return given ? std::string() : given.error().message;
  };
  EXPECT_NE(refusal("full:store=f32"), "");
  EXPECT_NE(refusal("quant:bits=8"), "");
  EXPECT_NE(refusal("bands:bits=2,escape=0"), "");  // a trellis
  EXPECT_NE(refusal("bands:bits=2,quantizer=uniform,escape=0,share=head"), "");
  EXPECT_NE(refusal("bands:bits=2,quantizer=uniform,escape=0,ends=int8"), "");
  EXPECT_NE(refusal("bands:bits=2,quantizer=uniform,escape=0,certify=on"), "");
  EXPECT_NE(refusal("h2o:keep=0.5"), "");
  EXPECT_EQ(refusal("bands:bits=2,quantizer=uniform,escape=0"), "");
}

TEST(LayerTokens, EscapedTokensAreRefused) {
  SyntheticText odd = text();
  Random random(3);
  for (const std::int32_t t : {0, 40, 41, 60}) odd.make_massive(t, random);
  MethodCache cache(prepared("bands:bits=2,quantizer=uniform,escape=0.05,sink=16,recent=20"));
  testing::run(cache, odd, 0, 300, 50);
  const auto given = cache.give(0);
  ASSERT_FALSE(given);
  EXPECT_EQ(given.error().code, ErrorCode::kUnsupported);
}

TEST(LayerTokens, GapsAreRefused) {
  TeamState state;
  Team team(state, 0, 1);
  MethodCache cache(prepared("full"));
  testing::run(cache, text(), 0, 10, 10);
  ASSERT_TRUE(cache.append(0, text().rows(0, 12, 3), team));
  const auto given = cache.give(0);
  ASSERT_FALSE(given);
  EXPECT_NE(given.error().message.find("position 12 where 10 was next"), std::string::npos)
      << given.error().message;
}

TEST(LayerTokens, OthersTokensAreRefused) {
  MethodCache cache(prepared(kRecipes[1])), other(prepared(kRecipes[2])), full(prepared("full"));
  testing::run(cache, text(), 0, 200, 50);
  const LayerTokens tokens = cache.give(0).value();
  EXPECT_FALSE(other.take(0, tokens));
  EXPECT_FALSE(full.take(0, tokens));
  EXPECT_FALSE(cache.take(0, tokens));  // holds tokens already
  LayerTokens broken = tokens;
  broken.groups[0].keys[5].bits = 0x7c00;  // infinite
  const Status refused = MethodCache(prepared(kRecipes[1])).take(0, broken);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("layer 0, group 0: keys with the number inf"),
            std::string::npos)
      << refused.error().message;
}

}  // namespace layer_tokens_test
}  // namespace kvspan
