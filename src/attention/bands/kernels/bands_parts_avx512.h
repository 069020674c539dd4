// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 and the AMX products of bands have in common. For files compiled for AVX-512
// only.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/bands/kernels/bands_kernels.h"

namespace kvspan {
namespace {

inline __mmask16 first_of_16(std::int32_t n) noexcept {
  return static_cast<__mmask16>((1u << std::min(n, 16)) - 1u);
}

// Of four quads of a tile, of which `there` exist: to[k] the codes of tokens 4 k to 4 k + 3,
// [quads][4 components][4 tokens].
[[gnu::always_inline]] inline void by_tokens(const std::int8_t* codes, std::int32_t there,
                                             __m512i (&to)[4]) noexcept {
  const __m512i none = _mm512_setzero_si512();
  const __m512i a = _mm512_loadu_si512(codes);
  const __m512i b = there > 1 ? _mm512_loadu_si512(codes + 64) : none;
  const __m512i c = there > 2 ? _mm512_loadu_si512(codes + 128) : none;
  const __m512i d = there > 3 ? _mm512_loadu_si512(codes + 192) : none;
  const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), cd = _mm512_shuffle_i32x4(c, d, 0x44);
  const __m512i ba = _mm512_shuffle_i32x4(a, b, 0xee), dc = _mm512_shuffle_i32x4(c, d, 0xee);
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  to[0] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(ab, cd, 0x88), order);
  to[1] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(ab, cd, 0xdd), order);
  to[2] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(ba, dc, 0x88), order);
  to[3] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(ba, dc, 0xdd), order);
}

// Sixteen sums of row r, or the first 4 `there` of them, join what the row has at `place`.
[[gnu::always_inline]] inline void add_sums(const BandsWeights& weights, std::ptrdiff_t r,
                                            std::ptrdiff_t place, std::int32_t there,
                                            __m512i sums) noexcept {
  const __mmask16 places = first_of_16(4 * there);
  float* const to = weights.out[r] + place;
  __m512 before = _mm512_maskz_loadu_ps(places, to);
  if (weights.kept != nullptr) before = _mm512_mul_ps(before, _mm512_set1_ps(weights.kept[r]));
  const __m512 scale = _mm512_set1_ps(weights.scales[r]);
  _mm512_mask_storeu_ps(to, places, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, before));
}

}  // namespace
}  // namespace kvspan
