// SPDX-License-Identifier: Apache-2.0
// The vector type of AVX2, FMA and F16C (attention/kernels/softmax_simd.h, attention/kernels/x86/kernels_x86.h):
// 8 floats, 16 registers. For files compiled for AVX2 only.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "attention/kernels/vector_arithmetic.h"

namespace kvspan::detail {
namespace {

struct Avx2 : VectorArithmetic {
  using F = __m256;
  static constexpr std::int32_t kWidth = 8;
  static constexpr int kRows = 3;                          // x 4 tokens: 12 sums, 3 queries, 1 key
  static constexpr int kScoreTokens = 6, kScoreVectors = 2;  // 12 sums, 2 queries, 1 key
  static constexpr int kWeighRows = 4, kWeighVectors = 3;  // 12 sums, 3 values, 1 weight

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  // Dimensions are multiples of 8: no vector is ever part of one.
  static F load_part(const float* p, int) { return load(p); }
  static void store_part(float* p, F x, int) { store(p, x); }
  static F load_half(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load_half_part(const std::uint16_t* p, int) { return load_half(p); }
  static F load_codes(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_codes_part(const std::int8_t* p, int) { return load_codes(p); }
  static __m256i dot16(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fma(F a, F b, const float (&c)[4]) { return fma(a, b, set(c[0])); }
  static F pow2(F t) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)); }
  static F keep(F s, std::int32_t token, const std::int32_t* begin, const std::int32_t* end) {
    const __m256i t = _mm256_set1_epi32(token);
    const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(begin));
    const __m256i to = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(end));
    const __m256i unseen =
        _mm256_or_si256(_mm256_cmpgt_epi32(from, t),
                        _mm256_andnot_si256(_mm256_cmpgt_epi32(to, t), _mm256_set1_epi32(-1)));
    return _mm256_blendv_ps(s, set(-std::numeric_limits<float>::infinity()),
                            _mm256_castsi256_ps(unseen));
  }
  static F zero_where_equal(F x, F y) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, y, _CMP_EQ_OQ), x);
  }
  static float hmax(F x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  static float hadd(F x) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
  }
  static F reversed(F x) { return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)); }
  // The sums over the lanes of four vectors, side by side.
  static void store_sums(float* to, F a, F b, F c, F d) {
    const F pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
  }
};

}  // namespace
}  // namespace kvspan::detail
