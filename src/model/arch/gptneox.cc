// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX and Pythia: RoPE on a part of each head, LayerNorm, and (unless the file says otherwise)
// attention and feed-forward side by side on the layer's input.
#include "base/fail.h"
#include "model/arch/architectures.h"
#include "model/arch/decoder.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_gptneox(GgufFile& file) {
  KVSPAN_TRY(ModelConfig config, read_model_config(file, Rope::Pairs::kHalves));
  const SelfAttention::Options options{Bias::kOptional, Bias::kOptional, false};
  KVSPAN_TRY(const auto activation, PlainFeedForward::read_activation(
                                        file, config, PlainFeedForward::Activation::kGeluErf));
  KVSPAN_TRY(auto decoder, Decoder::load(file, config, /*rms=*/false, [&](int i) {
               return load_plain_layer(file, config, i, options, activation);
             }));
  KVSPAN_TRY(const auto parallel, file.find_bool("gptneox.use_parallel_residual"));
  decoder->parallel_residual = parallel.value_or(true);
  return std::unique_ptr<Architecture>(std::move(decoder));
}

}  // namespace kvspan
