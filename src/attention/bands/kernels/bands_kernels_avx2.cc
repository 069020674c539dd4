// SPDX-License-Identifier: Apache-2.0
// Bytes times bytes by PMADDUBSW, which takes one side unsigned: of scores the codes' magnitudes,
// the codes' signs moved to the query; of weighted sums the weights, which have none. Pair sums
// stay within 2 * 128 * 127 < 2^15.
#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"

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

// sum[r] = codes of quads [quads][16][4] . queries, 8 tokens in each register.
template <int R>
inline void dots(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                 std::ptrdiff_t stride, __m256i (&sum)[R][2]) noexcept {
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  for (std::int32_t q = 0; q < quads; ++q, codes += 64) {
    const __m256i c0 = load(codes), c1 = load(codes + 32);
    const __m256i a0 = _mm256_abs_epi8(c0), a1 = _mm256_abs_epi8(c1);
    for (int r = 0; r < R; ++r) {
      const __m256i query = four_everywhere(queries + r * stride + 4 * q);
      sum[r][0] = _mm256_add_epi32(
          sum[r][0], sum_of_four(_mm256_maddubs_epi16(a0, _mm256_sign_epi8(query, c0))));
      sum[r][1] = _mm256_add_epi32(
          sum[r][1], sum_of_four(_mm256_maddubs_epi16(a1, _mm256_sign_epi8(query, c1))));
    }
  }
}

template <int R>
void score_rows(const std::int8_t* codes, std::span<const BandsCode::ScaleRange> ranges,
                const BandsQueries& queries, std::int32_t first, const float* gains,
                const float* means, std::ptrdiff_t mean_stride, float* scores,
                std::ptrdiff_t score_stride) noexcept {
  const std::int8_t* rounded =
      queries.rounded + static_cast<std::ptrdiff_t>(first) * queries.stride;
  const float* scales = queries.scales + static_cast<std::ptrdiff_t>(first) * kBandScales;
  __m256 total[R][2];
  for (int r = 0; r < R; ++r) {
    total[r][0] = total[r][1] = _mm256_set1_ps(queries.offsets[first + r]);
  }
  for (std::size_t w = 0; w < ranges.size(); ++w) {
    __m256i sum[R][2];
    dots<R>(codes + static_cast<std::ptrdiff_t>(ranges[w].first_quad) * 64, ranges[w].quads, rounded,
            queries.stride, sum);
    rounded += query_bytes(ranges[w]);
    for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_set1_ps(scales[r * kBandScales + static_cast<int>(w)]);
      for (int i = 0; i < 2; ++i) {
        total[r][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][i]), scale, total[r][i]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < 2; ++i) {
      _mm256_storeu_ps(scores + r * score_stride + 8 * i,
                       _mm256_fmadd_ps(_mm256_loadu_ps(gains + 8 * i), total[r][i],
                                       _mm256_loadu_ps(means + r * mean_stride + 8 * i)));
    }
  }
}

void score_tile(const std::int8_t* codes, std::span<const BandsCode::ScaleRange> ranges,
                const BandsQueries& queries, const BandsScores& all) noexcept {
  detail::in_blocks<3, 1>(queries.rows, [&]<int R>(std::int32_t r) {
    score_rows<R>(codes, ranges, queries, r, all.gains,
                  all.means + static_cast<std::ptrdiff_t>(r) * all.mean_stride, all.mean_stride,
                  all.scores + static_cast<std::ptrdiff_t>(r) * all.score_stride, all.score_stride);
  });
}

void project(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads,
             const float* factors, const std::int8_t* vectors, std::int32_t stride,
             std::int32_t rows, float* to, std::int32_t to_stride) noexcept {
  std::int32_t first = 0;
  const auto some = [&]<int R>() {
    for (; first + R <= rows; first += R) {
      for (std::int32_t i = 0; i < tiles; ++i) {
        __m256i sum[R][2];
        dots<R>(matrix + static_cast<std::ptrdiff_t>(i) * quads * 64, quads,
                vectors + static_cast<std::ptrdiff_t>(first) * stride, stride, sum);
        for (int r = 0; r < R; ++r) {
          float* row = to + static_cast<std::ptrdiff_t>(first + r) * to_stride + 16 * i;
          for (int k = 0; k < 2; ++k) {
            const __m256 factor = _mm256_loadu_ps(factors + 16 * i + 8 * k);
            _mm256_storeu_ps(row + 8 * k, _mm256_mul_ps(factor, _mm256_cvtepi32_ps(sum[r][k])));
          }
        }
      }
    }
  };
  some.template operator()<3>();
  some.template operator()<1>();
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
                const BandsWeights& weights) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  for (std::int32_t q = 0; q < quads; ++q) {
    __m256i sum[R];
    for (int r = 0; r < R; ++r) sum[r] = _mm256_setzero_si256();
    for (std::int32_t i = 0; i < tiles; ++i) {
      const std::int8_t* from = codes + i * tile_stride + static_cast<std::ptrdiff_t>(q) * 64;
      const __m256i c0 = transposed(load(from)), c1 = transposed(load(from + 32));
      for (int r = 0; r < R; ++r) {
        const std::int8_t* w = weights.rounded + kBandsStretchTokens * r + 16 * i;
        sum[r] = _mm256_add_epi32(sum[r], sum_of_four(_mm256_maddubs_epi16(weights_of(w), c0)));
        sum[r] = _mm256_add_epi32(sum[r], sum_of_four(_mm256_maddubs_epi16(weights_of(w + 8), c1)));
      }
    }
    for (int r = 0; r < R; ++r) {
      const __m128 added = _mm_cvtepi32_ps(
          _mm_add_epi32(_mm256_castsi256_si128(sum[r]), _mm256_extracti128_si256(sum[r], 1)));
      float* const to = weights.out[r] + 4 * q;
      __m128 before = _mm_loadu_ps(to);
      if (weights.kept != nullptr) before = _mm_mul_ps(before, _mm_set1_ps(weights.kept[r]));
      _mm_storeu_ps(to, _mm_fmadd_ps(added, _mm_set1_ps(weights.scales[r]), before));
    }
  }
}

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
           const BandsWeights& weights) noexcept {
  detail::in_blocks<6, 5, 4, 3, 2, 1>(weights.rows, [&]<int R>(std::int32_t r) {
    weigh_rows<R>(codes, tiles, quads, weights.from(r));
  });
}

}  // namespace

// The others are plain loops, compiled for AVX2.
const BandsAttentionKernels detail::kBandsAttentionAvx2{
    .score = detail::score_tiles<score_tile>,
    .fold = detail::fold_plain,
    .means = detail::means_plain,
    .weigh = weigh,
    .project = project,
    .round_weights = detail::round_weights_plain,
    .round = detail::round_plain};

}  // namespace kvspan
