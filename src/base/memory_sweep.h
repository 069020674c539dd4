// SPDX-License-Identifier: Apache-2.0
// Reading memory as fast as it comes, for those who time it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvspan/team.h"

namespace kvspan {

// The member's share of `words`, read once and summed in independent chains, so that no addition
// waits for another.
inline std::uint64_t sweep(std::span<const std::uint64_t> words, const Team& team) noexcept {
  const std::size_t share = words.size() / static_cast<std::size_t>(team.size());
  const std::uint64_t* from = words.data() + share * static_cast<std::size_t>(team.index());
  std::array<std::uint64_t, 32> sums{};
  for (std::size_t i = 0; i + 32 <= share; i += 32) {
    for (std::size_t j = 0; j < 32; ++j) sums[j] += from[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace kvspan
