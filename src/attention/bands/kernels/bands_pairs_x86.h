// SPDX-License-Identifier: Apache-2.0
// Bytes times bytes by PMADDUBSW, which takes one side unsigned and gives sums of two products in 16 bits. Where codes
// are narrow, several such sums are added before they are widened: for scores codes are raised to be unsigned, which
// adds a multiple of the query's sum that is taken off again; where they are not, their signs are moved to the query.
// Weights have no sign. Over a vector type of bytes:
//     I, V            64 / kParts bytes, and the vector type of as many floats as there are tokens in them
//     kTogether       rows: x kParts sums of 32 and as many of 16 bits, codes, and what they are multiplied by
//     of_weights      sixteen weights, those of the kPart-th part's tokens four times each in their 16 bytes
//     sum_of_lanes    four numbers: those of all 16 bytes added
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr int kGroups = 4;  // of quads: those that are not narrow, and NarrowQuads

template <class B>
constexpr std::ptrdiff_t kBytes = sizeof(typename B::I);

template <class Number, std::size_t kSize>
using Lanes [[gnu::vector_size(kSize)]] = Number;

// Sums lane by lane, of lanes that hold such numbers.
template <class Number, class I>
[[gnu::always_inline]] inline I plus(I a, I b) noexcept {
  using Sum = Lanes<Number, sizeof(I)>;
  return reinterpret_cast<I>(reinterpret_cast<Sum>(a) + reinterpret_cast<Sum>(b));
}

template <class B>
[[gnu::always_inline]] inline typename B::V::F floats(typename B::I x) noexcept {
  using F = typename B::V::F;
  return __builtin_convertvector(reinterpret_cast<Lanes<std::int32_t, sizeof(F)>>(x), F);
}

template <class B>
[[gnu::always_inline]] inline typename B::I four_everywhere(const std::int8_t* from) noexcept {
  std::int32_t four;
  std::memcpy(&four, from, 4);
  return B::set(four);
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

template <class B, int R>
using Sums = typename B::I[R][B::kParts];  // of R rows and the tokens of a tile

// use.template operator()<row, part>() for all of Sums<B, R>.
template <class B, int R, class Use>
[[gnu::always_inline]] inline void each_sum(const Use& use) noexcept {
  unrolled<R * B::kParts>([&]<int k>() __attribute__((always_inline)) {
    use.template operator()<k / B::kParts, k % B::kParts>();
  });
}

// sum[r] += codes of quads [quads][16][4] . queries, by the codes' magnitudes.
template <class B, int R>
[[gnu::always_inline]] inline void add_wide(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                                            std::ptrdiff_t stride, Sums<B, R>& sum) noexcept {
#pragma GCC unroll 1
  for (std::int32_t q = 0; q < quads; ++q, codes += 64, queries += 4) {
    unrolled<B::kParts>([&]<int i>() __attribute__((always_inline)) {
      const auto c = B::load(codes + kBytes<B> * i), size = B::magnitude(c);
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        const auto query = B::with_sign(four_everywhere<B>(queries + r * stride), c);
        sum[r][i] = plus<std::uint32_t>(sum[r][i], B::widened(B::pairs(size, query)));
      });
    });
  }
}

// sum[r] += (codes + kRaise) . queries
template <class B, int R, int kGroup>
[[gnu::always_inline]] inline void add_raised(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                                              std::ptrdiff_t stride, Sums<B, R>& sum) noexcept {
  const auto add = [&](std::int32_t some) __attribute__((always_inline)) {
    Sums<B, R> pairs;
    each_sum<B, R>([&]<int r, int i>() __attribute__((always_inline)) { pairs[r][i] = B::set(0); });
#pragma GCC unroll 4
    for (std::int32_t q = 0; q < some; ++q, codes += 64, queries += 4) {
      typename B::I c[B::kParts];
      unrolled<B::kParts>([&]<int i>() __attribute__((always_inline)) {
        c[i] = plus<std::uint8_t>(B::load(codes + kBytes<B> * i), B::set(0x01010101 * kRaise<kGroup>));
      });
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        const auto query = four_everywhere<B>(queries + r * stride);
        unrolled<B::kParts>([&]<int i>() __attribute__((always_inline)) {
          pairs[r][i] = plus<std::uint16_t>(pairs[r][i], B::pairs(c[i], query));
        });
      });
    }
    each_sum<B, R>([&]<int r, int i>() __attribute__((always_inline)) {
      sum[r][i] = plus<std::uint32_t>(sum[r][i], B::widened(pairs[r][i]));
    });
  };
  std::int32_t q = 0;
  for (; q + kQuadsTogether<kGroup> <= quads; q += kQuadsTogether<kGroup>) add(kQuadsTogether<kGroup>);
  for (; q < quads; ++q) add(1);
}

