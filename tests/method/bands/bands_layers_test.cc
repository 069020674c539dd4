// SPDX-License-Identifier: Apache-2.0
// Neighbouring layers in one code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "method/bands/bands_policy.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/held_positions.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

constexpr std::int32_t kTokens = 330;
const std::string kTwo = "bands:bits=2,layers=2,sink=16,recent=32,anchor=32";

// Layers that are alike in all that a code asks for.
CacheShape alike(std::int32_t layers, std::int32_t window = 0) {
  CacheShape shape = testing::synthetic_shape(layers);
  for (LayerShape& layer : shape.layers) {
    layer.rope.pairs = Rope::Pairs::kNeighbours;
    layer.window = window;
  }
  return shape;
}

SyntheticText correlated(const CacheShape& shape, float noise = 0.1f) {
  SyntheticText text(shape, kTokens, 21);
  Random random(22);
  text.make_layers_alike(noise, random);
  return text;
}

std::unique_ptr<MethodCache> make(const SyntheticText& text, const std::string& recipe,
                                  const Calibration& calibration) {
  auto prepared = prepare(text.shape(), Recipe::parse(recipe).value(), &calibration);
  EXPECT_TRUE(prepared) << recipe << ": " << (prepared ? "" : prepared.error().message);
  return std::make_unique<MethodCache>(*prepared);
}

std::string error_of(const CacheShape& shape, const std::string& recipe, const Calibration& calibration) {
  const auto prepared = prepare(shape, Recipe::parse(recipe).value(), &calibration);
  EXPECT_FALSE(prepared) << recipe;
  return prepared ? "" : prepared.error().message;
}

// Squared error of all rows that a layer holds.
double error_of_rows(const MethodCache& cache, const SyntheticText& text, int layer) {
  double sum = 0.0;
  for (std::size_t g = 0; g < cache.groups(layer); ++g) {
    const Group& group = cache.group(layer, g);
    const RowBlock held = group.read_positions(0, text.size());
    const auto first = std::size_t(group.options().first_head);
    for (std::size_t i = 0; i < held.size(); ++i) {
      const KvRows row = text.rows(std::size_t(layer), held.positions[i], 1);
      const KvRows back = held.rows(i, 1);
      for (std::size_t h = 0; h < std::size_t(held.heads); ++h) {
        for (std::size_t j = 0; j < std::size_t(held.key_dim); ++j) {
          sum += std::pow(double{row.keys.row(0, first + h)[j]} - back.keys.row(0, h)[j], 2.0);
          sum += std::pow(double{row.values.row(0, first + h)[j]} - back.values.row(0, h)[j], 2.0);
        }
      }
    }
  }
  return sum;
}

// Attention of the queries of one token to rows as a cache gives them back, in double.
std::vector<double> plain_attention(const MethodCache& cache, const SyntheticText& text, std::size_t layer,
                                    std::int32_t token) {
  const LayerShape& l = text.shape().layers[layer];
  const std::int32_t per_head = l.query_heads / l.kv_heads;
  std::vector<double> out;
  for (std::int32_t q = 0; q < l.query_heads; ++q) {
    for (std::size_t g = 0; g < cache.groups(int(layer)); ++g) {
      const Group& group = cache.group(int(layer), g);
      const std::int32_t head = q / per_head - group.options().first_head;
      if (head < 0 || head >= group.options().heads) continue;
      const RowBlock held = group.read_positions(0, text.size());
      const float* query = text.queries(layer, token, 1).rows.row(0, std::size_t(q));
      std::vector<double> weights, sums(std::size_t(l.value_dim));
      double total = 0.0;
      for (std::size_t i = 0; i < held.size(); ++i) {
        const KvRows row = held.rows(i, 1);
        double score = 0.0;
        for (std::size_t j = 0; j < std::size_t(l.key_dim); ++j) {
          score += double{query[j]} * row.keys.row(0, std::size_t(head))[j];
        }
        const bool seen = l.window == 0 || held.positions[i] > token - l.window;
        weights.push_back(seen ? std::exp(score * l.logit_scale) : 0.0);
        total += weights.back();
      }
      for (std::size_t i = 0; i < held.size(); ++i) {
        const KvRows row = held.rows(i, 1);
        for (std::size_t j = 0; j < sums.size(); ++j) {
          sums[j] += weights[i] / total * row.values.row(0, std::size_t(head))[j];
        }
      }
      out.insert(out.end(), sums.begin(), sums.end());
    }
  }
  return out;
}

// What the last token's queries get, beside attention to what the cache gave back before it came.
void expect_plain_attention(const SyntheticText& text, const std::string& recipe, double bound) {
  const Calibration calibration = text.calibration();
  const auto cache = make(text, recipe, calibration);
  testing::run(*cache, text, 0, kTokens - 1, 40);
  const std::vector<float> found = testing::run(*cache, text, kTokens - 1, 1, 1);
  // No tile was due, so that all tokens are held as they were read.
  std::size_t at = 0;
  for (std::size_t layer = 0; layer < text.shape().layers.size(); ++layer) {
    for (const double expected : plain_attention(*cache, text, layer, kTokens - 1)) {
      ASSERT_NEAR(found[at++], expected, bound) << recipe << ", layer " << layer;
    }
  }
  EXPECT_EQ(at, found.size());
}

