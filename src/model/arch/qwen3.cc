// SPDX-License-Identifier: Apache-2.0
// Qwen 3 (dense): RMSNorm of every head's queries and keys before RoPE; the head size is its own
// number.
#include "base/fail.h"
#include "model/arch/architectures.h"
#include "model/arch/decoder.h"

namespace kvspan {

Result<std::unique_ptr<Architecture>> load_qwen3(GgufFile& file) {
  KVSPAN_TRY(ModelConfig config, read_model_config(file, Rope::Pairs::kHalves));
  SelfAttention::Options options;
  options.qk_norm = true;
  KVSPAN_TRY(auto decoder, Decoder::load(file, config, /*rms=*/true, [&](int i) {
               return load_gated_layer(file, config, i, options);
             }));
  return std::unique_ptr<Architecture>(std::move(decoder));
}

}  // namespace kvspan
