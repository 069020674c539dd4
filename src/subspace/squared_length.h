// SPDX-License-Identifier: Apache-2.0
// |x|^2 of an f32 vector, summed in f64.
#pragma once

#include <cstddef>

namespace kvspan::detail {

// Four sums side by side: one alone would wait for each addition before the next.
inline double squared_length(const float* x, std::size_t count) noexcept {
  double part[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (std::size_t q = 0; q < 4; ++q) part[q] += static_cast<double>(x[i + q]) * x[i + q];
  }
  for (; i < count; ++i) part[0] += static_cast<double>(x[i]) * x[i];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

}  // namespace kvspan::detail
