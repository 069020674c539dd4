// SPDX-License-Identifier: Apache-2.0
#include "model/arch/decoder.h"

#include "base/fail.h"

namespace kvspan {

CacheShape Decoder::cache_shape() const {
  CacheShape shape;
  for (const DecoderLayer& layer : layers) shape.layers.push_back(layer.attention.shape);
  return shape;
}

bool Decoder::has_post_attention_norm(int layer) const noexcept {
  return layers[static_cast<std::size_t>(layer)].attention_post_norm.weight != nullptr;
}

ggml_tensor* Decoder::feed_forward(const GraphBuilder& graph, const DecoderLayer& layer,
                                   ggml_tensor* x) const {
  x = graph.norm(x, layer.feed_forward_norm);
  x = std::visit([&](const auto& block) { return block.build(graph, x); }, layer.feed_forward);
  return layer.feed_forward_post_norm.weight ? graph.norm(x, layer.feed_forward_post_norm) : x;
}

ggml_tensor* Decoder::build(const GraphBuilder& graph) const {
  ggml_context* ctx = graph.ctx();
  ggml_tensor* x = graph.embed(embedding);
  if (embedding_scale != 1.0f) x = ggml_scale(ctx, x, embedding_scale);
  if (position_embedding != nullptr) {
    x = ggml_add(ctx, x, graph.embed_positions(position_embedding));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const DecoderLayer& layer = layers[i];
    const int index = static_cast<int>(i);
    x = graph.observe(index, Observed::kLayerInput, x);
    ggml_tensor* attended =
        layer.attention.build(graph, index, graph.norm(x, layer.attention_norm));
    if (layer.attention_post_norm.weight)
      attended = graph.observe(index, Observed::kPostNormInput, attended);
    if (i + 1 == layers.size()) {  // beyond the last cache write only the wanted rows matter
      attended = graph.select_outputs(attended);
      x = graph.select_outputs(x);
    }
    if (layer.attention_post_norm.weight)
      attended = graph.norm(attended, layer.attention_post_norm);
    if (parallel_residual) {
      x = ggml_add(ctx, ggml_add(ctx, feed_forward(graph, layer, x), x), attended);
    } else {
      x = ggml_add(ctx, attended, x);
      x = ggml_add(ctx, feed_forward(graph, layer, x), x);
    }
  }
  x = graph.linear(graph.norm(x, output_norm), output);
  if (output_soft_cap > 0.0f) {
    x = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, x, 1.0f / output_soft_cap)),
                   output_soft_cap);
  }
  return x;
}

Result<std::unique_ptr<Decoder>> Decoder::load(
    GgufFile& file, ModelConfig config, bool rms,
    const std::function<Result<DecoderLayer>(int layer)>& load_layer) {
  auto decoder = std::make_unique<Decoder>();
  KVSPAN_TRY(decoder->embedding,
             file.require_tensor("token_embd.weight", config.hidden, config.vocabulary));
  const auto load_norm = rms ? load_rms_norm : load_layer_norm;
  KVSPAN_TRY(decoder->output_norm,
             load_norm(file, "output_norm", config.hidden, config.norm_epsilon));
  KVSPAN_TRY(decoder->output, load_output(file, config));
  for (int i = 0; i < config.layers; ++i) {
    KVSPAN_TRY(DecoderLayer layer, load_layer(i));
    decoder->layers.push_back(std::move(layer));
  }
  decoder->model = std::move(config);
  return decoder;
}

Result<DecoderLayer> load_gated_layer(GgufFile& file, const ModelConfig& config, int layer,
                                      const SelfAttention::Options& options) {
  DecoderLayer out;
  const auto norm = [&](const char* name) {
    return load_rms_norm(file, layer_name(layer, name), config.hidden, config.norm_epsilon);
  };
  KVSPAN_TRY(out.attention_norm, norm("attn_norm"));
  KVSPAN_TRY(out.attention, SelfAttention::load(file, config, layer, options));
  KVSPAN_TRY(out.feed_forward_norm, norm("ffn_norm"));
  KVSPAN_TRY(out.feed_forward,
             GatedFeedForward::load(file, config, layer, GatedFeedForward::Activation::kSilu));
  return out;
}

Result<DecoderLayer> load_plain_layer(GgufFile& file, const ModelConfig& config, int layer,
                                      const SelfAttention::Options& options,
                                      PlainFeedForward::Activation activation) {
  DecoderLayer out;
  const auto norm = [&](const char* name) {
    return load_layer_norm(file, layer_name(layer, name), config.hidden, config.norm_epsilon);
  };
  KVSPAN_TRY(out.attention_norm, norm("attn_norm"));
  KVSPAN_TRY(out.attention, SelfAttention::load(file, config, layer, options));
  KVSPAN_TRY(out.feed_forward_norm, norm("ffn_norm"));
  KVSPAN_TRY(out.feed_forward, PlainFeedForward::load(file, config, layer, activation));
  return out;
}

}  // namespace kvspan
