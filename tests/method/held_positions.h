// SPDX-License-Identifier: Apache-2.0
// What a group of a cache holds, whatever its stores are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "method/group.h"

namespace kvspan::testing {

inline std::vector<const TokenStore*> stores_of(const Group& group) {
  std::vector<const TokenStore*> all;
  group.each_store([&](const TokenStore& store) { all.push_back(&store); });
  return all;
}

// All rows of some stores, as attention sees them, by position; doubled ones show twice.
inline RowBlock held_rows(const Group& group, std::span<const TokenStore* const> stores) {
  RowBlock rows{.heads = group.options().heads,
                .key_dim = group.layer().key_dim,
                .value_dim = group.layer().value_dim,
                .keys = {},
                .values = {},
                .positions = {}};
  for (const TokenStore* store : stores) {
    store->read(0, std::numeric_limits<std::int32_t>::max(), rows);
  }
  rows.sort();
  return rows;
}

inline std::vector<std::int32_t> held_positions(const Group& group) {
  return held_rows(group, stores_of(group)).positions;
}

}  // namespace kvspan::testing
