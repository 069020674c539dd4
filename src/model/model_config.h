// SPDX-License-Identifier: Apache-2.0
// What a GGUF file says about a model, read once, checked, in one place. Architectures with their
// own keys read those themselves (arch/*.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "model/gguf_file.h"

namespace kvspan {

// The numbers of RoPE as ggml_rope_ext takes them, which `numbers()` turns into the plain angles
// that caches work with. Both describe the same rotation (tests compare them).
struct RopeConfig {
  Rope::Pairs pairs = Rope::Pairs::kNeighbours;
  std::int32_t rotated_dims = 0;  // 0: no rotation
  float base = 10000.0f;
  float scale = 1.0f;  // positions are multiplied by this (1 / scaling factor)
  std::int32_t original_context = 0;
  float extrapolation = 0.0f;  // YaRN's mix of unscaled angles; 0 switches YaRN off
  float magnitude = 1.0f;      // extra factor on cos and sin
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  std::vector<float> factors;  // Llama 3: angle i is divided by factors[i]; empty: all 1

  Rope numbers() const;
};

struct ModelConfig {
  std::string architecture;
  std::string name;
  std::int32_t layers = 0;
  std::int32_t hidden = 0;
  std::int32_t feed_forward = 0;
  std::int32_t vocabulary = 0;
  std::int32_t context = 0;  // trained context length
  std::int32_t query_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  float norm_epsilon = 1e-5f;
  float logit_scale = 0.0f;  // the file's, else 1 / sqrt(key_dim)
  RopeConfig rope;
  std::int32_t window = 0;  // 0: none

  // A layer that attends over everything, with the model's RoPE.
  LayerShape default_layer_shape() const;
};

// The keys all architectures share. `pairs` is the layout the architecture's weights expect.
Result<ModelConfig> read_model_config(const GgufFile& file, Rope::Pairs pairs);

// Which layers slide, from `<arch>.attention.sliding_window_pattern`: an array of flags, or a
// period n in which the last of every n layers is global (`default_period` if the key is absent; 0:
// all slide).
Result<std::vector<bool>> read_sliding_layers(const GgufFile& file, const ModelConfig& config,
                                              std::int32_t default_period);

}  // namespace kvspan
