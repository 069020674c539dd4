// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3, TinyLlama, SmolLM2, LongChat (linear RoPE scaling), Mistral (sliding window).
// RoPE scaling is data: a factor, YaRN's numbers, or Llama 3's table of factors (model_config.h).
#include "base/fail.h"
#include "model/arch/architectures.h"
#include "model/arch/decoder.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_llama(GgufFile& file) {
  KVSPAN_TRY(ModelConfig config, read_model_config(file, Rope::Pairs::kNeighbours));
  if (file.find_tensor("blk.0.ffn_gate_inp.weight") != nullptr) {
    return fail(ErrorCode::kUnsupported, "'{}' is a mixture of experts; only dense models run",
                file.path());
  }
  KVSPAN_TRY(const auto slides, read_sliding_layers(file, config, /*default_period=*/0));
  KVSPAN_TRY(auto decoder,
             Decoder::load(file, config, /*rms=*/true, [&](int i) -> Result<DecoderLayer> {
               KVSPAN_TRY(DecoderLayer layer, load_gated_layer(file, config, i, {}));
               if (slides[static_cast<std::size_t>(i)]) {
                 layer.attention.shape.window = config.window;
               }
               return layer;
             }));
  return std::unique_ptr<Architecture>(std::move(decoder));
}

}  // namespace kvspan
