// SPDX-License-Identifier: Apache-2.0
// The product of two rows of floats.
#pragma once

#include <cstddef>

namespace kvspan {

// Eight partial sums in a fixed order, which a compiler may keep in a few registers. Sum: what they are made in.
template <class Sum = float>
inline Sum dot(const float* a, const float* b, std::size_t n) noexcept {
  Sum lanes[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::size_t l = 0; l < 8; ++l) lanes[l] += Sum{a[i + l]} * Sum{b[i + l]};
  }
  for (; i < n; ++i) lanes[i % 8] += Sum{a[i]} * Sum{b[i]};
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

}  // namespace kvspan
