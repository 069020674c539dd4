// SPDX-License-Identifier: Apache-2.0
#include "server/byte_forecast.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace kvspan::server {
namespace {

constexpr std::int64_t kBlock = 256;
constexpr std::int64_t kMeasured = 4096;
constexpr std::int64_t kSteepness = 1024;  // of the last so many

// Appends a block of made-up rows to every layer.
Status append_block(KvCache& cache, Random& random, std::vector<float>& keys,
                    std::vector<float>& values) {
  TeamState state;
  Team team(state, 0, 1);
  std::vector<std::int32_t> positions(kBlock);
  std::iota(positions.begin(), positions.end(), cache.tokens());
  const auto& layers = cache.shape().layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto heads = static_cast<std::size_t>(layers[i].kv_heads);
    const auto key_dim = static_cast<std::size_t>(layers[i].key_dim);
    const auto value_dim = static_cast<std::size_t>(layers[i].value_dim);
    keys.resize(kBlock * heads * key_dim);
    values.resize(kBlock * heads * value_dim);
    for (float& x : keys) x = static_cast<float>(random.uniform() - 0.5);
    for (float& x : values) x = static_cast<float>(random.uniform() - 0.5);
    KvRows rows;
    rows.keys = {keys.data(), {kBlock, heads, key_dim}};
    rows.values = {values.data(), {kBlock, heads, value_dim}};
    rows.positions = positions;
    if (Status status = cache.append(static_cast<int>(i), rows, team); !status) return status;
    if (Status status = cache.settle(static_cast<int>(i), team); !status) return status;
  }
  return {};
}

}  // namespace

ByteForecast ByteForecast::measure(const CacheShape& shape, const CacheFactory& factory) {
  ByteForecast forecast;
  const auto cache = factory.make();
  Random random(1);
  std::vector<float> keys, values;
  std::size_t most = cache->bytes().total;
  std::size_t before = 0, last = 0;
  forecast.points_.push_back({0, most});
  for (std::int64_t tokens = kBlock; tokens <= kMeasured; tokens += kBlock) {
    if (!append_block(*cache, random, keys, values)) {
      forecast.points_ = {{0, 0}};
      forecast.bytes_per_token_ = static_cast<double>(full_rank_f16_bytes(shape, 1 << 20)) / (1 << 20);
      return forecast;
    }
    last = cache->bytes().total;
    if (tokens == kMeasured - kSteepness) before = last;
    most = std::max(most, last);
    forecast.points_.push_back({tokens, most});
  }
  forecast.bytes_per_token_ =
      static_cast<double>(last - std::min(last, before)) / static_cast<double>(kSteepness);
  // Beyond the measured tokens a sequence grows from what it holds, not from its peak.
  forecast.points_.push_back({kMeasured, last});
  return forecast;
}

std::size_t ByteForecast::bytes(std::int64_t tokens) const noexcept {
  if (points_.empty()) return 0;
  std::size_t most = 0;
  for (const Point& point : points_) {
    most = std::max(most, point.bytes);
    if (point.tokens >= tokens) return most;
  }
  const double more = bytes_per_token_ * static_cast<double>(tokens - points_.back().tokens);
  return std::max(most, points_.back().bytes + static_cast<std::size_t>(std::ceil(more)));
}

}  // namespace kvspan::server
