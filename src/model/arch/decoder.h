// SPDX-License-Identifier: Apache-2.0
// The decoder most architectures are: embed, then layers of x += attention(norm(x)), x +=
// ffn(norm(x)), then norm and output. An architecture file fills in what it has; build() writes the
// graph.
#pragma once

#include <functional>
#include <variant>
#include <vector>

#include "model/arch/blocks.h"
#include "model/architecture.h"

namespace kvspan {

struct DecoderLayer {
  Norm attention_norm;
  SelfAttention attention;
  Norm attention_post_norm;  // applied to what attention adds; without weight: not applied
  Norm feed_forward_norm;
  std::variant<GatedFeedForward, PlainFeedForward> feed_forward;
  Norm feed_forward_post_norm;
};

class Decoder final : public Architecture {
 public:
  ModelConfig model;
  ggml_tensor* embedding = nullptr;
  float embedding_scale = 1.0f;
  ggml_tensor* position_embedding = nullptr;  // learned absolute positions, or null
  std::vector<DecoderLayer> layers;
  bool parallel_residual = false;  // attention and feed-forward both read the layer's input
  Norm output_norm;
  Linear output;
  float output_soft_cap = 0.0f;

  const ModelConfig& config() const noexcept override { return model; }
  CacheShape cache_shape() const override;
  bool has_post_attention_norm(int layer) const noexcept override;
  ggml_tensor* build(const GraphBuilder& graph) const override;

  // Reads embedding and output, then each layer with `load_layer`; norms are `rms` or LayerNorm.
  static Result<std::unique_ptr<Decoder>> load(
      GgufFile& file, ModelConfig config, bool rms,
      const std::function<Result<DecoderLayer>(int layer)>& load_layer);

 private:
  ggml_tensor* feed_forward(const GraphBuilder& graph, const DecoderLayer& layer,
                            ggml_tensor* x) const;
};

// A layer of RMSNorm, attention and a SiLU-gated feed-forward: llama, qwen2, qwen3.
Result<DecoderLayer> load_gated_layer(GgufFile& file, const ModelConfig& config, int layer,
                                      const SelfAttention::Options& options);
// A layer of LayerNorm, attention and a plain feed-forward: gpt2, gptneo, gptneox.
Result<DecoderLayer> load_plain_layer(GgufFile& file, const ModelConfig& config, int layer,
                                      const SelfAttention::Options& options,
                                      PlainFeedForward::Activation activation);

}  // namespace kvspan
