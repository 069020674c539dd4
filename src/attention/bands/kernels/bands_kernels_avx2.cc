// SPDX-License-Identifier: Apache-2.0
// Bytes times bytes by PMADDUBSW, which takes one side unsigned and gives sums of two products in 16 bits. Where codes
// are narrow, several such sums are added before they are widened: for scores codes are raised to be unsigned, which
// adds a multiple of the query's sum that is taken off again; where they are not, their signs are moved to the query.
// Weights have no sign.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"
#include "attention/bands/kernels/bands_means_x86.h"
#include "attention/kernels/x86/vector_avx2.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

using V = detail::Avx2;

constexpr int kMeanRows = 3;  // x 4 sums
constexpr int kTogether = 5;  // rows: x 2 sums of 16 bits, codes, and what they are multiplied by
constexpr int kGroups = 4;    // of quads: those that are not narrow, and NarrowQuads

[[gnu::always_inline]] inline __m256i load(const void* from) noexcept {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

[[gnu::always_inline]] inline __m256i widened(__m256i pairs) noexcept {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

[[gnu::always_inline]] inline __m256i four_everywhere(const std::int8_t* from) noexcept {
  std::int32_t four;
  std::memcpy(&four, from, 4);
  return _mm256_set1_epi32(four);
}

// use.template operator()<group>(begin, end) for the quads of [first, last) that each group has.
template <class Use>
[[gnu::always_inline]] inline void by_groups(const NarrowQuads& narrow, std::int32_t first, std::int32_t last,
                                             const Use& use) noexcept {
  std::int32_t begin = first;
  unrolled<kGroups>([&]<int group>() __attribute__((always_inline)) {
    std::int32_t end = last;
    if constexpr (group + 1 < kGroups) end = std::clamp(narrow.first[group], begin, last);
    if (end > begin) use.template operator()<group>(begin, end);
    begin = end;
  });
}

// What is added to codes of a narrow group, which then fit as many sums of pairs of quads as it has places.
template <int kGroup>
constexpr int kRaise = NarrowQuads::kMost[kGroup - 1];
template <int kGroup>
constexpr int kQuadsTogether = 1 << (kGroup - 1);

template <int R>
using Sums = __m256i[R][2];  // of R rows, 8 tokens in each register

// sum[r] += codes of quads [quads][16][4] . queries, by the codes' magnitudes.
template <int R>
[[gnu::always_inline]] inline void add_wide(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                                            std::ptrdiff_t stride, Sums<R>& sum) noexcept {
#pragma GCC unroll 1
  for (std::int32_t q = 0; q < quads; ++q, codes += 64, queries += 4) {
    unrolled<2>([&]<int i>() __attribute__((always_inline)) {
      const __m256i c = load(codes + 32 * i), size = _mm256_abs_epi8(c);
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        const __m256i query = _mm256_sign_epi8(four_everywhere(queries + r * stride), c);
        sum[r][i] = _mm256_add_epi32(sum[r][i], widened(_mm256_maddubs_epi16(size, query)));
      });
    });
  }
}

// sum[r] += (codes + kRaise) . queries
template <int R, int kGroup>
[[gnu::always_inline]] inline void add_raised(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                                              std::ptrdiff_t stride, Sums<R>& sum) noexcept {
  const __m256i raise = _mm256_set1_epi8(kRaise<kGroup>);
  const auto add = [&](std::int32_t some) __attribute__((always_inline)) {
    Sums<R> pairs;
    unrolled<2 * R>([&]<int k>() __attribute__((always_inline)) { pairs[k / 2][k % 2] = _mm256_setzero_si256(); });
#pragma GCC unroll 4
    for (std::int32_t q = 0; q < some; ++q, codes += 64, queries += 4) {
      const __m256i c[2] = {_mm256_add_epi8(load(codes), raise), _mm256_add_epi8(load(codes + 32), raise)};
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        const __m256i query = four_everywhere(queries + r * stride);
        unrolled<2>([&]<int i>() __attribute__((always_inline)) {
          pairs[r][i] = _mm256_add_epi16(pairs[r][i], _mm256_maddubs_epi16(c[i], query));
        });
      });
    }
    unrolled<2 * R>([&]<int k>() __attribute__((always_inline)) {
      sum[k / 2][k % 2] = _mm256_add_epi32(sum[k / 2][k % 2], widened(pairs[k / 2][k % 2]));
    });
  };
  std::int32_t q = 0;
  for (; q + kQuadsTogether<kGroup> <= quads; q += kQuadsTogether<kGroup>) add(kQuadsTogether<kGroup>);
  for (; q < quads; ++q) add(1);
}

