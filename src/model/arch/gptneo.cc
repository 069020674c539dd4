// SPDX-License-Identifier: Apache-2.0
// GPT-Neo: as GPT-2 with separate query, key and value matrices without bias, scores that are not
// scaled, and layers that see only a window (every second one in the published models).
#include "base/fail.h"
#include "model/arch/architectures.h"
#include "model/arch/decoder.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_gptneo(GgufFile& file) {
  KVSPAN_TRY(ModelConfig config, read_model_config(file, Rope::Pairs::kNeighbours));
  config.rope = RopeConfig{};
  KVSPAN_TRY(const auto slides, read_sliding_layers(file, config, /*default_period=*/0));
  const SelfAttention::Options options{Bias::kNone, Bias::kRequired, false};
  KVSPAN_TRY(
      auto decoder, Decoder::load(file, config, /*rms=*/false, [&](int i) -> Result<DecoderLayer> {
        KVSPAN_TRY(DecoderLayer layer, load_plain_layer(file, config, i, options,
                                                        PlainFeedForward::Activation::kGeluTanh));
        layer.attention.shape.logit_scale = 1.0f;
        if (slides[static_cast<std::size_t>(i)]) layer.attention.shape.window = config.window;
        return layer;
      }));
  KVSPAN_TRY(decoder->position_embedding,
             file.require_tensor("position_embd.weight", config.hidden, config.context));
  return std::unique_ptr<Architecture>(std::move(decoder));
}

}  // namespace kvspan
