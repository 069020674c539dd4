// SPDX-License-Identifier: Apache-2.0
// Bytes times bytes by VPDPBUSD, 64 products an instruction, which takes one side unsigned: of
// scores and projections the queries raised by 128, for which 128 times the codes' sums are taken
// off again, one more product for all rows; of weighted sums the weights, which have no sign. A
// register is a quad of a tile, so that lanes are tokens. An instruction takes five cycles and two
// start in each, so ten sums or more are under way at once; more rows share what is loaded.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"
#include "attention/bands/kernels/bands_means_x86.h"
#include "attention/bands/kernels/bands_parts_avx512.h"
#include "attention/kernels/softmax_simd.h"
#include "attention/kernels/x86/vector_avx2.h"
#include "attention/kernels/x86/vector_avx512.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr int kDotRows = 18;  // sums; beside them codes and their sum
constexpr int kMeanRows = 5;  // x 4 sums
constexpr int kTogether = 3;  // tiles of a matrix, for few rows
constexpr int kFewRows = 5;   // x 3 sums
constexpr int kChunk = 64;    // quads of queries that are raised at once

[[gnu::always_inline]] inline __m512i four_everywhere(const void* from) noexcept {
  std::int32_t four;
  std::memcpy(&four, from, 4);
  return _mm512_set1_epi32(four);
}

// sum += u . s, of four bytes each, in the register that sum is in: left to itself the compiler
// copies sums to and fro, and keeps some of them in memory.
[[gnu::always_inline]] inline void add_dots(__m512i& sum, __m512i u, __m512i s) noexcept {
  __m512i x = sum;
  asm("vpdpbusd %2, %1, %0" : "+v"(x) : "v"(u), "v"(s));
  sum = x;
}

template <int R, int T>
[[gnu::always_inline]] inline void clear(__m512i (&sum)[R][T]) noexcept {
  unrolled<R * T>([&]<int k>() __attribute__((always_inline)) {
    sum[k / T][k % T] = _mm512_setzero_si512();
  });
}

// to[r] = queries + 128
template <int R>
inline void raise(const std::int8_t* queries, std::ptrdiff_t stride, std::int32_t quads,
                  std::uint8_t (&to)[R][4 * kChunk]) noexcept {
  const __m512i sign = _mm512_set1_epi8(-128);
#pragma GCC unroll 1
  for (std::int32_t q = 0; q < quads; q += 16) {
    const __mmask16 there = first_of_16(quads - q);
    for (int r = 0; r < R; ++r) {
      const __m512i x = _mm512_maskz_loadu_epi32(there, queries + r * stride + 4 * q);
      _mm512_store_si512(to[r] + 4 * q, _mm512_xor_si512(x, sign));
    }
  }
}

// sum[r][i] = codes of quads [quads][16][4] . queries, the codes of T tiles `tile_stride` apart.
template <int R, int T>
[[gnu::always_inline]] inline void dots(const std::int8_t* codes, std::ptrdiff_t tile_stride,
                                        std::int32_t quads, const std::int8_t* queries,
                                        std::ptrdiff_t stride, __m512i (&sum)[R][T]) noexcept {
  alignas(64) std::uint8_t raised[R][4 * kChunk];
  __m512i added[1][T];
  clear(added);
  clear(sum);
  for (std::int32_t first = 0; first < quads; first += kChunk) {
    const std::int32_t n = std::min(kChunk, quads - first);
    raise<R>(queries + 4 * first, stride, n, raised);
    for (std::int32_t q = 0; q < n; ++q, codes += 64) {
      __m512i c[T];
      unrolled<T>([&]<int i>() __attribute__((always_inline)) {
        c[i] = _mm512_loadu_si512(codes + i * tile_stride);
        add_dots(added[0][i], _mm512_set1_epi8(-128), c[i]);
      });
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        const __m512i query = four_everywhere(raised[r] + 4 * q);
        unrolled<T>([&]<int i>()
                        __attribute__((always_inline)) { add_dots(sum[r][i], query, c[i]); });
      });
    }
  }
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    unrolled<T>([&]<int i>() __attribute__((always_inline)) {
      sum[r][i] = _mm512_sub_epi32(sum[r][i], added[0][i]);
    });
  });
}