// What raising adds to the sums of a row and range.
std::int32_t raised_by(const BandsCode::ScaleRange& range, const NarrowQuads& narrow, const std::int8_t* query) noexcept {
  __m128i sum = _mm_setzero_si128();
  by_groups(narrow, range.first_quad, range.first_quad + range.quads,
            [&]<int kGroup>(std::int32_t begin, std::int32_t end) __attribute__((always_inline)) {
              if constexpr (kGroup > 0) {
                for (std::int32_t q = begin - range.first_quad; q < end - range.first_quad; ++q) {
                  std::int32_t four;
                  std::memcpy(&four, query + 4 * q, 4);
                  const __m128i places = _mm_cvtepi8_epi32(_mm_cvtsi32_si128(four));
                  sum = _mm_add_epi32(sum, _mm_slli_epi32(places, std::countr_zero(unsigned{kRaise<kGroup>})));
                }
              }
            });
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

// Scores of R rows and a tile. raised: of each range, of each row.
template <int R>
void score_rows(const std::int8_t* codes, std::span<const BandsCode::ScaleRange> ranges, const NarrowQuads& narrow,
                const BandsQueries& queries, std::ptrdiff_t first, const std::int32_t (*raised)[R],
                const BandsScores& all) noexcept {
  const std::ptrdiff_t stride = queries.stride;
  const std::int8_t* rounded = queries.rounded + first * stride;
  const float* scales = queries.scales + first * kBandScales;
  __m256 total[R][2];
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    total[r][0] = total[r][1] = _mm256_set1_ps(queries.offsets[first + r]);
  });
  for (const BandsCode::ScaleRange& range : ranges) {
    Sums<R> sum;
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      sum[r][0] = sum[r][1] = _mm256_set1_epi32(-(*raised)[r]);
    });
    by_groups(narrow, range.first_quad, range.first_quad + range.quads,
              [&]<int kGroup>(std::ptrdiff_t begin, std::ptrdiff_t end) __attribute__((always_inline)) {
                const std::int8_t* const from = codes + 64 * begin;
                const std::int8_t* const by = rounded + 4 * (begin - range.first_quad);
                const auto quads = static_cast<std::int32_t>(end - begin);
                if constexpr (kGroup == 0) {
                  add_wide<R>(from, quads, by, stride, sum);
                } else {
                  add_raised<R, kGroup>(from, quads, by, stride, sum);
                }
              });
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const __m256 scale = _mm256_set1_ps(scales[r * kBandScales]);
      unrolled<2>([&]<int i>() __attribute__((always_inline)) {
        total[r][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][i]), scale, total[r][i]);
      });
    });
    rounded += query_bytes(range);
    ++scales;
    ++raised;
  }
  unrolled<2 * R>([&]<int k>() __attribute__((always_inline)) {
    constexpr int r = k / 2, i = k % 2;
    const float* const mean = all.means + (first + r) * all.mean_stride + 8 * i;
    _mm256_storeu_ps(all.scores + (first + r) * all.score_stride + 8 * i,
                     _mm256_fmadd_ps(_mm256_loadu_ps(all.gains + 8 * i), total[r][i], _mm256_loadu_ps(mean)));
  });
}

