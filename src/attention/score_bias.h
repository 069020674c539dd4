// SPDX-License-Identifier: Apache-2.0
// ALiBi (Press, Smith, Lewis, 2022): a score falls with the distance to its token, by a slope of
// the query head's own. Added to scores in base 2, after the soft cap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvspan/cache.h"

namespace kvspan {

// 0 where the layer has no slopes.
inline float alibi_slope(const LayerShape& layer, std::int32_t query_head) noexcept {
  constexpr float kLog2e = 1.4426950408889634f;
  return layer.alibi.empty() ? 0.0f : kLog2e * layer.alibi[static_cast<std::size_t>(query_head)];
}

// scores[i * stride] += slope * (position_of(i) - query), i < count.
template <class PositionOf>
void add_alibi(float* scores, std::ptrdiff_t stride, std::int32_t count, float slope,
               std::int32_t query, const PositionOf& position_of) noexcept {
  for (std::int32_t i = 0; i < count; ++i) {
    scores[i * stride] += slope * static_cast<float>(position_of(i) - query);
  }
}

}  // namespace kvspan