void score_tile(const std::int8_t* codes, std::span<const BandsCode::ScaleRange> ranges,
                const BandsQueries& queries, const BandsScores& all) noexcept {
  detail::in_even_blocks<kDotRows>(
      queries.rows, [&]<int R>(std::ptrdiff_t first) __attribute__((noinline)) {
        // Copies: bytes that are written could be what is captured.
        const std::int8_t* const tile = codes;
        const std::ptrdiff_t stride = queries.stride, from_stride = all.mean_stride,
                             to_stride = all.score_stride;
        const std::int8_t* rounded = queries.rounded + first * stride;
        const float* scales = queries.scales + first * kBandScales;
        const float* const offsets = queries.offsets + first;
        __m512 total[R];
        unrolled<R>([&]<int r>()
                        __attribute__((always_inline)) { total[r] = _mm512_set1_ps(offsets[r]); });
        for (const BandsCode::ScaleRange& range : ranges) {
          __m512i sum[R][1];
          dots<R, 1>(tile + std::ptrdiff_t{64} * range.first_quad, 0, range.quads, rounded, stride,
                     sum);
          rounded += query_bytes(range);
          unrolled<R>([&]<int r>() __attribute__((always_inline)) {
            const __m512 scale = _mm512_set1_ps(scales[r * kBandScales]);
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][0]), scale, total[r]);
          });
          ++scales;
        }
        const __m512 gain = _mm512_loadu_ps(all.gains);
        const float* const from = all.means + first * from_stride;
        float* const to = all.scores + first * to_stride;
        unrolled<R>([&]<int r>() __attribute__((always_inline)) {
          const __m512 mean = _mm512_loadu_ps(from + r * from_stride);
          _mm512_storeu_ps(to + r * to_stride, _mm512_fmadd_ps(gain, total[r], mean));
        });
      });
}

template <int R, int T>
void project_tiles(const std::int8_t* matrix, std::int32_t quads, const float* factors,
                   const std::int8_t* vectors, std::ptrdiff_t stride, float* to,
                   std::ptrdiff_t to_stride) noexcept {
  __m512i sum[R][T];
  dots<R, T>(matrix, static_cast<std::ptrdiff_t>(quads) * 64, quads, vectors, stride, sum);
  unrolled<T>([&]<int i>() __attribute__((always_inline)) {
    const __m512 factor = _mm512_loadu_ps(factors + 16 * i);
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      _mm512_storeu_ps(to + r * to_stride + 16 * i,
                       _mm512_mul_ps(factor, _mm512_cvtepi32_ps(sum[r][i])));
    });
  });
}

void project(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads,
             const float* factors, const std::int8_t* vectors, std::int32_t stride,
             std::int32_t rows, float* to, std::int32_t to_stride) noexcept {
  detail::in_even_blocks<kFewRows>(rows, [&]<int R>(std::int32_t r) {
    std::int32_t i = 0;
    const auto some = [&]<int T>() {
      for (; i + T <= tiles; i += T) {
        project_tiles<R, T>(matrix + static_cast<std::ptrdiff_t>(i) * quads * 64, quads,
                            factors + 16 * i, vectors + static_cast<std::ptrdiff_t>(r) * stride,
                            stride, to + static_cast<std::ptrdiff_t>(r) * to_stride + 16 * i,
                            to_stride);
      }
    };
    some.template operator()<kTogether>();
    some.template operator()<1>();
  });
}

// Four quads or what is left of them: 16 sums of a row in a register.
template <int R>
[[gnu::always_inline]] inline void weigh_four(const std::int8_t* codes, std::int32_t there,
                                              std::int32_t tiles, std::ptrdiff_t tile_stride,
                                              const BandsWeights& weights,
                                              std::ptrdiff_t place) noexcept {
  const std::int8_t* by = weights.rounded;
  __m512i sum[R][1];
  clear(sum);
  for (std::int32_t i = 0; i < tiles; ++i, codes += tile_stride, by += 16) {
    __m512i c[4];
    by_tokens(codes, there, c);
    unrolled<4>([&]<int k>() __attribute__((always_inline)) {
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        add_dots(sum[r][0], four_everywhere(by + kBandsStretchTokens * r + 4 * k), c[k]);
      });
    });
  }
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    add_sums(weights, r, place, there, sum[r][0]);
  });
}

