// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "method/group.h"

namespace kvspan::testing {

// Positions of all tokens that a group holds, wherever, increasing; doubled ones show twice.
inline std::vector<std::int32_t> held_positions(const Group& group) {
  std::vector<std::int32_t> all;
  for (std::int32_t t = 0; t < group.list().tokens(); ++t) all.push_back(group.list().position(t));
  for (const BandsTokens& bands : group.bands()) {
    // Escaped tokens are in the list.
    for (std::int32_t t = 0; t < bands.keys.tokens(); ++t) {
      if ((bands.keys.escaped(t / 16) >> (t % 16) & 1) == 0) {
        all.push_back(bands.keys.first_position() + t);
      }
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace kvspan::testing
