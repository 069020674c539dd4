// SPDX-License-Identifier: Apache-2.0
// Products with integer coefficients for x86, written once over a vector type V (kernels_x86.h),
// which besides gives
//     load_codes, load_codes_part: kWidth, or n < kWidth, codes as floats, zeros beyond
//     dot16(sum, a, b): sum plus the pairwise products of 16 int16, two in each of 8 int32
// Queries are int16 as they come; codes widen to int16 in a register. That is as fast as products
// of bytes would be, since queries of 16 bits would take two of those.
#pragma once

#include <immintrin.h>

#include "attention/kernels/x86/kernels_x86.h"

namespace kvspan::detail {

// 16 numbers as int16, or the last 8 and zeros.
[[gnu::always_inline]] inline __m256i codes16(const std::int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
[[gnu::always_inline]] inline __m256i codes8(const std::int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// Scores of R query rows and four tokens at `rows`.
template <class V, int R>
[[gnu::always_inline]] inline void score_codes_block(const IntegerQueries& queries,
                                                     std::int32_t dim,
                                                     const std::int8_t* const (&rows)[4],
                                                     const float* scale, bool add, float* scores,
                                                     std::ptrdiff_t score_stride) {
  __m256i sums[R][4];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < 4; ++t) sums[r][t] = _mm256_setzero_si256();
  }
  std::int32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    __m256i k[4];
    for (int t = 0; t < 4; ++t) k[t] = codes16(rows[t] + i);
    for (int r = 0; r < R; ++r) {
      const __m256i q = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(queries.numbers + r * queries.stride + i));
      for (int t = 0; t < 4; ++t) sums[r][t] = V::dot16(sums[r][t], k[t], q);
    }
  }
  if (i < dim) {
    __m256i k[4];
    for (int t = 0; t < 4; ++t) k[t] = codes8(rows[t] + i);
    for (int r = 0; r < R; ++r) {
      const __m256i q = _mm256_zextsi128_si256(_mm_loadu_si128(
          reinterpret_cast<const __m128i*>(queries.numbers + r * queries.stride + i)));
      for (int t = 0; t < 4; ++t) sums[r][t] = V::dot16(sums[r][t], k[t], q);
    }
  }
  for (int r = 0; r < R; ++r) {
    const __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[r][0], sums[r][1]),
                                            _mm256_hadd_epi32(sums[r][2], sums[r][3]));
    const __m128i sum =
        _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128 factor = _mm_mul_ps(_mm_set1_ps(queries.scale[r]), _mm_loadu_ps(scale));
    __m128 score = _mm_mul_ps(_mm_cvtepi32_ps(sum), factor);
    float* to = scores + r * score_stride;
    if (add) score = _mm_add_ps(_mm_loadu_ps(to), score);
    _mm_storeu_ps(to, score);
  }
}

template <class V, int R>
void score_codes_run(const IntegerQueries& queries, std::int32_t dim, const CodeRows& keys,
                     std::int32_t tokens, bool add, float* scores, std::ptrdiff_t score_stride) {
  const std::ptrdiff_t stride = keys.stride;
  std::int32_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
    const std::int8_t* from = keys.codes + t * stride;
    const std::int8_t* const rows[4] = {from, from + stride, from + 2 * stride, from + 3 * stride};
    score_codes_block<V, R>(queries, dim, rows, keys.scale + t, add, scores + t, score_stride);
  }
  if (t == tokens) return;
  // The last one to three: the missing tokens are the last again, and not kept.
  const std::int8_t* rows[4];
  float scale[4], last[R * 4];
  for (int j = 0; j < 4; ++j) {
    const std::int32_t token = std::min(t + j, tokens - 1);
    rows[j] = keys.codes + token * stride;
    scale[j] = keys.scale[token];
  }
  score_codes_block<V, R>(queries, dim, rows, scale, false, last, 4);
  for (int r = 0; r < R; ++r) {
    for (int j = 0; t + j < tokens; ++j) {
      float& to = scores[r * score_stride + t + j];
      to = add ? to + last[r * 4 + j] : last[r * 4 + j];
    }
  }
}

