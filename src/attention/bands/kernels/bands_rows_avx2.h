// SPDX-License-Identifier: Apache-2.0
// Rows of numbers by AVX2: what queries make of the mean of keys, and rounding to bytes.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

// 8 K positions after the middle and as many before it, of R rows: 2 R K sums, and K numbers that they share.
template <int R, int K>
[[gnu::always_inline]] inline void mean_blocks(const AnchoredMeans& means, const float* sums, std::ptrdiff_t k,
                                               float* to, std::ptrdiff_t stride) noexcept {
  const std::ptrdiff_t half = means.half(), pairs = means.pairs(), row = means.sums();
  __m256 even[R][K], odd[R][K];
  unrolled<R * K>([&]<int i>() __attribute__((always_inline)) {
    even[i / K][i % K] = _mm256_set1_ps(sums[i / K * row + 2 * pairs]);
    odd[i / K][i % K] = _mm256_setzero_ps();
  });
  const auto add = [](const float* turn, const float* by, std::ptrdiff_t by_stride, __m256(&to_sums)[R][K])
      __attribute__((always_inline)) {
    __m256 x[K];
    unrolled<K>([&]<int i>() __attribute__((always_inline)) { x[i] = _mm256_loadu_ps(turn + 8 * i); });
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const __m256 a = _mm256_broadcast_ss(by + r * by_stride);
      unrolled<K>([&]<int i>() __attribute__((always_inline)) {
        to_sums[r][i] = _mm256_fmadd_ps(x[i], a, to_sums[r][i]);
      });
    });
  };
  const float* turn = means.turns() + k;
  for (std::ptrdiff_t j = 0; j < means.used_terms(); ++j, turn += 2 * half) {
    add(turn, sums + j, row, even);
    add(turn + half, sums + pairs + j, row, odd);
  }
  const __m256i back = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  unrolled<R * K>([&]<int i>() __attribute__((always_inline)) {
    const __m256 e = even[i / K][i % K], o = odd[i / K][i % K];
    float* const middle = to + i / K * stride + half;
    const std::ptrdiff_t from = k + 8 * (i % K);
    _mm256_storeu_ps(middle + from, _mm256_add_ps(e, o));
    _mm256_storeu_ps(middle - from - 8, _mm256_permutevar8x32_ps(_mm256_sub_ps(e, o), back));
  });
}

// Positions lie in eights.
[[maybe_unused]] void means_avx2(const AnchoredMeans& means, const float* sums, std::int32_t rows, float* to,
                                 std::int32_t stride) noexcept {
  detail::in_even_blocks<3>(rows, [&]<int R>(std::ptrdiff_t r) {
    const std::ptrdiff_t half = means.half();
    const float* const from = sums + r * means.sums();
    float* const out = to + r * stride;
    std::ptrdiff_t k = 0;
    for (; half - k >= 16; k += 16) mean_blocks<R, 2>(means, from, k, out, stride);
    for (; k < half; k += 8) mean_blocks<R, 1>(means, from, k, out, stride);
  });
}

inline float sum_over(__m256 x) noexcept {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest_of(__m256 x) noexcept {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// x times factor to the nearest whole number. count: a multiple of 4.
inline void to_nearest(const float* x, std::int32_t count, float factor, std::int8_t* to) noexcept {
  const __m256 by = _mm256_set1_ps(factor);
  const auto whole = [&](const float* from) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), by)); };
  std::int32_t i = 0;
  for (; i + 32 <= count; i += 32) {
    // Halves of what is packed come from the two sides in turn, lane by lane.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole(x + i), whole(x + i + 8)),
                                             _mm256_packs_epi32(whole(x + i + 16), whole(x + i + 24)));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  for (; i < count; i += 4) {
    const __m128i four = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + i), _mm256_castps256_ps128(by)));
    const __m128i bytes = _mm_packs_epi16(_mm_packs_epi32(four, four), four);
    const std::int32_t all = _mm_cvtsi128_si32(bytes);
    std::memcpy(to + i, &all, 4);
  }
}

[[maybe_unused]] float round_avx2(const float* x, std::int32_t count, std::int8_t* to, float* sum) noexcept {
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 most[2] = {}, total[2] = {};  // one alone would wait for itself
  const auto take = [&](int k, __m256 some) {
    total[k] = _mm256_add_ps(total[k], some);
    most[k] = _mm256_max_ps(_mm256_and_ps(some, no_sign), most[k]);
  };
  std::int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    take(0, _mm256_loadu_ps(x + i));
    take(1, _mm256_loadu_ps(x + i + 8));
  }
  for (; i < count; i += 4) take(0, _mm256_zextps128_ps256(_mm_loadu_ps(x + i)));
  *sum += sum_over(_mm256_add_ps(total[0], total[1]));
  const float largest = largest_of(_mm256_max_ps(most[0], most[1]));
  to_nearest(x, count, detail::to_bytes(largest), to);
  return largest;
}

[[maybe_unused]] float round_weights_avx2(float* x, const float* factors, std::int32_t count, std::int8_t* to,
                                          float* sum) noexcept {
  __m256 most[2] = {}, total[2] = {};
  for (std::int32_t i = 0; i < count; i += 16) {
    unrolled<2>([&]<int k>() __attribute__((always_inline)) {
      float* const at = x + i + 8 * k;
      const __m256 product = _mm256_mul_ps(_mm256_loadu_ps(at), _mm256_loadu_ps(factors + i + 8 * k));
      _mm256_storeu_ps(at, product);
      total[k] = _mm256_add_ps(total[k], product);
      most[k] = _mm256_max_ps(product, most[k]);
    });
  }
  *sum += sum_over(_mm256_add_ps(total[0], total[1]));
  const float largest = largest_of(_mm256_max_ps(most[0], most[1]));
  to_nearest(x, count, detail::to_bytes(largest), to);
  return largest;
}

}  // namespace
}  // namespace kvspan
