// SPDX-License-Identifier: Apache-2.0
// Forecasts are held against caches that are filled with other rows than those of the forecast.
#include "server/byte_forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace kvspan::server {
namespace {

CacheShape two_layers() {
  LayerShape layer;
  layer.query_heads = 2;
  layer.kv_heads = 2;
  layer.key_dim = layer.value_dim = 32;
  layer.logit_scale = 0.1f;
  return {{layer, layer}};
}

std::size_t bytes_after(const CacheFactory& factory, std::int32_t tokens, std::int32_t block) {
  const auto cache = factory.make();
  TeamState state;
  Team team(state, 0, 1);
  std::size_t most = 0;
  while (cache->tokens() < tokens) {
    const std::int32_t count = std::min(block, tokens - cache->tokens());
    std::vector<float> rows(static_cast<std::size_t>(count) * 64);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(0.37f * static_cast<float>(i + most));
    std::vector<std::int32_t> positions(static_cast<std::size_t>(count));
    std::iota(positions.begin(), positions.end(), cache->tokens());
    KvRows added;
    added.keys = {rows.data(), {static_cast<std::size_t>(count), 2, 32}};
    added.values = {rows.data(), {static_cast<std::size_t>(count), 2, 32}};
    added.positions = positions;
    for (int layer = 0; layer < 2; ++layer) {
      EXPECT_TRUE(cache->append(layer, added, team));
      EXPECT_TRUE(cache->settle(layer, team));
    }
    most = std::max(most, cache->bytes().total);
  }
  return most;
}

TEST(ByteForecast, CoversWhatASequenceTakesAndLittleMore) {
  for (const char* recipe : {"full", "quant:bits=4", "bands:calib=online"}) {
    const auto factory = CacheFactory::create(two_layers(), recipe);
    ASSERT_TRUE(factory) << recipe << ": " << factory.error().message;
    const ByteForecast forecast = ByteForecast::measure(two_layers(), *factory);
    for (const std::int32_t tokens : {1024, 3000, 8000}) {
      const std::size_t taken = bytes_after(*factory, tokens, 512);
      EXPECT_GE(static_cast<double>(forecast.bytes(tokens)), 0.97 * static_cast<double>(taken)) << recipe << " " << tokens;
      EXPECT_LE(static_cast<double>(forecast.bytes(tokens)), 1.25 * static_cast<double>(taken)) << recipe << " " << tokens;
    }
  }
}

TEST(ByteForecast, GrowsWithTokens) {
  const auto factory = CacheFactory::create(two_layers(), "bands:calib=online");
  ASSERT_TRUE(factory);
  const ByteForecast forecast = ByteForecast::measure(two_layers(), *factory);
  std::size_t before = 0;
  for (std::int64_t tokens = 0; tokens < 20000; tokens += 100) {
    EXPECT_GE(forecast.bytes(tokens), before) << tokens;
    before = forecast.bytes(tokens);
  }
  EXPECT_EQ(ByteForecast().bytes(1000), 0u);
}

}  // namespace
}  // namespace kvspan::server