// What raising adds to the sums of a row and range.
inline std::int32_t raised_by(const BandsCode::ScaleRange& range, const NarrowQuads& narrow,
                              const std::int8_t* query) noexcept {
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
template <class B, int R>
void score_rows(const std::int8_t* codes, std::span<const BandsCode::ScaleRange> ranges, const NarrowQuads& narrow,
                const BandsQueries& queries, std::ptrdiff_t first, const std::int32_t (*raised)[R],
                const BandsScores& all) noexcept {
  using V = typename B::V;
  const std::ptrdiff_t stride = queries.stride;
  const std::int8_t* rounded = queries.rounded + first * stride;
  const float* scales = queries.scales + first * kBandScales;
  typename B::V::F total[R][B::kParts];
  each_sum<B, R>([&]<int r, int i>() __attribute__((always_inline)) {
    total[r][i] = V::set(queries.offsets[first + r]);
  });
  for (const BandsCode::ScaleRange& range : ranges) {
    Sums<B, R> sum;
    each_sum<B, R>([&]<int r, int i>() __attribute__((always_inline)) { sum[r][i] = B::set(-(*raised)[r]); });
    by_groups(narrow, range.first_quad, range.first_quad + range.quads,
              [&]<int kGroup>(std::ptrdiff_t begin, std::ptrdiff_t end) __attribute__((always_inline)) {
                const std::int8_t* const from = codes + 64 * begin;
                const std::int8_t* const by = rounded + 4 * (begin - range.first_quad);
                const auto quads = static_cast<std::int32_t>(end - begin);
                if constexpr (kGroup == 0) {
                  add_wide<B, R>(from, quads, by, stride, sum);
                } else {
                  add_raised<B, R, kGroup>(from, quads, by, stride, sum);
                }
              });
    each_sum<B, R>([&]<int r, int i>() __attribute__((always_inline)) {
      total[r][i] = V::fma(floats<B>(sum[r][i]), V::set(scales[r * kBandScales]), total[r][i]);
    });
    rounded += query_bytes(range);
    ++scales;
    ++raised;
  }
  each_sum<B, R>([&]<int r, int i>() __attribute__((always_inline)) {
    const float* const mean = all.means + (first + r) * all.mean_stride + V::kWidth * i;
    V::store(all.scores + (first + r) * all.score_stride + V::kWidth * i,
             V::fma(V::load(all.gains + V::kWidth * i), total[r][i], V::load(mean)));
  });
}

template <class B>
void score_by_pairs(const std::int8_t* codes, std::int32_t tiles, std::span<const BandsCode::ScaleRange> ranges,
                    const NarrowQuads& narrow, const BandsQueries& queries, const BandsScores& to) noexcept {
  const std::ptrdiff_t tile_bytes = std::ptrdiff_t{64} * (ranges.back().first_quad + ranges.back().quads);
  detail::in_even_blocks<B::kTogether>(queries.rows, [&]<int R>(std::ptrdiff_t first) {
    std::int32_t raised[kBandScales][R];
    const std::int8_t* query = queries.rounded + first * queries.stride;
    for (std::size_t w = 0; w < ranges.size(); ++w) {
      for (std::ptrdiff_t r = 0; r < R; ++r) raised[w][r] = raised_by(ranges[w], narrow, query + r * queries.stride);
      query += query_bytes(ranges[w]);
    }
    for (std::int32_t i = 0; i < tiles; ++i) {
      score_rows<B, R>(codes + i * tile_bytes, ranges, narrow, queries, first, raised, to.from(16 * i));
    }
  });
}

template <class B>
void project_by_pairs(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads, const float* factors,
                      const std::int8_t* vectors, std::int32_t stride, std::int32_t rows, float* to,
                      std::int32_t to_stride) noexcept {
  using V = typename B::V;
  detail::in_even_blocks<B::kTogether>(rows, [&]<int R>(std::ptrdiff_t first) {
    for (std::ptrdiff_t i = 0; i < tiles; ++i) {
      Sums<B, R> sum;
      each_sum<B, R>([&]<int r, int part>() __attribute__((always_inline)) { sum[r][part] = B::set(0); });
      add_wide<B, R>(matrix + i * quads * 64, quads, vectors + first * stride, stride, sum);
      each_sum<B, R>([&]<int r, int part>() __attribute__((always_inline)) {
        const std::ptrdiff_t at = 16 * i + V::kWidth * part;
        V::store(to + (first + r) * to_stride + at, V::mul(V::load(factors + at), floats<B>(sum[r][part])));
      });
    }
  });
}

// Weights of R rows as codes meet them: those of four tokens in every place of 16 bytes.
template <class B, int R>
struct SpreadWeights {
  alignas(64) std::uint8_t bytes[kBandsStretchTiles][B::kParts][R][kBytes<B>];

  SpreadWeights(const BandsWeights& weights, std::int32_t tiles) noexcept {
    for (std::int32_t i = 0; i < tiles; ++i) {
      each_sum<B, R>([&]<int r, int part>() __attribute__((always_inline)) {
        const __m128i all =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights.rounded + r * kBandsStretchTokens + 16 * i));
        B::store(bytes[i][part][r], B::template of_weights<part>(all));
      });
    }
  }
};

