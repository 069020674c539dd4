// SPDX-License-Identifier: Apache-2.0
// What a model's attention looks like, in numbers: all that a cache has to know of a model.
#pragma once

#include <cstdint>
#include <vector>

namespace kvspan {

// Rotary position embedding as numbers: pair i of the first `rotated_dims` coordinates turns by
// position * angles[i] and is scaled by `magnitude`; the other coordinates stay. Every scaling
// variant (linear, NTK, YaRN, Llama 3) is a choice of these numbers; no angles means nothing
// rotates.
struct Rope {
  enum class Pairs : std::uint8_t {
    kNeighbours,  // (x[2i], x[2i+1])
    kHalves,      // (x[i], x[i + rotated_dims/2])
  };
  Pairs pairs = Pairs::kNeighbours;
  std::int32_t rotated_dims = 0;
  std::vector<double> angles;  // [rotated_dims / 2], radians per position
  float magnitude = 1.0f;

  bool operator==(const Rope&) const = default;
};

struct LayerShape {
  // Query head h reads KV head h / (query_heads / kv_heads).
  std::int32_t query_heads = 0;  // a multiple of kv_heads
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;    // of one head
  std::int32_t value_dim = 0;  // of one head
  Rope rope;
  std::int32_t window = 0;   // a query at t sees positions > t - window; 0: all before it
  float logit_scale = 0.0f;  // scores are logit_scale * q.k
  float soft_cap = 0.0f;     // c > 0: scores become c tanh(score / c)
  std::int32_t chunk = 0;    // a query at t sees positions >= t - t % chunk; 0: all before it
  // ALiBi, [query_heads] or none: a query at t gives a token at s its score - alibi[h] (t - s).
  std::vector<float> alibi = {};
  // [query_heads] or none: one more term e^sinks[h] in the sum that weights are divided by.
  std::vector<float> sinks = {};

  bool operator==(const LayerShape&) const = default;
};

struct CacheShape {
  std::vector<LayerShape> layers;
  bool operator==(const CacheShape&) const = default;
};

}  // namespace kvspan
