// SPDX-License-Identifier: Apache-2.0
// Hands out parts of a thread's working memory one after the other, or counts what they take where there is none yet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace kvspan {

struct WorkPlaces {
  float* next;
  std::size_t used = 0;

  // From whole cache lines on: a register of AVX-512 is one, and tiles are whole ones.
  float* floats(std::size_t count) {
    float* const here = next == nullptr ? nullptr : next + used;
    used += floats_in_lines(count);
    return here;
  }
  std::int8_t* codes(std::size_t count) {
    return reinterpret_cast<std::int8_t*>(floats((count + 3) / 4));
  }
};

}  // namespace kvspan
