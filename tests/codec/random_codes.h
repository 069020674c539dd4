// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/random.h"

namespace kvspan {

// Two's complement within a width.
inline std::int8_t random_code(Random& random, int width) {
  return static_cast<std::int8_t>(static_cast<int>(random.below(1u << width)) - (1 << (width - 1)));
}

}  // namespace kvspan
