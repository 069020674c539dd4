// SPDX-License-Identifier: Apache-2.0
// Qwen 2 and 2.5: as llama, with biases on queries, keys and values, and RoPE over halves.
#include "base/fail.h"
#include "model/arch/architectures.h"
#include "model/arch/decoder.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_qwen2(GgufFile& file) {
  KVSPAN_TRY(ModelConfig config, read_model_config(file, Rope::Pairs::kHalves));
  SelfAttention::Options options;
  options.qkv_bias = Bias::kRequired;
  KVSPAN_TRY(auto decoder, Decoder::load(file, config, /*rms=*/true, [&](int i) {
               return load_gated_layer(file, config, i, options);
             }));
  return std::unique_ptr<Architecture>(std::move(decoder));
}

}  // namespace kvspan
