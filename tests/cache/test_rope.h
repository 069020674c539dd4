// SPDX-License-Identifier: Apache-2.0
// The usual angles.
#pragma once

#include <cmath>
#include <cstdint>

#include "kvspan/shape.h"

namespace kvspan::testing {

inline Rope test_rope(std::int32_t rotated, Rope::Pairs pairs, float magnitude) {
  Rope rope = {};
  rope.pairs = pairs;
  rope.rotated_dims = rotated;
  rope.magnitude = magnitude;
  for (std::int32_t i = 0; i < rotated / 2; ++i) {
    rope.angles.push_back(std::pow(10000.0, -2.0 * i / rotated));
  }
  return rope;
}

}  // namespace kvspan::testing
