// SPDX-License-Identifier: Apache-2.0
// What one layer of a cache holds, as plain numbers: the way of tokens between the stores of the
// host and memory of another kind (cuda/device_state.cc). Codes and rows are copied as they are,
// never decoded and coded again. For methods that leave rows in f16, or code them as
// Policy::give_codes says; others are refused by name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/half.h"
#include "kvspan/result.h"

namespace kvspan {

class Group;   // method/group.h
class Policy;  // method/policies/policy.h

struct PositionRange {
  std::int32_t first = 0, last = 0;  // last: one beyond
  std::int32_t size() const noexcept { return std::max(0, last - first); }
  bool operator==(const PositionRange&) const = default;
};

// Tokens that are coded together.
inline constexpr std::int32_t kCodedTogether = 16;

// Of one group of KV heads.
struct GroupTokens {
  std::uint64_t code = 0;                 // checksum of the code; 0: the group has none
  std::vector<std::int8_t> codes, gains;  // [coded, places] as the code orders them, [coded]
  std::vector<Half> keys, values;         // [rows, heads, dim], keys after RoPE
};

// Positions are 0 to next - 1, and those from `first` on are held; no query from `least` on sees
// others.
struct LayerTokens {
  std::int32_t next = 0, first = 0, least = 0;
  // Positions from sink to below coded are codes, all others rows. coded 0: there are no codes.
  std::int32_t sink = 0, coded = 0;
  std::vector<GroupTokens> groups;

  // What is held: rows, then codes, then rows again.
  PositionRange before() const noexcept { return {first, coded > 0 ? sink : first}; }
  PositionRange codes() const noexcept {
    return coded > 0 ? PositionRange{std::max(first, sink), coded} : PositionRange{};
  }
  PositionRange after() const noexcept { return {std::max(first, coded), next}; }
  std::size_t rows() const noexcept {
    return static_cast<std::size_t>(before().size()) + static_cast<std::size_t>(after().size());
  }
};

// Adds a group of a layer; the first says which positions are held, and it fails
// where another holds others. policy: the group's, or null.
Status add_group(const Group& group, const Policy* policy, LayerTokens& to);

// Makes an empty group hold what `from` says of its group number `index`, in segments as they would
// be had the rows come by themselves. Positions that are not held become zeros, which the caller
// makes the group forget. Throws std::bad_alloc.
Status fill_group(const LayerTokens& from, std::size_t index, Policy* policy, Group& group);

}  // namespace kvspan
