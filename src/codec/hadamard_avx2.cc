// SPDX-License-Identifier: Apache-2.0
// Hadamard for AVX2: distances 1 to 8 within two registers, then two distances per pass.
#include <immintrin.h>

#include "codec/hadamard.h"

namespace kvspan::detail {
namespace {

inline void butterfly(__m256& a, __m256& b) {
  const __m256 difference = _mm256_sub_ps(a, b);
  a = _mm256_add_ps(a, b);
  b = difference;
}

// Distances 1, 2 and 4 inside a vector: first and second partners side by side, sums where the
// first was and differences where the second was.
inline __m256 inner(__m256 v) {
  __m256 a = _mm256_moveldup_ps(v), b = _mm256_movehdup_ps(v);
  v = _mm256_blend_ps(_mm256_add_ps(a, b), _mm256_sub_ps(a, b), 0xaa);
  a = _mm256_permute_ps(v, 0x44);
  b = _mm256_permute_ps(v, 0xee);
  v = _mm256_blend_ps(_mm256_add_ps(a, b), _mm256_sub_ps(a, b), 0xcc);
  a = _mm256_permute2f128_ps(v, v, 0x00);
  b = _mm256_permute2f128_ps(v, v, 0x11);
  return _mm256_blend_ps(_mm256_add_ps(a, b), _mm256_sub_ps(a, b), 0xf0);
}

}  // namespace

void hadamard_avx2(float* x, std::size_t size, float factor) noexcept {
  if (size < 16) {
    hadamard_ref(x, size, factor);
    return;
  }
  const __m256 f = _mm256_set1_ps(factor);
  for (std::size_t i = 0; i < size; i += 16) {
    __m256 a = inner(_mm256_mul_ps(_mm256_loadu_ps(x + i), f));
    __m256 b = inner(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), f));
    butterfly(a, b);
    _mm256_storeu_ps(x + i, a);
    _mm256_storeu_ps(x + i + 8, b);
  }
  std::size_t h = 16;
  for (; 4 * h <= size; h *= 4) {
    for (std::size_t block = 0; block < size; block += 4 * h) {
      for (float* p = x + block; p < x + block + h; p += 8) {
        __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + h);
        __m256 c = _mm256_loadu_ps(p + 2 * h), d = _mm256_loadu_ps(p + 3 * h);
        butterfly(a, b);
        butterfly(c, d);
        butterfly(a, c);
        butterfly(b, d);
        _mm256_storeu_ps(p, a);
        _mm256_storeu_ps(p + h, b);
        _mm256_storeu_ps(p + 2 * h, c);
        _mm256_storeu_ps(p + 3 * h, d);
      }
    }
  }
  if (h < size) {
    for (float* p = x; p < x + h; p += 8) {
      __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + h);
      butterfly(a, b);
      _mm256_storeu_ps(p, a);
      _mm256_storeu_ps(p + h, b);
    }
  }
}

}  // namespace kvspan::detail
