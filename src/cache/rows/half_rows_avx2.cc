// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "cache/rows/half_rows.h"

namespace kvspan::detail {
namespace {

// Eight numbers of all rows, from i on.
template <int V>
[[gnu::always_inline]] inline void add_rows(const HalfRows& rows, std::size_t i,
                                            const float* factors, __m256 (&sums)[V]) {
  for (std::size_t r = 0; r < rows.count; ++r) {
    const Half* row = rows.numbers + r * rows.stride + i;
    const __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
    for (int v = 0; v < V; ++v) {
      const float* factor = factors + static_cast<std::size_t>(v) * kHalfRows + r;
      sums[v] = _mm256_fmadd_ps(x, _mm256_broadcast_ss(factor), sums[v]);
    }
  }
}

template <int V>
void add_all(const HalfRows& rows, const float* factors, std::size_t n, float* to) {
  __m256 sums[V];
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int v = 0; v < V; ++v) sums[v] = _mm256_loadu_ps(to + static_cast<std::size_t>(v) * n + i);
    add_rows(rows, i, factors, sums);
    for (int v = 0; v < V; ++v) _mm256_storeu_ps(to + static_cast<std::size_t>(v) * n + i, sums[v]);
  }
  if (i == n) return;
  for (int v = 0; v < V; ++v) {
    float* const at = to + static_cast<std::size_t>(v) * n + i;
    __m128 sum = _mm_loadu_ps(at);
    for (std::size_t r = 0; r < rows.count; ++r) {
      const Half* row = rows.numbers + r * rows.stride + i;
      const __m128 x = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row)));
      const float* factor = factors + static_cast<std::size_t>(v) * kHalfRows + r;
      sum = _mm_fmadd_ps(x, _mm_broadcast_ss(factor), sum);
    }
    _mm_storeu_ps(at, sum);
  }
}

}  // namespace

void add_half_rows_avx2(const HalfRows& rows, const float* factors, std::size_t count,
                        std::size_t n, float* vectors) noexcept {
  in_vectors(factors, count, n, vectors,
             [&]<int V>(const float* by, float* to) { add_all<V>(rows, by, n, to); });
}

}  // namespace kvspan::detail
