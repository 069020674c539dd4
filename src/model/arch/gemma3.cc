// SPDX-License-Identifier: Apache-2.0
// Gemma 3 (text): norms before and after both blocks, QK norm, a GELU-gated feed-forward,
// embeddings scaled by sqrt(hidden). Five of six layers slide, with a RoPE base of their own and no
// scaling.
#include <cmath>

#include "base/fail.h"
#include "model/arch/architectures.h"
#include "model/arch/decoder.h"

namespace kvspan {
namespace {

constexpr std::int32_t kGlobalLayerPeriod = 6;
constexpr float kSlidingRopeBase = 10000.0f;

Result<DecoderLayer> load_layer(GgufFile& file, const ModelConfig& config, int i) {
  DecoderLayer layer;
  const auto norm = [&](const char* name) {
    return load_rms_norm(file, layer_name(i, name), config.hidden, config.norm_epsilon);
  };
  SelfAttention::Options options;
  options.qk_norm = true;
  KVSPAN_TRY(layer.attention_norm, norm("attn_norm"));
  KVSPAN_TRY(layer.attention, SelfAttention::load(file, config, i, options));
  KVSPAN_TRY(layer.attention_post_norm, norm("post_attention_norm"));
  KVSPAN_TRY(layer.feed_forward_norm, norm("ffn_norm"));
  KVSPAN_TRY(layer.feed_forward,
             GatedFeedForward::load(file, config, i, GatedFeedForward::Activation::kGelu));
  KVSPAN_TRY(layer.feed_forward_post_norm, norm("post_ffw_norm"));
  return layer;
}

}  // namespace

Result<std::unique_ptr<Architecture>> load_gemma3(GgufFile& file) {
  KVSPAN_TRY(ModelConfig config, read_model_config(file, Rope::Pairs::kHalves));
  KVSPAN_TRY(const auto slides, read_sliding_layers(file, config, kGlobalLayerPeriod));
  RopeConfig sliding_rope = config.rope;
  sliding_rope.base = kSlidingRopeBase;
  sliding_rope.scale = 1.0f;
  KVSPAN_TRY(const auto base, file.find_float("gemma3.rope.freq_base_swa"));
  if (base) sliding_rope.base = static_cast<float>(*base);
  KVSPAN_TRY(const auto cap, file.find_float("gemma3.final_logit_softcapping"));

  // The 27B model (62 layers) divides by sqrt(hidden / heads), all others by sqrt(head size); the
  // file does not say which.
  const bool is_27b = config.layers == 62;
  KVSPAN_TRY(
      auto decoder, Decoder::load(file, config, /*rms=*/true, [&](int i) -> Result<DecoderLayer> {
        KVSPAN_TRY(DecoderLayer layer, load_layer(file, config, i));
        SelfAttention& attention = layer.attention;
        if (slides[static_cast<std::size_t>(i)]) {
          attention.rope = sliding_rope;
          attention.shape.rope = sliding_rope.numbers();
          attention.shape.window = config.window;
        }
        if (is_27b) {
          attention.shape.logit_scale = 1.0f / std::sqrt(static_cast<float>(config.hidden) /
                                                         static_cast<float>(config.query_heads));
        }
        return layer;
      }));
  decoder->embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  if (cap) decoder->output_soft_cap = static_cast<float>(*cap);
  return std::unique_ptr<Architecture>(std::move(decoder));
}

}  // namespace kvspan
