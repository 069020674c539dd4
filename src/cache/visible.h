// SPDX-License-Identifier: Apache-2.0
// What a query sees of the tokens before it: all, or by a sliding window, or its chunk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kvspan/cache.h"

namespace kvspan {

// The first position that a query at `position` sees; it sees all from there to its own. Never
// falls with position, so that what several queries see is one range too.
inline std::int32_t first_seen(const LayerShape& layer, std::int32_t position) noexcept {
  std::int32_t first = 0;
  if (layer.window > 0) first = std::max(first, position - layer.window + 1);
  if (layer.chunk > 0) first = std::max(first, position - position % layer.chunk);
  return first;
}

// The first query that sees no position before `position`, nor does any after it. 0 for 0; never,
// where the layer has neither window nor chunk.
inline std::int32_t first_query_past(const LayerShape& layer, std::int32_t position) noexcept {
  std::int32_t first = std::numeric_limits<std::int32_t>::max();
  if (position <= 0) return 0;
  if (layer.window > 0) first = std::min(first, position + layer.window - 1);
  if (layer.chunk > 0) {
    first = std::min(first, (position + layer.chunk - 1) / layer.chunk * layer.chunk);
  }
  return first;
}

}  // namespace kvspan
