// SPDX-License-Identifier: Apache-2.0
#include "base/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace kvspan {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * columns);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& {
    return cost[i * columns + j];
  };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t best = std::min(at(i - 1, j) + 1, at(i, j - 1) + 1);
      best = std::min(best, at(i - 1, j - 1) + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, at(i - 2, j - 2) + 1);
      }
      at(i, j) = best;
    }
  }
  return at(a.size(), b.size());
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (3 * distance > std::max(word.size(), candidate.size())) continue;
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const auto found = nearest(word, candidates);
  return found ? fmt::format(", did you mean '{}'?", *found) : std::string();
}

}  // namespace kvspan
