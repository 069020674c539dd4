// SPDX-License-Identifier: Apache-2.0
// Householder reflectors: H = I - tau u u' maps x to a multiple of one unit vector.
#pragma once

#include <cmath>
#include <cstddef>

#include "linalg/panel.h"

namespace kvspan::detail {

struct Reflector {
  double image = 0.0;
  double tau = 0.0;  // 0: x was a multiple of the unit vector already, H = I
};

// x: a padded vector of n entries, 0 before `first`; overwritten with u, so that Hx = image
// e_first. The sign of the image avoids cancellation. Squares of x must not overflow.
inline Reflector make_reflector(double* x, std::size_t first, std::size_t n) noexcept {
  double unit = 1.0;
  double head = x[first];
  x[first] = 0.0;
  double tail = inner_product(x, x, n);
  if (tail < 1e-140) {  // too small to square, or 0: what cancellation leaves of dependent rows
    const Extremes range = extremes(x, n);
    const double largest = range.greatest > -range.least ? range.greatest : -range.least;
    if (largest == 0.0) {
      x[first] = head;
      return {head, 0.0};
    }
    // If the head is so much larger that H differs from I by less than rounding, it is I.
    if (std::abs(head) > 1e40 * largest) {
      for (std::size_t i = first; i < n; ++i) x[i] = 0.0;
      x[first] = head;
      return {head, 0.0};
    }
    unit = std::ldexp(1.0, std::ilogb(largest));
    for (std::size_t i = first; i < n; ++i) x[i] /= unit;
    head /= unit;
    tail = inner_product(x, x, n);
  }
  const double length = std::sqrt(head * head + tail);
  const double image = head > 0.0 ? -length : length;
  x[first] = head - image;
  return {image * unit, 2.0 / (x[first] * x[first] + tail)};
}

}  // namespace kvspan::detail
