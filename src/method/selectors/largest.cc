// SPDX-License-Identifier: Apache-2.0
#include "method/selectors/largest.h"

#include <algorithm>
#include <numeric>

namespace kvspan {

std::vector<std::uint8_t> largest(std::span<const float> scores, std::int64_t count) {
  std::vector<std::uint8_t> keep(scores.size(), 0);
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto wanted =
      std::min(order.size(), static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(),
                   [&](std::size_t a, std::size_t b) {
                     return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                   });
  for (std::size_t i = 0; i < wanted; ++i) keep[order[i]] = 1;
  return keep;
}

}  // namespace kvspan
