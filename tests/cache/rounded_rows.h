// SPDX-License-Identifier: Apache-2.0
// A matrix as a code of bands holds it (cache/bands/bands_code.h), rounded in double by the
// definition of f16 alone: each row times a power of two in which its largest stored number is in
// [1, 2).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "codec/bands/bands_pack.h"

namespace kvspan::testing {

// b [d, d]; columns that are not stored become 0.
inline std::vector<double> rounded_rows(std::span<const float> b, std::size_t d,
                                        const BandsLayout& layout) {
  const auto stored = layout.order().first(layout.stored());
  std::vector<double> out(d * d);
  // 11 significant bits, the last of them 2^-24 at least; ties to even, as nearbyint does.
  const auto rounded = [](double x) {
    const double unit = std::exp2(std::max(std::floor(std::log2(std::abs(x))), -14.0) - 10.0);
    return x == 0.0 ? 0.0 : std::nearbyint(x / unit) * unit;
  };
  for (std::size_t j = 0; j < d; ++j) {
    double most = 0.0;
    for (const std::size_t p : stored) most = std::max(most, std::abs(double{b[j * d + p]}));
    if (most == 0.0) continue;
    double scale = std::exp2(std::floor(std::log2(most)));
    if (rounded(most / scale) == 2.0) scale *= 2.0;
    for (const std::size_t p : stored) {
      out[j * d + p] = scale * rounded(double{b[j * d + p]} / scale);
    }
  }
  return out;
}

}  // namespace kvspan::testing
