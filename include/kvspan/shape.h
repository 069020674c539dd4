// SPDX-License-Identifier: Apache-2.0
// Parameters of a model's attention: all that a cache needs to know of a model.
#pragma once

#include <cstdint>
#include <vector>

namespace kvspan {

// Rotary position embedding: pair i of the first `rotated_dims` coordinates is rotated by
// position * angles[i] and multiplied by `magnitude`; the other coordinates stay. Every scaling
// variant (linear, NTK, YaRN, Llama 3) is a choice of these numbers. Without angles nothing rotates.
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
  // Query head h attends to KV head h / (query_heads / kv_heads).
  std::int32_t query_heads = 0;  // a multiple of kv_heads
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;    // of one head
  std::int32_t value_dim = 0;  // of one head
  Rope rope;
  std::int32_t window = 0;   // a query at t sees positions > t - window; 0: all up to t
  float logit_scale = 0.0f;  // scores are logit_scale * q.k
  float soft_cap = 0.0f;     // c > 0: scores become c tanh(score / c)
  std::int32_t chunk = 0;    // a query at t sees positions >= t - t % chunk; 0: all up to t
  // ALiBi, [query_heads] or none: alibi[h] (t - s) is subtracted from the score of a query at t and a token at s.
  std::vector<float> alibi = {};
  // Sink logits, [query_heads] or none: e^sinks[h] is added to the softmax denominator.
  std::vector<float> sinks = {};

  bool operator==(const LayerShape&) const = default;
};

struct CacheShape {
  std::vector<LayerShape> layers;
  bool operator==(const CacheShape&) const = default;
};

}  // namespace kvspan