template <class V>
void score_codes_simd(const IntegerQueries& queries, std::int32_t rows, std::int32_t dim,
                      const CodeRows& keys, std::int32_t tokens, bool add, float* scores,
                      std::int32_t score_stride) noexcept {
  for (std::int32_t r = 0; r < rows;) {
    const std::int32_t left = rows - r;
    const IntegerQueries q{queries.numbers + r * queries.stride, queries.stride, queries.scale + r};
    float* s = scores + static_cast<std::ptrdiff_t>(r) * score_stride;
    if (left == 1) {
      score_codes_run<V, 1>(q, dim, keys, tokens, add, s, score_stride);
      r += 1;
    } else if (left == 2 || left == 4) {
      score_codes_run<V, 2>(q, dim, keys, tokens, add, s, score_stride);
      r += 2;
    } else {
      score_codes_run<V, 3>(q, dim, keys, tokens, add, s, score_stride);
      r += 3;
    }
  }
}

// Adds the weighted sum of one vector of coordinates, or `part` of one, for R rows.
template <class V, int R, int D, bool kPart>
[[gnu::always_inline]] inline void weigh_codes_block(const float* weights,
                                                     std::ptrdiff_t weight_stride,
                                                     const CodeRows& values, std::int32_t at,
                                                     std::int32_t tokens, int part, float* out,
                                                     std::ptrdiff_t out_stride) {
  using F = typename V::F;
  F sums[R][D];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < D; ++i) {
      const float* from = out + r * out_stride + at + i * V::kWidth;
      sums[r][i] = kPart ? V::load_part(from, part) : V::load(from);
    }
  }
  for (std::int32_t t = 0; t < tokens; ++t) {
    F w[R];
    for (int r = 0; r < R; ++r) w[r] = V::set(weights[r * weight_stride + t] * values.scale[t]);
    const std::int8_t* row = values.codes + static_cast<std::ptrdiff_t>(t) * values.stride + at;
    for (int i = 0; i < D; ++i) {
      const F v = kPart ? V::load_codes_part(row + i * V::kWidth, part)
                        : V::load_codes(row + i * V::kWidth);
      for (int r = 0; r < R; ++r) sums[r][i] = V::fma(v, w[r], sums[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < D; ++i) {
      float* to = out + r * out_stride + at + i * V::kWidth;
      kPart ? V::store_part(to, sums[r][i], part) : V::store(to, sums[r][i]);
    }
  }
}

template <class V, int R>
void weigh_codes_run(const float* weights, std::ptrdiff_t weight_stride, const CodeRows& values,
                     std::int32_t dim, std::int32_t tokens, float* out, std::ptrdiff_t out_stride) {
  constexpr int kVectors = 4;
  std::int32_t i = 0;
  for (; i + kVectors * V::kWidth <= dim; i += kVectors * V::kWidth) {
    weigh_codes_block<V, R, kVectors, false>(weights, weight_stride, values, i, tokens, 0, out,
                                             out_stride);
  }
  for (; i + V::kWidth <= dim; i += V::kWidth) {
    weigh_codes_block<V, R, 1, false>(weights, weight_stride, values, i, tokens, 0, out,
                                      out_stride);
  }
  if (i < dim) {
    weigh_codes_block<V, R, 1, true>(weights, weight_stride, values, i, tokens, dim - i, out,
                                     out_stride);
  }
}

template <class V>
void weigh_codes_simd(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                      const CodeRows& values, std::int32_t dim, std::int32_t tokens, float* out,
                      std::int32_t out_stride) noexcept {
  for (std::int32_t r = 0; r < rows;) {
    const std::int32_t left = rows - r;
    const float* w = weights + static_cast<std::ptrdiff_t>(r) * weight_stride;
    float* to = out + static_cast<std::ptrdiff_t>(r) * out_stride;
    if (left == 1) {
      weigh_codes_run<V, 1>(w, weight_stride, values, dim, tokens, to, out_stride);
      r += 1;
    } else if (left == 2 || left == 4) {
      weigh_codes_run<V, 2>(w, weight_stride, values, dim, tokens, to, out_stride);
      r += 2;
    } else {
      weigh_codes_run<V, 3>(w, weight_stride, values, dim, tokens, to, out_stride);
      r += 3;
    }
  }
}

}  // namespace kvspan::detail