TEST(BandsLayers, AreReadAsTheirRowsAreRebuilt) {
  expect_plain_attention(correlated(alike(2)), kTwo, 0.03);
  expect_plain_attention(correlated(alike(2)), kTwo + ",ends=int8", 0.03);
  for (const int layers : {3, 6}) {
    const std::string recipe = "bands:bits=2,layers=" + std::to_string(layers) + ",sink=16,recent=32,anchor=32";
    expect_plain_attention(correlated(alike(layers)), recipe, 0.03);
  }
  expect_plain_attention(correlated(alike(4)), kTwo + ",share=kvgroup,heads=1", 0.03);
  expect_plain_attention(correlated(alike(2, 100)), kTwo, 0.03);
}

TEST(BandsLayers, HaveLessErrorForTheSameBytesWhereTheyAreAlike) {
  const SyntheticText text = correlated(alike(2));
  const Calibration calibration = text.calibration();
  double errors[2], bytes[2];
  for (const int i : {0, 1}) {
    const auto cache = make(text, i == 0 ? "bands:bits=2,sink=16,recent=32,anchor=32" : kTwo, calibration);
    testing::run(*cache, text, 0, kTokens, 64);
    errors[i] = error_of_rows(*cache, text, 0) + error_of_rows(*cache, text, 1);
    bytes[i] = double(cache->bytes().total);
  }
  EXPECT_LT(errors[1], 0.6 * errors[0]);
  EXPECT_LT(bytes[1], 1.02 * bytes[0]);
}

// Only neighbours of the same shape are coded together; others stay alone.
TEST(BandsLayers, OnlyAlikeOnesAreCodedTogether) {
  CacheShape shape = alike(6);
  shape.layers[1].window = shape.layers[2].window = 64;
  const auto ranges = layers_coded_together(shape, 2);
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (const LayerRange& range : ranges) found.emplace_back(range.first, range.count);
  EXPECT_EQ(found, (std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {1, 2}, {3, 2}, {5, 1}}));
  const SyntheticText text = correlated(shape);
  const Calibration calibration = text.calibration();
  const auto cache = make(text, kTwo, calibration);
  testing::run(*cache, text, 0, kTokens, 17);
  for (const int layer : {1, 3}) EXPECT_EQ(cache->policy(layer, 0), nullptr) << layer;
  for (const int layer : {0, 2, 4, 5}) EXPECT_NE(cache->policy(layer, 0), nullptr) << layer;
  EXPECT_EQ(cache->bytes().total, cache->ledger()->total());
}

// Rows of all layers as attention sees them, of the tokens that later queries see.
std::vector<float> rows_of(const MethodCache& cache, const SyntheticText& text) {
  std::vector<float> all;
  for (std::size_t layer = 0; layer < text.shape().layers.size(); ++layer) {
    const std::int32_t window = text.shape().layers[layer].window;
    const std::int32_t first = window > 0 ? text.size() - window + 1 : 0;
    const RowBlock held = cache.group(int(layer), 0).read_positions(first, text.size());
    EXPECT_EQ(held.size(), std::size_t(text.size() - first));
    all.insert(all.end(), held.keys.begin(), held.keys.end());
    all.insert(all.end(), held.values.begin(), held.values.end());
  }
  return all;
}

TEST(BandsLayers, TheSameRowsHoweverCallsAreSplit) {
  for (const std::string& plain : {kTwo, kTwo + ",ends=int8", kTwo + ",quantizer=uniform"}) {
    for (const std::int32_t window : {0, 100}) {
      // Which tokens stay exact depends on the first token, as long as a window lets it stay.
      const std::string recipe = plain + (window > 0 ? ",escape=0" : ",escape=20%");
      const SyntheticText text = correlated(alike(3, window));
      const Calibration calibration = text.calibration();
      std::vector<float> first;
      for (const std::int32_t block : {1, 7, 64, kTokens}) {
        const auto cache = make(text, recipe, calibration);
        testing::run(*cache, text, 0, kTokens, block);
        const std::vector<float> rows = rows_of(*cache, text);
        if (first.empty()) first = rows;
        EXPECT_TRUE(rows == first) << recipe << ", " << block << ", window " << window;
        const std::vector<std::int32_t> held = testing::held_positions(cache->group(0, 0));
        EXPECT_EQ(held, testing::held_positions(cache->group(1, 0))) << recipe << ", " << block;
        if (window == 0) {
          EXPECT_EQ(held.size(), std::size_t(kTokens));
        }
      }
    }
  }
}

