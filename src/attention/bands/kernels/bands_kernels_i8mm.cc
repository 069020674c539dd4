// SPDX-License-Identifier: Apache-2.0
// SMMLA: two rows of 8 bytes meet two others, four sums at once, twice what SDOT does. Rows of queries or of weights
// go in pairs; codes are brought to 8 components of two tokens for scores, 8 tokens of two components for sums.
#include <arm_neon.h>

#include <algorithm>
#include <cstddef>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/sums_arm.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr int kMostPairs = 5;  // whose sums over 8 tokens leave registers for the codes
constexpr std::int32_t kFewRows = 2;  // where bringing codes into order costs more than SMMLA gains

using detail::end_of_sum, detail::kSumBits, detail::kSumQuads;

// Where the compiler would copy the sum to another register first.
[[gnu::always_inline]] inline void add_products(int32x4_t& sum, int8x16_t a, int8x16_t b) noexcept {
  int32x4_t x = sum;
  asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(x) : "w"(a), "w"(b));
  sum = x;
}

// Rows [a0 a1] and [b0 b1] of sums of two registers to [a0 b0] and [a1 b1].
template <class V>
[[gnu::always_inline]] inline V first_halves(V a, V b) noexcept {
  return V(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
template <class V>
[[gnu::always_inline]] inline V second_halves(V a, V b) noexcept {
  return V(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

// Eights of `count` bytes of two rows in turn, [eights][2][8], zeros after the last byte. An absent second row is the
// first again: its sums are thrown away.
void pair_rows(const std::int8_t* first, const std::int8_t* second, std::int32_t count, std::int8_t* to) noexcept {
  std::int32_t i = 0;
  for (; i + 8 <= count; i += 8, to += 16) {
    vst1q_s8(to, vcombine_s8(vld1_s8(first + i), vld1_s8(second + i)));
  }
  if (i == count) return;
  std::fill_n(to, 16, std::int8_t{0});
  std::copy(first + i, first + count, to);
  std::copy(second + i, second + count, to + 8);
}

// sums[p][k]: of the pair's two rows with tokens 2 k and 2 k + 1 of the eight whose codes of quads [quads][16][4] start
// here; pairs [P][eights][2][8] lie `stride` apart.
template <int P>
[[gnu::always_inline]] inline void add_eight_tokens(const std::int8_t* codes, std::int32_t quads,
                                                    const std::int8_t* pairs, std::ptrdiff_t stride,
                                                    int32x4_t (&sums)[P][4]) noexcept {
  const auto add = [&](int32x4_t a0, int32x4_t a1, int32x4_t b0, int32x4_t b1) __attribute__((always_inline)) {
    const int8x16_t tokens[4] = {vreinterpretq_s8_s32(vzip1q_s32(a0, b0)), vreinterpretq_s8_s32(vzip2q_s32(a0, b0)),
                                 vreinterpretq_s8_s32(vzip1q_s32(a1, b1)), vreinterpretq_s8_s32(vzip2q_s32(a1, b1))};
    unrolled<P>([&]<int p>() __attribute__((always_inline)) {
      const int8x16_t pair = vld1q_s8(pairs + p * stride);
      unrolled<4>([&]<int k>() __attribute__((always_inline)) { add_products(sums[p][k], pair, tokens[k]); });
    });
    pairs += 16;
  };
  const auto four = [](const std::int8_t* at) __attribute__((always_inline)) {
    return vreinterpretq_s32_s8(vld1q_s8(at));
  };
  std::int32_t q = 0;
#pragma GCC unroll 1
  for (; q + 2 <= quads; q += 2, codes += 128) add(four(codes), four(codes + 16), four(codes + 64), four(codes + 80));
  if (q < quads) add(four(codes), four(codes + 16), vdupq_n_s32(0), vdupq_n_s32(0));
}

// use(rows_at, pairs, n): all rows in groups of up to kMostPairs pairs, of about the same size.
template <class Use>
[[gnu::always_inline]] inline void in_groups(std::int32_t rows, const Use& use) noexcept {
  const std::int32_t pairs = (rows + 1) / 2, groups = (pairs + kMostPairs - 1) / kMostPairs;
  for (std::int32_t g = 0; g < groups; ++g) {
    const std::int32_t from = pairs * g / groups, to = pairs * (g + 1) / groups;
    const auto some = [&]<int P>() {
      if (to - from == P) use.template operator()<P>(2 * from, std::min(2 * to, rows) - 2 * from);
    };
    some.template operator()<1>();
    some.template operator()<2>();
    some.template operator()<3>();
    some.template operator()<4>();
    some.template operator()<5>();
  }
}

// What becomes of sums of P pairs with eight tokens: finish(row, which four of them, their sums as floats).
template <int P, class Finish>
[[gnu::always_inline]] inline void finish_rows(const int32x4_t (&sums)[P][4], std::int32_t rows, bool biased,
                                               const Finish& finish) noexcept {
  unrolled<P>([&]<int p>() __attribute__((always_inline)) {
    unrolled<2>([&]<int four>() __attribute__((always_inline)) {
      const int32x4_t a = sums[p][2 * four], b = sums[p][2 * four + 1];
      finish(2 * p, four, end_of_sum(first_halves(a, b), biased));
      if (2 * p + 1 < rows) finish(2 * p + 1, four, end_of_sum(second_halves(a, b), biased));
    });
  });
}

// Bytes of the longest rows: codes have 4096 places at most, and each range of them ends with whole 64.
constexpr std::int32_t kMostBytes = 4096 + kBandScales * 64;

void score(const std::int8_t* codes, std::int32_t tiles, std::span<const BandsCode::ScaleRange> ranges,
           const NarrowQuads& narrow, const BandsQueries& queries, const BandsScores& all) noexcept {
  if (queries.rows <= kFewRows) return detail::kBandsAttentionNeon.score(codes, tiles, ranges, narrow, queries, all);
  const std::ptrdiff_t tile_bytes = 64 * (ranges.back().first_quad + ranges.back().quads);
  alignas(64) std::int8_t paired[kMostPairs * 2 * kMostBytes];
  const std::ptrdiff_t stride = 2 * queries.stride;
  in_groups(queries.rows, [&]<int P>(std::int32_t first, std::int32_t rows) {
    for (std::int32_t p = 0; p < P; ++p) {
      const std::int8_t* const row = queries.rounded + (first + 2 * p) * static_cast<std::ptrdiff_t>(queries.stride);
      pair_rows(row, 2 * p + 1 < rows ? row + queries.stride : row, queries.stride, paired + p * stride);
    }
    for (std::int32_t eight = 0; eight < 2 * tiles; ++eight) {
      const std::int8_t* const tokens = codes + eight / 2 * tile_bytes + eight % 2 * 32;
      const BandsScores to = all.from(8 * eight);
      const float32x4_t gains[2] = {vld1q_f32(to.gains), vld1q_f32(to.gains + 4)};
      const std::int8_t* pairs = paired;
      for (std::size_t w = 0; w < ranges.size(); pairs += 2 * query_bytes(ranges[w]), ++w) {
        const bool biased = ranges[w].small;
        int32x4_t sums[P][4];
        for (auto& row : sums) {
          for (int32x4_t& sum : row) sum = vdupq_n_s32(biased ? kSumBits : 0);
        }
        add_eight_tokens<P>(tokens + static_cast<std::ptrdiff_t>(ranges[w].first_quad) * 64, ranges[w].quads, pairs,
                            stride, sums);
        finish_rows<P>(sums, rows, biased, [&](int r, int four, float32x4_t sum) __attribute__((always_inline)) {
          const std::ptrdiff_t row = first + r;
          float* const scores = to.scores + row * all.score_stride + 4 * four;
          const float* const before = w == 0 ? to.means + row * all.mean_stride + 4 * four : scores;
          const float32x4_t offset = vdupq_n_f32(w == 0 ? queries.offsets[row] : 0.0f);
          const float scale = queries.scales[row * kBandScales + static_cast<std::ptrdiff_t>(w)];
          vst1q_f32(scores, vfmaq_f32(vld1q_f32(before), gains[four], vfmaq_n_f32(offset, sum, scale)));
        });
      }
    }
  });
}

void project(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads, const float* factors,
             const std::int8_t* vectors, std::int32_t stride, std::int32_t rows, float* to,
             std::int32_t to_stride) noexcept {
  if (rows <= kFewRows) {
    return detail::kBandsAttentionNeon.project(matrix, tiles, quads, factors, vectors, stride, rows, to, to_stride);
  }
  const bool biased = quads <= kSumQuads;
  const std::ptrdiff_t pair_stride = (quads + 1) / 2 * 16;
  alignas(64) std::int8_t paired[kMostPairs * 2 * kMostBytes];
  in_groups(rows, [&]<int P>(std::int32_t first, std::int32_t n) {
    for (std::int32_t p = 0; p < P; ++p) {
      const std::int8_t* const row = vectors + (first + 2 * p) * static_cast<std::ptrdiff_t>(stride);
      pair_rows(row, 2 * p + 1 < n ? row + stride : row, 4 * quads, paired + p * pair_stride);
    }
    for (std::int32_t eight = 0; eight < 2 * tiles; ++eight) {
      int32x4_t sums[P][4];
      for (auto& row : sums) {
        for (int32x4_t& sum : row) sum = vdupq_n_s32(biased ? kSumBits : 0);
      }
      add_eight_tokens<P>(matrix + static_cast<std::ptrdiff_t>(eight / 2) * quads * 64 + eight % 2 * 32, quads, paired,
                          pair_stride, sums);
      finish_rows<P>(sums, n, biased, [&](int r, int four, float32x4_t sum) __attribute__((always_inline)) {
        const std::ptrdiff_t place = 8 * eight + 4 * four;
        vst1q_f32(to + (first + r) * static_cast<std::ptrdiff_t>(to_stride) + place,
                  vmulq_f32(vld1q_f32(factors + place), sum));
      });
    }
  });
}

// sums[p][0], sums[p][1]: of the pair's two rows of weights with components 0 and 1, 2 and 3 of one quad.
template <int P>
void weigh_pairs(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const std::int8_t* paired,
                 const BandsWeights& weights) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  for (std::int32_t q = 0; q < quads; ++q, codes += 64) {
    int32x4_t sums[P][2];
    for (auto& row : sums) row[0] = row[1] = vdupq_n_s32(kSumBits);
    const std::int8_t* from = codes;
    const std::int8_t* by = paired;
#pragma GCC unroll 2
    for (std::int32_t i = 0; i < tiles; ++i, from += tile_stride, by += 32) {
      unrolled<2>([&]<int eight>() __attribute__((always_inline)) {
        const int8x16_t a = vld1q_s8(from + 32 * eight), b = vld1q_s8(from + 32 * eight + 16);
        // Components 0 and 2 of the eight tokens, 1 and 3, and then each by itself.
        const int8x16_t even = vuzp1q_s8(a, b), odd = vuzp2q_s8(a, b);
        const int8x16_t low = vuzp1q_s8(even, odd), high = vuzp2q_s8(even, odd);
        unrolled<P>([&]<int p>() __attribute__((always_inline)) {
          const int8x16_t pair = vld1q_s8(by + p * 2 * kBandsStretchTokens + 16 * eight);
          add_products(sums[p][0], pair, low);
          add_products(sums[p][1], pair, high);
        });
      });
    }
    const auto add = [&](std::int32_t r, float32x4_t sum) __attribute__((always_inline)) {
      float* const to = weights.out[r] + 4 * q;
      float32x4_t before = vld1q_f32(to);
      if (weights.kept != nullptr) before = vmulq_n_f32(before, weights.kept[r]);
      vst1q_f32(to, vfmaq_n_f32(before, sum, weights.scales[r]));
    };
    unrolled<P>([&]<int p>() __attribute__((always_inline)) {
      add(2 * p, end_of_sum(first_halves(sums[p][0], sums[p][1]), true));
      if (2 * p + 1 < weights.rows) add(2 * p + 1, end_of_sum(second_halves(sums[p][0], sums[p][1]), true));
    });
  }
}

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& narrow,
           const BandsWeights& weights) noexcept {
  if (weights.rows <= kFewRows) return detail::kBandsAttentionNeon.weigh(codes, tiles, quads, narrow, weights);
  alignas(64) std::int8_t paired[kMostPairs * 2 * kBandsStretchTokens];
  in_groups(weights.rows, [&]<int P>(std::int32_t first, std::int32_t rows) {
    BandsWeights some = weights.from(first);
    some.rows = rows;
    for (std::int32_t p = 0; p < P; ++p) {
      const std::int8_t* const row = some.rounded + static_cast<std::ptrdiff_t>(2 * p) * kBandsStretchTokens;
      pair_rows(row, 2 * p + 1 < rows ? row + kBandsStretchTokens : row, 16 * tiles,
                paired + p * 2 * kBandsStretchTokens);
    }
    weigh_pairs<P>(codes, tiles, quads, paired, some);
  });
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionI8mm{.score = score, .weigh = weigh, .project = project};

}  // namespace kvspan