// Sums of one quad over all tiles; 2^kGroup sums of pairs are added in 16 bits, each tile having kParts.
template <class B, int R, int kGroup>
[[gnu::always_inline]] inline void weigh_quad(const std::int8_t* codes, std::int32_t tiles, std::ptrdiff_t tile_stride,
                                              const SpreadWeights<B, R>& by, typename B::I (&sum)[R]) noexcept {
  unrolled<R>([&]<int r>() __attribute__((always_inline)) { sum[r] = B::set(0); });
  // Each 16 bytes: [4 tokens][4 components] to [4 components][4 tokens].
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const auto add = [&](std::int32_t i, std::int32_t some) __attribute__((always_inline)) {
    typename B::I pairs[R];
#pragma GCC unroll 8
    for (std::int32_t t = 0; t < some; ++t) {
      unrolled<B::kParts>([&]<int part>() __attribute__((always_inline)) {
        const auto c = B::shuffled(B::load(codes + (i + t) * tile_stride + kBytes<B> * part), order);
        unrolled<R>([&]<int r>() __attribute__((always_inline)) {
          const auto products = B::pairs(B::load(by.bytes[i + t][part][r]), c);
          if constexpr (kGroup == 0) {
            sum[r] = plus<std::uint32_t>(sum[r], B::widened(products));
          } else {
            pairs[r] = t + part == 0 ? products : plus<std::uint16_t>(pairs[r], products);
          }
        });
      });
    }
    if constexpr (kGroup > 0) {
      unrolled<R>([&]<int r>() __attribute__((always_inline)) { sum[r] = plus<std::uint32_t>(sum[r], B::widened(pairs[r])); });
    }
  };
  constexpr std::int32_t kTiles = std::max(1, (1 << kGroup) / B::kParts);
  std::int32_t i = 0;
  for (; i + kTiles <= tiles; i += kTiles) add(i, kTiles);
  for (; i < tiles; ++i) add(i, 1);
}

template <class B, int R>
void weigh_rows(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& narrow,
                const BandsWeights& weights) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  const SpreadWeights<B, R> by(weights, tiles);
  by_groups(narrow, 0, quads, [&]<int kGroup>(std::ptrdiff_t begin, std::ptrdiff_t end) __attribute__((always_inline)) {
#pragma GCC unroll 1
    for (std::ptrdiff_t q = begin; q < end; ++q) {
      typename B::I sum[R];
      weigh_quad<B, R, kGroup>(codes + 64 * q, tiles, tile_stride, by, sum);
      unrolled<R>([&]<int r>() __attribute__((always_inline)) {
        float* const to = weights.out[r] + 4 * q;
        __m128 before = _mm_loadu_ps(to);
        if (weights.kept != nullptr) before = _mm_mul_ps(before, _mm_set1_ps(weights.kept[r]));
        const __m128 added = _mm_cvtepi32_ps(B::sum_of_lanes(sum[r]));
        _mm_storeu_ps(to, _mm_fmadd_ps(added, _mm_set1_ps(weights.scales[r]), before));
      });
    }
  });
}

template <class B>
void weigh_by_pairs(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& narrow,
                    const BandsWeights& weights) noexcept {
  detail::in_even_blocks<B::kTogether>(weights.rows, [&]<int R>(std::int32_t r) {
    weigh_rows<B, R>(codes, tiles, quads, narrow, weights.from(r));
  });
}

}  // namespace
}  // namespace kvspan