template <int R>
void weigh_rows(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const BandsWeights& weights) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  for (std::int32_t q = 0; q < quads; q += 4, codes += 256) {
    weigh_four<R>(codes, std::min(4, quads - q), tiles, tile_stride, weights, 4 * q);
  }
}

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& /*narrow*/,
           const BandsWeights& weights) noexcept {
  detail::in_even_blocks<kDotRows>(weights.rows, [&]<int R>(std::int32_t r) {
    weigh_rows<R>(codes, tiles, quads, weights.from(r));
  });
}

// Sixteen pairs at a time, or those that are left; then slow ones two at a time, a lane for each of
// the four polynomials of the two cosines and sines.
void fold(const AnchoredMeans& means, std::int32_t head, const float* u, float* to) noexcept {
  const std::int32_t rotated = means.rotated(), pairs = means.pairs(), alone = means.alone();
  const float* const mean = means.mean(head);
  const __m512i firsts =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i seconds = _mm512_add_epi32(firsts, _mm512_set1_epi32(1));
  for (std::int32_t j = 0; j < rotated; j += 16) {
    const __mmask16 there = first_of_16(rotated - j);
    const auto load = [&](const float* from, __m512& x, __m512& y) {
      if (!means.neighbours()) {
        x = _mm512_maskz_loadu_ps(there, from + j);
        y = _mm512_maskz_loadu_ps(there, from + rotated + j);
        return;
      }
      const std::int32_t left = 2 * (rotated - j);
      const __m512 low = _mm512_maskz_loadu_ps(first_of_16(left), from + 2 * j);
      const __m512 high = left > 16
                              ? _mm512_maskz_loadu_ps(first_of_16(left - 16), from + 2 * j + 16)
                              : _mm512_setzero_ps();
      x = _mm512_permutex2var_ps(low, firsts, high);
      y = _mm512_permutex2var_ps(low, seconds, high);
    };
    __m512 x, y, p, q;
    load(u, x, y);
    load(mean, p, q);
    _mm512_mask_storeu_ps(to + j, there, _mm512_fmadd_ps(x, p, _mm512_mul_ps(y, q)));
    _mm512_mask_storeu_ps(to + pairs + j, there, _mm512_fmsub_ps(y, p, _mm512_mul_ps(x, q)));
  }
  if (alone < rotated) {
    // Of each two pairs: A four times, B four times, and again of the second.
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 3);
    const float* by = means.slow();
    __m512 sums = _mm512_setzero_ps();
    for (std::int32_t j = alone; j < rotated; j += 2, by += 16) {
      const __m128 two =
          _mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(to + j))),
                       reinterpret_cast<const __m64*>(to + pairs + j));
      const __m512 each = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(two));
      sums = _mm512_fmadd_ps(each, _mm512_loadu_ps(by), sums);
    }
    const __m256 both =
        _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    _mm_storeu_ps(to + alone, _mm256_castps256_ps128(both));
    _mm_storeu_ps(to + pairs + alone, _mm256_extractf128_ps(both, 1));
  }
  const std::int32_t used = means.used_terms();
  std::fill(to + used, to + means.terms(), 0.0f);
  std::fill(to + pairs + used, to + pairs + means.terms(), 0.0f);
  float constant = 0.0f;
  for (std::int32_t i = 2 * rotated; i < means.dim(); ++i) constant += u[i] * mean[i];
  _mm_storeu_ps(to + 2 * static_cast<std::ptrdiff_t>(pairs), _mm_set1_ps(constant));
}

// Positions lie in eights.
void means(const AnchoredMeans& means, const float* sums, std::int32_t rows, float* to,
           std::int32_t stride) noexcept {
  detail::in_even_blocks<kMeanRows>(rows, [&]<int R>(std::ptrdiff_t r) {
    std::ptrdiff_t k = 0;
    mean_run<detail::Avx512, R, 2>(means, sums + r * means.sums(), k, to + r * stride, stride);
    mean_run<detail::Avx512, R, 1>(means, sums + r * means.sums(), k, to + r * stride, stride);
    mean_run<detail::Avx2, R, 1>(means, sums + r * means.sums(), k, to + r * stride, stride);
  });
}

inline __m128i rounded(__m512 x, __m512 factor) noexcept {
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor)));
}

