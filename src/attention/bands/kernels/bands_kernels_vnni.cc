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
#include "attention/bands/kernels/bands_parts_avx512.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr int kDotRows = 18;  // sums; beside them codes and their sum
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

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionVnni{
    .adds_bytes = true, .score = detail::score_tiles<score_tile>, .weigh = weigh, .project = project};

}  // namespace kvspan
