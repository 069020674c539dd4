// SPDX-License-Identifier: Apache-2.0
// Bytes times bytes by PMADDUBSW, which takes one side unsigned: of scores the codes' magnitudes,
// the codes' signs moved to the query; of weighted sums the weights, which have none. Pair sums
// stay within 2 * 128 * 127 < 2^15.
#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "attention/bands_kernels.h"
#include "attention/bands_kernels_body.h"

namespace kvspan {
namespace {

inline __m256i load(const std::int8_t* from) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

inline __m256i sum_of_four(__m256i pairs) noexcept {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

inline __m256i four_everywhere(const std::int8_t* from) noexcept {
  std::int32_t four;
  std::memcpy(&four, from, 4);
  return _mm256_set1_epi32(four);
}

template <int R>
void score_rows(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                std::int32_t stride, std::int32_t* sums) noexcept {
  __m256i sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  for (std::int32_t q = 0; q < quads; ++q, codes += 64) {
    const __m256i c0 = load(codes), c1 = load(codes + 32);
    const __m256i a0 = _mm256_abs_epi8(c0), a1 = _mm256_abs_epi8(c1);
    for (int r = 0; r < R; ++r) {
      const __m256i query =
          four_everywhere(queries + static_cast<std::ptrdiff_t>(r) * stride + 4 * q);
      sum[r][0] = _mm256_add_epi32(
          sum[r][0], sum_of_four(_mm256_maddubs_epi16(a0, _mm256_sign_epi8(query, c0))));
      sum[r][1] = _mm256_add_epi32(
          sum[r][1], sum_of_four(_mm256_maddubs_epi16(a1, _mm256_sign_epi8(query, c1))));
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 16 * r), sum[r][0]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 16 * r + 8), sum[r][1]);
  }
}

void score(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
           std::int32_t stride, std::int32_t rows, std::int32_t* sums) noexcept {
  std::int32_t r = 0;
  const auto at = [&](std::int32_t row) {
    return queries + static_cast<std::ptrdiff_t>(row) * stride;
  };
  for (; r + 4 <= rows; r += 4) score_rows<4>(codes, quads, at(r), stride, sums + 16 * r);
  for (; r < rows; ++r) score_rows<1>(codes, quads, at(r), stride, sums + 16 * r);
}

// Each half: [4 tokens][4 components] to [4 components][4 tokens].
inline __m256i transposed(__m256i x) noexcept {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order));
}

// Weights of tokens 0-3 in every place of the low half, of 4-7 in the high one.
inline __m256i weights_of(const std::int8_t* from) noexcept {
  return _mm256_set_m128i(_mm256_castsi256_si128(four_everywhere(from + 4)),
                          _mm256_castsi256_si128(four_everywhere(from)));
}

template <int R>
void weigh_rows(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const std::int8_t* weights, std::int32_t* sums) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  for (std::int32_t q = 0; q < quads; ++q) {
    __m256i sum[R];
    for (int r = 0; r < R; ++r) sum[r] = _mm256_setzero_si256();
    for (std::int32_t i = 0; i < tiles; ++i) {
      const std::int8_t* from = codes + i * tile_stride + static_cast<std::ptrdiff_t>(q) * 64;
      const __m256i c0 = transposed(load(from)), c1 = transposed(load(from + 32));
      for (int r = 0; r < R; ++r) {
        const std::int8_t* w = weights + static_cast<std::ptrdiff_t>(r) * 16 * tiles + 16 * i;
        sum[r] = _mm256_add_epi32(sum[r], sum_of_four(_mm256_maddubs_epi16(weights_of(w), c0)));
        sum[r] = _mm256_add_epi32(sum[r], sum_of_four(_mm256_maddubs_epi16(weights_of(w + 8), c1)));
      }
    }
    for (int r = 0; r < R; ++r) {
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(sums + (static_cast<std::ptrdiff_t>(r) * quads + q) * 4),
          _mm_add_epi32(_mm256_castsi256_si128(sum[r]), _mm256_extracti128_si256(sum[r], 1)));
    }
  }
}

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
           const std::int8_t* weights, std::int32_t rows, std::int32_t* sums) noexcept {
  std::int32_t r = 0;
  const auto at = [&](std::int32_t row) {
    return weights + static_cast<std::ptrdiff_t>(row) * 16 * tiles;
  };
  const auto to = [&](std::int32_t row) {
    return sums + static_cast<std::ptrdiff_t>(row) * 4 * quads;
  };
  for (; r + 6 <= rows; r += 6) weigh_rows<6>(codes, tiles, quads, at(r), to(r));
  for (; r + 3 <= rows; r += 3) weigh_rows<3>(codes, tiles, quads, at(r), to(r));
  for (; r < rows; ++r) weigh_rows<1>(codes, tiles, quads, at(r), to(r));
}

}  // namespace

// The others are plain loops, compiled for AVX2.
const BandsAttentionKernels detail::kBandsAttentionAvx2{score,
                                                        weigh,
                                                        detail::scale_plain,
                                                        detail::largest_plain,
                                                        detail::round_plain,
                                                        detail::project_plain};

}  // namespace kvspan
