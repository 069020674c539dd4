// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kvspan/cache.h"

namespace kvspan {

// The layer as KV heads first .. first + count - 1 and their query heads alone make it.
inline LayerShape layer_part(const LayerShape& layer, std::int32_t first, std::int32_t count) {
  const std::int32_t per_head = layer.query_heads / layer.kv_heads;
  LayerShape part = layer;
  part.kv_heads = count;
  part.query_heads = count * per_head;
  const auto slice = [&](std::vector<float>& numbers) {
    if (numbers.empty()) return;
    const auto from = numbers.begin() + first * per_head;
    numbers = std::vector<float>(from, from + part.query_heads);
  };
  slice(part.alibi);
  slice(part.sinks);
  return part;
}

}  // namespace kvspan
