// SPDX-License-Identifier: Apache-2.0
// GPT-2: learned positions instead of RoPE, LayerNorm, biases everywhere, queries, keys and values
// in one matrix.
#include "base/fail.h"
#include "model/arch/architectures.h"
#include "model/arch/decoder.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_gpt2(GgufFile& file) {
  KVSPAN_TRY(ModelConfig config, read_model_config(file, Rope::Pairs::kNeighbours));
  config.rope = RopeConfig{};
  const SelfAttention::Options options{Bias::kRequired, Bias::kRequired, false};
  KVSPAN_TRY(const auto activation, PlainFeedForward::read_activation(
                                        file, config, PlainFeedForward::Activation::kGeluTanh));
  KVSPAN_TRY(auto decoder, Decoder::load(file, config, /*rms=*/false, [&](int i) {
               return load_plain_layer(file, config, i, options, activation);
             }));
  KVSPAN_TRY(decoder->position_embedding,
             file.require_tensor("position_embd.weight", config.hidden, config.context));
  return std::unique_ptr<Architecture>(std::move(decoder));
}

}  // namespace kvspan
