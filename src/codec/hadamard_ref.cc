// SPDX-License-Identifier: Apache-2.0
#include "codec/hadamard.h"

namespace kvspan::detail {

void hadamard_ref(float* x, std::size_t size, float factor) noexcept {
  for (std::size_t i = 0; i < size; ++i) x[i] *= factor;
  for (std::size_t h = 1; h < size; h *= 2) {
    for (std::size_t block = 0; block < size; block += 2 * h) {
      for (std::size_t i = block; i < block + h; ++i) {
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
}

}  // namespace kvspan::detail