TEST(BandsLayers, ForksAndLoadedCachesGoOnAlike) {
  const SyntheticText text = correlated(alike(2));
  const Calibration calibration = text.calibration();
  for (const std::string& recipe : {kTwo, kTwo + ",ends=int8"}) {
    const auto cache = make(text, recipe, calibration);
    testing::run(*cache, text, 0, 200, 50);
    const auto fork = cache->fork().value();
    auto prepared = prepare(text.shape(), Recipe::parse(recipe).value(), &calibration).value();
    const auto loaded = MethodCache::load(prepared, testing::saved(*cache)).value();
    EXPECT_EQ(testing::saved(*loaded), testing::saved(*cache));
    const std::vector<float> expected = testing::run(*cache, text, 200, 100, 20);
    EXPECT_EQ(testing::run(*fork, text, 200, 100, 20), expected);
    EXPECT_EQ(testing::run(*loaded, text, 200, 100, 20), expected);
    EXPECT_EQ(testing::saved(*fork), testing::saved(*cache));
    EXPECT_EQ(testing::saved(*loaded), testing::saved(*cache));
    EXPECT_EQ(loaded->bytes().total, loaded->ledger()->total());
  }
}

// Back to any number of tokens, and on.
TEST(BandsLayers, GoBack) {
  const SyntheticText text = correlated(alike(2));
  const Calibration calibration = text.calibration();
  for (const std::int32_t n : {250, 128, 101, 20, 5, 0}) {
    const auto cache = make(text, kTwo, calibration);
    testing::run(*cache, text, 0, 300, 50);
    auto fork = cache->fork().value();
    ASSERT_TRUE(cache->truncate(n));
    EXPECT_EQ(cache->tokens(), n);
    for (const int layer : {0, 1}) {
      const std::vector<std::int32_t> held = testing::held_positions(cache->group(layer, 0));
      ASSERT_EQ(held.size(), std::size_t(n)) << layer;
    }
    testing::run(*cache, text, n, kTokens - n, 30);
    EXPECT_EQ(testing::held_positions(cache->group(0, 0)).size(), std::size_t(kTokens)) << n;
    // The fork has lost nothing.
    EXPECT_EQ(testing::held_positions(static_cast<MethodCache&>(*fork).group(0, 0)).size(), 300u);
    fork.reset();
    EXPECT_EQ(cache->bytes().total, cache->ledger()->total()) << n;
  }
}

TEST(BandsLayers, DamagedBytesAreRefused) {
  const SyntheticText text = correlated(alike(2));
  const Calibration calibration = text.calibration();
  const auto cache = make(text, kTwo, calibration);
  testing::run(*cache, text, 0, 200, 50);
  // Another number of tokens waits in the first layer.
  const KvRows more = text.rows(0, 200, 1);
  TeamState state;
  Team team(state, 0, 1);
  ASSERT_TRUE(cache->append(0, more, team));
  auto prepared = prepare(text.shape(), Recipe::parse(kTwo).value(), &calibration).value();
  const auto loaded = MethodCache::load(prepared, testing::saved(*cache));
  ASSERT_FALSE(loaded);
  EXPECT_NE(loaded.error().message.find("different tokens"), std::string::npos) << loaded.error().message;
}

TEST(BandsLayers, RowsOfAllLayersComeBeforeTheLastSettles) {
  const SyntheticText text = correlated(alike(2));
  const Calibration calibration = text.calibration();
  const auto cache = make(text, kTwo, calibration);
  TeamState state;
  Team team(state, 0, 1);
  ASSERT_TRUE(cache->append(1, text.rows(1, 0, 100), team));
  const Status settled = cache->settle(1, team);
  ASSERT_FALSE(settled);
  EXPECT_NE(settled.error().message.find("different numbers of tokens"), std::string::npos);
}

TEST(BandsLayers, WhatDoesNotGoTogetherIsRefused) {
  const SyntheticText text = correlated(alike(2));
  Calibration calibration = text.calibration();
  for (const std::string with : {"share=layer", "calib=online", "certify=on"}) {
    EXPECT_NE(error_of(text.shape(), "bands:layers=2," + with, calibration).find("layers=2"), std::string::npos);
  }
  EXPECT_NE(error_of(text.shape(), "quest:keep=64,page=16+bands:layers=2", calibration).find("layers"),
            std::string::npos);
  calibration.neighbours = 0;
  for (LayerCalibration& layer : calibration.layers) layer.cross_moments.clear();
  EXPECT_NE(error_of(text.shape(), kTwo, calibration).find("--neighbours 1"), std::string::npos);
}

// Saved designs give the same codes.
TEST(BandsLayers, SavedDesignsReadTheSameBytes) {
  const SyntheticText text = correlated(alike(3));
  const Calibration calibration = text.calibration();
  const Recipe recipe = Recipe::parse(kTwo).value();
  const auto prepared = prepare(text.shape(), recipe, &calibration).value();
  const auto again = prepare_saved(text.shape(), recipe, save_designs(*prepared).value());
  ASSERT_TRUE(again) << again.error().message;
  MethodCache one(prepared), other(*again);
  EXPECT_EQ(testing::run(one, text, 0, kTokens, 40), testing::run(other, text, 0, kTokens, 40));
  EXPECT_EQ(testing::saved(one), testing::saved(other));
}

}  // namespace
}  // namespace kvspan
