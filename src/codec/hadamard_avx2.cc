// SPDX-License-Identifier: Apache-2.0
// Hadamard for AVX2: distances 1 to 8 within two registers, then two distances per pass.
#include <immintrin.h>

#include "codec/hadamard.h"
#include "codec/hadamard_passes.h"

namespace kvspan::detail {
namespace {

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
  hadamard_passes_from_16<__m256>(x, size);
}

}  // namespace kvspan::detail