void score(const std::int8_t* codes, std::int32_t tiles, std::span<const BandsCode::ScaleRange> ranges,
           const NarrowQuads& narrow, const BandsQueries& queries, const BandsScores& to) noexcept {
  const std::ptrdiff_t tile_bytes = std::ptrdiff_t{64} * (ranges.back().first_quad + ranges.back().quads);
  detail::in_even_blocks<kTogether>(queries.rows, [&]<int R>(std::ptrdiff_t first) {
    std::int32_t raised[kBandScales][R];
    const std::int8_t* query = queries.rounded + first * queries.stride;
    for (std::size_t w = 0; w < ranges.size(); ++w) {
      for (std::ptrdiff_t r = 0; r < R; ++r) raised[w][r] = raised_by(ranges[w], narrow, query + r * queries.stride);
      query += query_bytes(ranges[w]);
    }
    for (std::int32_t i = 0; i < tiles; ++i) {
      score_rows<R>(codes + i * tile_bytes, ranges, narrow, queries, first, raised, to.from(16 * i));
    }
  });
}

void project(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads, const float* factors,
             const std::int8_t* vectors, std::int32_t stride, std::int32_t rows, float* to,
             std::int32_t to_stride) noexcept {
  detail::in_even_blocks<kTogether>(rows, [&]<int R>(std::ptrdiff_t first) {
    for (std::ptrdiff_t i = 0; i < tiles; ++i) {
      Sums<R> sum;
      unrolled<R>([&]<int r>() __attribute__((always_inline)) { sum[r][0] = sum[r][1] = _mm256_setzero_si256(); });
      add_wide<R>(matrix + i * quads * 64, quads, vectors + first * stride, stride, sum);
      unrolled<2 * R>([&]<int k>() __attribute__((always_inline)) {
        const std::ptrdiff_t at = 16 * i + 8 * (k % 2);
        _mm256_storeu_ps(to + (first + k / 2) * to_stride + at,
                         _mm256_mul_ps(_mm256_loadu_ps(factors + at), _mm256_cvtepi32_ps(sum[k / 2][k % 2])));
      });
    }
  });
}

// Each half: [4 tokens][4 components] to [4 components][4 tokens].
[[gnu::always_inline]] inline __m256i transposed(__m256i x) noexcept {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order));
}

// Weights of R rows as codes meet them: those of four tokens in every place of a half of a register.
template <int R>
struct SpreadWeights {
  alignas(32) std::uint8_t bytes[kBandsStretchTiles][2][R][32];

  SpreadWeights(const BandsWeights& weights, std::int32_t tiles) noexcept {
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const __m256i second = _mm256_add_epi32(first, _mm256_set1_epi32(2));
    for (std::int32_t i = 0; i < tiles; ++i) {
      for (std::int32_t r = 0; r < R; ++r) {
        const __m256i all = _mm256_castsi128_si256(_mm_loadu_si128(
            reinterpret_cast<const __m128i*>(weights.rounded + r * kBandsStretchTokens + 16 * i)));
        _mm256_store_si256(reinterpret_cast<__m256i*>(bytes[i][0][r]), _mm256_permutevar8x32_epi32(all, first));
        _mm256_store_si256(reinterpret_cast<__m256i*>(bytes[i][1][r]), _mm256_permutevar8x32_epi32(all, second));
      }
    }
  }
  __m256i at(std::int32_t tile, int half, int row) const noexcept {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes[tile][half][row]));
  }
};

