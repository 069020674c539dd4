// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "cache/rows/narrow.h"

namespace kvspan::detail {

void narrow_to_half_avx2(const float* from, std::size_t count, Half* to) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half =
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  for (; i < count; ++i) {
    to[i].bits = static_cast<unsigned short>(
        _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(from[i]), _MM_FROUND_TO_NEAREST_INT)));
  }
}

}  // namespace kvspan::detail
