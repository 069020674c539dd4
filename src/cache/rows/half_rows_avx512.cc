// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <algorithm>

#include "base/unrolled.h"
#include "cache/rows/half_rows.h"

namespace kvspan::detail {
namespace {

// Numbers from i on of all rows and V vectors, 16 in a register, of the last those in `there`.
template <int V, int W>
[[gnu::always_inline]] inline void add_some(const HalfRows& rows, const float* factors,
                                            std::size_t n, std::size_t i, __mmask16 there,
                                            float* to) {
  __m512 sums[V][W];
  const auto mask = [&](int w) { return w == W - 1 ? there : __mmask16{0xffff}; };
  unrolled<V * W>([&]<int k>() __attribute__((always_inline)) {
    const float* const at = to + k / W * n + i + 16 * (k % W);
    sums[k / W][k % W] = _mm512_maskz_loadu_ps(mask(k % W), at);
  });
  for (std::size_t r = 0; r < rows.count; ++r) {
    const Half* const row = rows.numbers + r * rows.stride + i;
    __m512 x[W];
    unrolled<W>([&]<int w>() __attribute__((always_inline)) {
      x[w] = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(w), row + 16 * w));
    });
    unrolled<V * W>([&]<int k>() __attribute__((always_inline)) {
      const __m512 factor = _mm512_set1_ps(factors[k / W * kHalfRows + r]);
      sums[k / W][k % W] = _mm512_fmadd_ps(x[k % W], factor, sums[k / W][k % W]);
    });
  }
  unrolled<V * W>([&]<int k>() __attribute__((always_inline)) {
    float* const at = to + k / W * n + i + 16 * (k % W);
    _mm512_mask_storeu_ps(at, mask(k % W), sums[k / W][k % W]);
  });
}

// Two registers of each vector: four sums alone would wait for themselves.
template <int V>
void add_all(const HalfRows& rows, const float* factors, std::size_t n, float* to) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) add_some<V, 2>(rows, factors, n, i, 0xffff, to);
  for (; i < n; i += 16) {
    const auto there = static_cast<__mmask16>((1u << std::min<std::size_t>(n - i, 16)) - 1u);
    add_some<V, 1>(rows, factors, n, i, there, to);
  }
}

}  // namespace

void add_half_rows_avx512(const HalfRows& rows, const float* factors, std::size_t count,
                          std::size_t n, float* vectors) noexcept {
  in_vectors(factors, count, n, vectors,
             [&]<int V>(const float* by, float* to) { add_all<V>(rows, by, n, to); });
}

}  // namespace kvspan::detail