// Sums of one quad over all tiles; 2^kGroup sums of pairs are added in 16 bits, each tile having two.
template <int R, int kGroup>
[[gnu::always_inline]] inline void weigh_quad(const std::int8_t* codes, std::int32_t tiles, std::ptrdiff_t tile_stride,
                                              const SpreadWeights<R>& by, __m256i (&sum)[R]) noexcept {
  unrolled<R>([&]<int r>() __attribute__((always_inline)) { sum[r] = _mm256_setzero_si256(); });
  const auto add = [&](std::int32_t i, std::int32_t some) __attribute__((always_inline)) {
    __m256i pairs[R];
#pragma GCC unroll 4
    for (std::int32_t t = 0; t < some; ++t) {
      unrolled<2>([&]<int half>() __attribute__((always_inline)) {
        const __m256i c = transposed(load(codes + (i + t) * tile_stride + 32 * half));
        unrolled<R>([&]<int r>() __attribute__((always_inline)) {
          const __m256i products = _mm256_maddubs_epi16(by.at(i + t, half, r), c);
          if constexpr (kGroup == 0) {
            sum[r] = _mm256_add_epi32(sum[r], widened(products));
          } else {
            pairs[r] = t + half == 0 ? products : _mm256_add_epi16(pairs[r], products);
          }
        });
      });
    }
    if constexpr (kGroup > 0) {
      unrolled<R>([&]<int r>() __attribute__((always_inline)) { sum[r] = _mm256_add_epi32(sum[r], widened(pairs[r])); });
    }
  };
  constexpr std::int32_t kTiles = kGroup == 0 ? 1 : 1 << (kGroup - 1);
  std::int32_t i = 0;
  for (; i + kTiles <= tiles; i += kTiles) add(i, kTiles);
  for (; i < tiles; ++i) add(i, 1);
}

template <int R>
void weigh_rows(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& narrow,
                const BandsWeights& weights) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  const SpreadWeights<R> by(weights, tiles);
  by_groups(narrow, 0, quads, [&]<int kGroup>(std::ptrdiff_t begin, std::ptrdiff_t end) __attribute__((always_inline)) {
#pragma GCC unroll 1
    for (std::ptrdiff_t q = begin; q < end; ++q) {
      __m256i sum[R];
      weigh_quad<R, kGroup>(codes + 64 * q, tiles, tile_stride, by, sum);
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        const __m128 added = _mm_cvtepi32_ps(
            _mm_add_epi32(_mm256_castsi256_si128(sum[r]), _mm256_extracti128_si256(sum[r], 1)));
        float* const to = weights.out[r] + 4 * q;
        __m128 before = _mm_loadu_ps(to);
        if (weights.kept != nullptr) before = _mm_mul_ps(before, _mm_set1_ps(weights.kept[r]));
        _mm_storeu_ps(to, _mm_fmadd_ps(added, _mm_set1_ps(weights.scales[r]), before));
      });
    }
  });
}

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& narrow,
           const BandsWeights& weights) noexcept {
  detail::in_even_blocks<kTogether>(weights.rows, [&]<int R>(std::int32_t r) {
    weigh_rows<R>(codes, tiles, quads, narrow, weights.from(r));
  });
}

// Positions lie in eights.
void means(const AnchoredMeans& means, const float* sums, std::int32_t rows, float* to, std::int32_t stride) noexcept {
  detail::in_even_blocks<kMeanRows>(rows, [&]<int R>(std::ptrdiff_t r) {
    std::ptrdiff_t k = 0;
    mean_run<V, R, 2>(means, sums + r * means.sums(), k, to + r * stride, stride);
    mean_run<V, R, 1>(means, sums + r * means.sums(), k, to + r * stride, stride);
  });
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

float round(const float* x, std::int32_t count, std::int8_t* to, float* sum) noexcept {
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
  *sum += V::hadd(_mm256_add_ps(total[0], total[1]));
  const float largest = V::hmax(_mm256_max_ps(most[0], most[1]));
  to_nearest(x, count, detail::to_bytes(largest), to);
  return largest;
}

float round_weights(float* x, const float* factors, std::int32_t count, std::int8_t* to, float* sum) noexcept {
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
  *sum += V::hadd(_mm256_add_ps(total[0], total[1]));
  const float largest = V::hmax(_mm256_max_ps(most[0], most[1]));
  to_nearest(x, count, detail::to_bytes(largest), to);
  return largest;
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionAvx2{.score = score,
                                                        .fold = detail::fold_plain,
                                                        .means = means,
                                                        .weigh = weigh,
                                                        .project = project,
                                                        .round_weights = round_weights,
                                                        .round = round};

}  // namespace kvspan