float round_weights(float* x, const float* factors, std::int32_t count, std::int8_t* to,
                    float* sum) noexcept {
  __m512 most = _mm512_setzero_ps(), total = _mm512_setzero_ps();
  for (std::int32_t i = 0; i < count; i += 16) {
    const __m512 product = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(factors + i));
    _mm512_storeu_ps(x + i, product);
    total = _mm512_add_ps(total, product);
    most = _mm512_max_ps(product, most);
  }
  *sum += _mm512_reduce_add_ps(total);
  const float largest = _mm512_reduce_max_ps(most);
  const __m512 factor = _mm512_set1_ps(detail::to_bytes(largest));
  for (std::int32_t i = 0; i < count; i += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), rounded(_mm512_loadu_ps(x + i), factor));
  }
  return largest;
}

// A stretch's scores stay in registers from the first look to the rounding.
BandsRow soften(const float* scores, const float* gains, std::int32_t count, float light,
                float* max, std::int8_t* to) noexcept {
  constexpr int kVectors = kBandsStretchTiles;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const std::int32_t n = count / 16;
  __m512 w[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    w[i] = i < n ? _mm512_loadu_ps(scores + 16 * i) : _mm512_set1_ps(kNothing);
  }
  // Over all of x, four at a time.
  const auto over = [](const __m512(&x)[kVectors], auto two) __attribute__((always_inline)) {
    __m512 four[4] = {x[0], x[1], x[2], x[3]};
    for (int i = 4; i < kVectors; ++i) four[i % 4] = two(four[i % 4], x[i]);
    return two(two(four[0], four[1]), two(four[2], four[3]));
  };
  const auto larger = [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); };
  const auto plus = [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); };
  const float before = *max;
  *max = std::max(before, _mm512_reduce_max_ps(over(w, larger)));
  const __m512 base = _mm512_set1_ps(*max == kNothing ? 0.0f : *max);
  for (int i = 0; i < kVectors; ++i) {
    w[i] = detail::weight_simd<detail::Avx512>(_mm512_sub_ps(w[i], base));
  }
  BandsRow row;
  row.sum = _mm512_reduce_add_ps(over(w, plus));
  row.light = *max == before && row.sum < light;
  if (row.light) return row;
  for (int i = 0; i < kVectors; ++i) {
    if (i < n) w[i] = _mm512_mul_ps(w[i], _mm512_loadu_ps(gains + 16 * i));
  }
  row.weighed = _mm512_reduce_add_ps(over(w, plus));
  row.largest = _mm512_reduce_max_ps(over(w, larger));
  const __m512 factor = _mm512_set1_ps(detail::to_bytes(row.largest));
  for (int i = 0; i < kVectors; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), rounded(w[i], factor));
  }
  return row;
}

float round(const float* x, std::int32_t count, std::int8_t* to, float* sum) noexcept {
  // Three of each: one alone would wait for itself.
  __m512 most[3] = {}, total[3] = {};
  const auto take = [&](int k, __m512 some) {
    total[k] = _mm512_add_ps(total[k], some);
    most[k] = _mm512_max_ps(_mm512_abs_ps(some), most[k]);
  };
  std::int32_t first = 0;
  for (; first + 48 <= count; first += 48) {
    unrolled<3>([&]<int k>() __attribute__((always_inline)) {
      take(k, _mm512_loadu_ps(x + first + 16 * k));
    });
  }
  for (; first < count; first += 16) {
    take(0, _mm512_maskz_loadu_ps(first_of_16(count - first), x + first));
  }
  *sum += _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(total[0], total[1]), total[2]));
  const float largest =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(most[0], most[1]), most[2]));
  const __m512 factor = _mm512_set1_ps(detail::to_bytes(largest));
  std::int32_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const auto some = [&](int k) {
      return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16 * k), factor));
    };
    // Halves of what is packed come from the two sides in turn, lane by lane.
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(some(0), some(1)),
                                             _mm512_packs_epi32(some(2), some(3)));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to + i, _mm512_permutexvar_epi32(order, bytes));
  }
  for (; i < count; i += 16) {
    const __mmask16 there = first_of_16(count - i);
    _mm_mask_storeu_epi8(to + i, there, rounded(_mm512_maskz_loadu_ps(there, x + i), factor));
  }
  return largest;
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionAvx512{.run_tiles = kBandsStretchTiles,
                                                          .score = detail::score_tiles<score_tile>,
                                                          .fold = fold,
                                                          .means = means,
                                                          .weigh = weigh,
                                                          .project = project,
                                                          .round_weights = round_weights,
                                                          .round = round,
                                                          .soften = soften};

}  // namespace kvspan
