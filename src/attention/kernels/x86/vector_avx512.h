// SPDX-License-Identifier: Apache-2.0
// The vector type of AVX-512 (attention/kernels/softmax_simd.h, attention/kernels/x86/kernels_x86.h): 16 floats. For
// files compiled for AVX-512 only.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "attention/kernels/vector_arithmetic.h"

namespace kvspan::detail {
namespace {

struct Avx512 : VectorArithmetic {
  using F = __m512;
  static constexpr std::int32_t kWidth = 16;
  static constexpr int kRows = 4;                          // x 4 tokens: 16 sums, 4 queries, 1 key
  static constexpr int kScoreTokens = 8, kScoreVectors = 3;  // 24 sums, 3 queries, 1 key
  static constexpr int kWeighRows = 8, kWeighVectors = 3;  // 24 sums, 3 values, 1 weight

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_part(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static F load_half(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_half_part(const std::uint16_t* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static F load_codes(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_codes_part(const std::int8_t* p, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)));
  }
  static __m256i dot16(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fma(F a, F b, const float (&c)[4]) { return fma(a, b, set(c[0])); }
  static F pow2(F t) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23)); }
  static F keep(F s, std::int32_t token, const std::int32_t* begin, const std::int32_t* end) {
    const __m512i t = _mm512_set1_epi32(token);
    const __mmask16 seen = _mm512_cmple_epi32_mask(_mm512_loadu_si512(begin), t) &
                           _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(end), t);
    return _mm512_mask_blend_ps(seen, set(-std::numeric_limits<float>::infinity()), s);
  }
  static F zero_where_equal(F x, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, y, _CMP_NEQ_UQ), x);
  }
  static float hmax(F x) { return _mm512_reduce_max_ps(x); }
  static float hadd(F x) { return _mm512_reduce_add_ps(x); }
  static F reversed(F x) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), x);
  }
  static __m256 halves(F x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  }
  // The sums over the lanes of four vectors, side by side.
  static void store_sums(float* to, F a, F b, F c, F d) {
    const __m256 pairs =
        _mm256_hadd_ps(_mm256_hadd_ps(halves(a), halves(b)), _mm256_hadd_ps(halves(c), halves(d)));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
  }
};

}  // namespace
}  // namespace kvspan::detail
