// SPDX-License-Identifier: Apache-2.0
#include "kvspan/cache.h"

namespace kvspan {

std::size_t full_rank_f16_bytes(const CacheShape& shape, std::int32_t tokens) noexcept {
  std::size_t per_token = 0;
  for (const LayerShape& layer : shape.layers) {
    per_token += static_cast<std::size_t>(layer.kv_heads) *
                 static_cast<std::size_t>(layer.key_dim + layer.value_dim) * 2;
  }
  return per_token * static_cast<std::size_t>(tokens);
}

}  // namespace kvspan
