// SPDX-License-Identifier: Apache-2.0
// Products with integer coefficients for Armv8.2 NEON with dot products.
// Scores: a query of 16 bits is 256 hi + lo, both signed bytes, so two SDOT make its exact product.
// Four tokens' codes are transposed in units of four bytes; SDOT by lane then leaves the sums of
// four tokens side by side, and no sum runs across a register. Values: weights times scales are
// rounded likewise, relative to the largest of 64 tokens; zips put four tokens' codes of a
// coordinate side by side.
#include <algorithm>
#include <type_traits>

#include "attention/kernels/neon/neon.h"

namespace kvspan::detail {
namespace {

// Numbers up to kQueryLimit in magnitude as 256 high + low, both signed: the bytes of x + 128, the
// lower one's sign bit flipped.
[[gnu::always_inline]] inline void split(int16x8_t a, int16x8_t b, std::int8_t* high,
                                         std::int8_t* low) {
  const int16x8_t half = vdupq_n_s16(128);
  const int8x16_t x = vreinterpretq_s8_s16(vaddq_s16(a, half));
  const int8x16_t y = vreinterpretq_s8_s16(vaddq_s16(b, half));
  vst1q_s8(high, vuzp2q_s8(x, y));
  vst1q_s8(low, veorq_s8(vuzp1q_s8(x, y), vdupq_n_s8(-128)));
}

// The queries' bytes for up to kMaxCodeDim coordinates.
template <int R>
struct Limbs {
  std::int8_t high[R][kMaxCodeDim], low[R][kMaxCodeDim];

  Limbs(const IntegerQueries& queries, std::int32_t dim) {
    for (int r = 0; r < R; ++r) {
      const std::int16_t* q = queries.numbers + r * queries.stride;
      std::int32_t i = 0;
      for (; i + 16 <= dim; i += 16) {
        split(vld1q_s16(q + i), vld1q_s16(q + i + 8), high[r] + i, low[r] + i);
      }
      if (i < dim) split(vld1q_s16(q + i), vdupq_n_s16(0), high[r] + i, low[r] + i);
    }
  }
};
static_assert(kMaxCodeDim % 16 == 0);

// Four rows of 16 bytes as four vectors: bytes 4 j .. 4 j + 3 of each row in vector j.
[[gnu::always_inline]] inline void transpose(int8x16_t (&k)[4]) {
  const int32x4_t a = vreinterpretq_s32_s8(k[0]), b = vreinterpretq_s32_s8(k[1]);
  const int32x4_t c = vreinterpretq_s32_s8(k[2]), d = vreinterpretq_s32_s8(k[3]);
  const int64x2_t ab0 = vreinterpretq_s64_s32(vtrn1q_s32(a, b));
  const int64x2_t ab1 = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
  const int64x2_t cd0 = vreinterpretq_s64_s32(vtrn1q_s32(c, d));
  const int64x2_t cd1 = vreinterpretq_s64_s32(vtrn2q_s32(c, d));
  k[0] = vreinterpretq_s8_s64(vzip1q_s64(ab0, cd0));
  k[1] = vreinterpretq_s8_s64(vzip1q_s64(ab1, cd1));
  k[2] = vreinterpretq_s8_s64(vzip2q_s64(ab0, cd0));
  k[3] = vreinterpretq_s8_s64(vzip2q_s64(ab1, cd1));
}

// Sums of high and low bytes start as the bits of floats so large that a unit in the last place is
// 256 and 1: read as floats they then are kHighBase + 256 high and kLowBase + low, and nothing
// needs converting, which takes as long as four additions. For |high|, |low| < 2^22.
constexpr float kHighBase = 0x1.8p31f, kLowBase = 0x1.8p23f;
alignas(16) constexpr std::int32_t kHighStart[4] = {0x4f400000, 0x4f400000, 0x4f400000, 0x4f400000};
alignas(16) constexpr std::int32_t kLowStart[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
constexpr std::int32_t kMostBased = (1 << 22) / (128 * 128) - 1;  // products added up

// 256 high + low, rounded once: the difference is a multiple of 256 below 2^31, thus exact.
[[gnu::always_inline]] inline float32x4_t based_sum(int32x4_t high, int32x4_t low) {
  return vaddq_f32(vsubq_f32(vreinterpretq_f32_s32(high), vdupq_n_f32(kHighBase + kLowBase)),
                   vreinterpretq_f32_s32(low));
}

// Scores of R query rows and 4 N tokens; token t is at from[t / 4] + t % 4 * stride.
template <int R, int N, bool kBased, bool kFresh>
[[gnu::always_inline]] inline void score_block(const Limbs<R>& q, const float* query_scale,
                                               std::int32_t dim, const std::int8_t* codes,
                                               std::ptrdiff_t stride, const float* scale, bool add,
                                               float* scores, std::ptrdiff_t score_stride) {
  int32x4_t high[R][N], low[R][N];
  for (int r = 0; !kFresh && r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      high[r][n] = vdupq_n_s32(kBased ? kHighStart[0] : 0);
      low[r][n] = vdupq_n_s32(kBased ? kLowStart[0] : 0);
    }
  }
  std::int32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    int8x16_t k[N][4];
    for (int n = 0; n < N; ++n) {
      for (int t = 0; t < 4; ++t) k[n][t] = vld1q_s8(codes + (4 * n + t) * stride + i);
      transpose(k[n]);
    }
    for (int r = 0; r < R; ++r) {
      const int8x16_t h = vld1q_s8(q.high[r] + i), l = vld1q_s8(q.low[r] + i);
      for (int n = 0; n < N; ++n) {
        if (kFresh && i == 0) {
          high[r][n] = fresh<int32x4_t>(kHighStart, k[n][0], h);
          low[r][n] = fresh<int32x4_t>(kLowStart, k[n][0], l);
        }
        high[r][n] = vdotq_laneq_s32(high[r][n], k[n][0], h, 0);
        low[r][n] = vdotq_laneq_s32(low[r][n], k[n][0], l, 0);
        high[r][n] = vdotq_laneq_s32(high[r][n], k[n][1], h, 1);
        low[r][n] = vdotq_laneq_s32(low[r][n], k[n][1], l, 1);
        high[r][n] = vdotq_laneq_s32(high[r][n], k[n][2], h, 2);
        low[r][n] = vdotq_laneq_s32(low[r][n], k[n][2], l, 2);
        high[r][n] = vdotq_laneq_s32(high[r][n], k[n][3], h, 3);
        low[r][n] = vdotq_laneq_s32(low[r][n], k[n][3], l, 3);
      }
    }
  }
  if (i < dim) {  // the last 8
    for (int n = 0; n < N; ++n) {
      int32x2_t k[4];
      for (int t = 0; t < 4; ++t) {
        k[t] = vreinterpret_s32_s8(vld1_s8(codes + (4 * n + t) * stride + i));
      }
      const int8x16_t k0 =
          vreinterpretq_s8_s32(vcombine_s32(vtrn1_s32(k[0], k[1]), vtrn1_s32(k[2], k[3])));
      const int8x16_t k1 =
          vreinterpretq_s8_s32(vcombine_s32(vtrn2_s32(k[0], k[1]), vtrn2_s32(k[2], k[3])));
      for (int r = 0; r < R; ++r) {
        const int8x8_t h = vld1_s8(q.high[r] + i), l = vld1_s8(q.low[r] + i);
        high[r][n] = vdotq_lane_s32(vdotq_lane_s32(high[r][n], k0, h, 0), k1, h, 1);
        low[r][n] = vdotq_lane_s32(vdotq_lane_s32(low[r][n], k0, l, 0), k1, l, 1);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    const float32x4_t s = vld1q_f32(scale + 4 * n);
    for (int r = 0; r < R; ++r) {
      float32x4_t product;
      if constexpr (kBased) {
        product = based_sum(high[r][n], low[r][n]);
      } else {
        product = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high[r][n], 8), low[r][n]));
      }
      const float32x4_t factor = vmulq_n_f32(s, query_scale[r]);
      float* to = scores + r * score_stride + 4 * n;
      vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), vmulq_f32(product, factor))
                        : vmulq_f32(product, factor));
    }
  }
}

// kDim: the dimension, where it is a common one, so that its loop disappears; 0: `any_dim`.
template <int R, std::int32_t kDim, bool kBased>
void score_group(const IntegerQueries& queries, std::int32_t any_dim, const CodeRows& keys,
                 std::int32_t tokens, bool add, float* scores, std::ptrdiff_t score_stride) {
  const std::int32_t dim = kDim > 0 ? kDim : any_dim;
  const Limbs<R> limbs(queries, dim);
  const std::ptrdiff_t stride = keys.stride;
  // Enough sums to hide the latency of SDOT, as far as there are registers.
  constexpr int kBlocks = R <= 2 || (R == 3 && kDim != 32) ? 2 : 1;
  std::int32_t t = 0;
  for (; t + 4 * kBlocks <= tokens; t += 4 * kBlocks) {
    ask_for(keys.next, t * stride, 4 * kBlocks * (kDim > 0 ? std::ptrdiff_t{kDim} : stride));
    score_block<R, kBlocks, kBased, (kDim > 0)>(limbs, queries.scale, dim, keys.codes + t * stride,
                                                stride, keys.scale + t, add, scores + t,
                                                score_stride);
  }
  for (; t + 4 <= tokens; t += 4) {
    score_block<R, 1, kBased, (kDim > 0)>(limbs, queries.scale, dim, keys.codes + t * stride,
                                          stride, keys.scale + t, add, scores + t, score_stride);
  }
  for (; t < tokens; ++t) {  // the last one to three, each as four times itself
    const float scale[4] = {keys.scale[t], 0.0f, 0.0f, 0.0f};
    float four[R * 4];
    score_block<R, 1, kBased, (kDim > 0)>(limbs, queries.scale, dim, keys.codes + t * stride, 0,
                                          scale, false, four, 4);
    for (int r = 0; r < R; ++r) {
      float& to = scores[r * score_stride + t];
      to = add ? to + four[4 * r] : four[4 * r];
    }
  }
}

template <int R>
void score_dim(const IntegerQueries& queries, std::int32_t dim, const CodeRows& keys,
               std::int32_t tokens, bool add, float* scores, std::ptrdiff_t score_stride) {
  switch (dim) {
    case 16:
      score_group<R, 16, true>(queries, dim, keys, tokens, add, scores, score_stride);
      break;
    case 32:
      score_group<R, 32, true>(queries, dim, keys, tokens, add, scores, score_stride);
      break;
    default:
      if (dim <= kMostBased) {
        score_group<R, 0, true>(queries, dim, keys, tokens, add, scores, score_stride);
      } else {
        score_group<R, 0, false>(queries, dim, keys, tokens, add, scores, score_stride);
      }
      break;
  }
}

// Tokens whose weights are rounded together.
constexpr std::int32_t kBlock = kWeightBlock;
static_assert(kBlock <= kMostBased);

// Weights times scales of up to kBlock tokens, rounded to 256 high + low times `step`; zeros
// beyond.
template <int R>
struct WeightLimbs {
  std::int8_t high[R][kBlock], low[R][kBlock];
  float step[R];

  WeightLimbs(const float* weights, std::ptrdiff_t weight_stride, const float* scale,
              std::int32_t tokens) {
    if (tokens == kBlock) {
      round_all<kBlock>(weights, weight_stride, scale, tokens);
    } else {
      round_all<0>(weights, weight_stride, scale, tokens);
    }
  }

 private:
  // kTokens: their number where it is known, so that loops have no tails.
  template <std::int32_t kTokens>
  [[gnu::always_inline]] void round_all(const float* weights, std::ptrdiff_t weight_stride,
                                        const float* scale, std::int32_t any_tokens) {
    const std::int32_t tokens = kTokens > 0 ? kTokens : any_tokens;
    const std::int32_t padded = (tokens + 15) / 16 * 16;
    float products[R][kBlock];
    float32x4_t largest[R];
    for (int r = 0; r < R; ++r) largest[r] = vdupq_n_f32(0.0f);
    std::int32_t t = 0;
#pragma GCC unroll 2
    for (; t + 4 <= tokens; t += 4) {
      const float32x4_t s = vld1q_f32(scale + t);
      for (int r = 0; r < R; ++r) {
        const float32x4_t x = vmulq_f32(vld1q_f32(weights + r * weight_stride + t), s);
        vst1q_f32(products[r] + t, x);
        largest[r] = vmaxq_f32(largest[r], vabsq_f32(x));
      }
    }
    float most[R], inverse[R];
    for (int r = 0; r < R; ++r) {
      most[r] = vmaxvq_f32(largest[r]);
      for (std::int32_t i = t; i < tokens; ++i) {
        products[r][i] = weights[r * weight_stride + i] * scale[i];
        most[r] = std::max(most[r], products[r][i] < 0.0f ? -products[r][i] : products[r][i]);
      }
      for (std::int32_t i = tokens; i < padded; ++i) products[r][i] = 0.0f;
      inverse[r] = most[r] > 0x1p-110f ? static_cast<float>(kQueryLimit) / most[r] : 0.0f;
      step[r] = most[r] * (1.0f / static_cast<float>(kQueryLimit));
    }
    // Added to 1.5 * 2^23 a number is rounded to the nearest integer, which is in the low bits; 128
    // on top of it, as split() has it.
    alignas(16) static constexpr float kMagic[4] = {0x1.8p23f + 128.0f, 0x1.8p23f + 128.0f,
                                                    0x1.8p23f + 128.0f, 0x1.8p23f + 128.0f};
    for (int r = 0; r < R; ++r) {
      const float32x4_t factor = vdupq_n_f32(inverse[r]);
      const auto rounded = [&](std::int32_t i) __attribute__((always_inline)) {
        const float32x4_t x = vld1q_f32(products[r] + i), y = vld1q_f32(products[r] + i + 4);
        float32x4_t a = fresh<float32x4_t>(kMagic, x, factor);
        float32x4_t b = fresh<float32x4_t>(kMagic, y, factor);
        accumulate(a, x, factor);
        accumulate(b, y, factor);
        return vreinterpretq_s8_s16(vuzp1q_s16(vreinterpretq_s16_f32(a), vreinterpretq_s16_f32(b)));
      };
      for (std::int32_t i = 0; i < padded; i += 16) {
        const int8x16_t x = rounded(i), y = rounded(i + 8);
        vst1q_s8(high[r] + i, vuzp2q_s8(x, y));
        vst1q_s8(low[r] + i, veorq_s8(vuzp1q_s8(x, y), vdupq_n_s8(-128)));
      }
    }
  }
};

// Sums of 8 coordinates for R rows.
template <int R>
struct CodeSums {
  int32x4_t high[R][2], low[R][2];

  // Four tokens whose weights are lane kLane of h[r], l[r]: bytes of the same coordinate side by
  // side, so that one SDOT adds four tokens to four coordinates.
  template <int kLane>
  [[gnu::always_inline]] void add(const std::int8_t* a, const std::int8_t* b, const std::int8_t* c,
                                  const std::int8_t* d, const int8x16_t* h, const int8x16_t* l) {
    const int8x16_t ac =
        vzip1q_s8(vcombine_s8(vld1_s8(a), vdup_n_s8(0)), vcombine_s8(vld1_s8(c), vdup_n_s8(0)));
    const int8x16_t bd =
        vzip1q_s8(vcombine_s8(vld1_s8(b), vdup_n_s8(0)), vcombine_s8(vld1_s8(d), vdup_n_s8(0)));
    const int8x16_t first = vzip1q_s8(ac, bd), second = vzip2q_s8(ac, bd);
    for (int r = 0; r < R; ++r) {
      high[r][0] = vdotq_laneq_s32(high[r][0], first, h[r], kLane);
      high[r][1] = vdotq_laneq_s32(high[r][1], second, h[r], kLane);
      low[r][0] = vdotq_laneq_s32(low[r][0], first, l[r], kLane);
      low[r][1] = vdotq_laneq_s32(low[r][1], second, l[r], kLane);
    }
  }
};

// kTokens: their number where it is known; 0: `any_tokens`.
template <int R, std::int32_t kTokens>
[[gnu::always_inline]] inline void weigh_block(const WeightLimbs<R>& limbs,
                                               const std::int8_t* codes, std::ptrdiff_t stride,
                                               std::int32_t any_tokens, float* out,
                                               std::ptrdiff_t out_stride) {
  const std::int32_t tokens = kTokens > 0 ? kTokens : any_tokens;
  CodeSums<R> sums;
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < 2; ++j) {
      sums.high[r][j] = vld1q_s32(kHighStart);
      sums.low[r][j] = vld1q_s32(kLowStart);
    }
  }
  for (std::int32_t t = 0; t < tokens; t += 16) {
    int8x16_t h[R], l[R];
    for (int r = 0; r < R; ++r) {
      h[r] = vld1q_s8(limbs.high[r] + t);
      l[r] = vld1q_s8(limbs.low[r] + t);
    }
    if (t + 16 <= tokens) {
      const std::int8_t* p = codes + t * stride;
      const std::ptrdiff_t two = 2 * stride, three = 3 * stride, four = 4 * stride;
      sums.template add<0>(p, p + stride, p + two, p + three, h, l);
      p += four;
      sums.template add<1>(p, p + stride, p + two, p + three, h, l);
      p += four;
      sums.template add<2>(p, p + stride, p + two, p + three, h, l);
      p += four;
      sums.template add<3>(p, p + stride, p + two, p + three, h, l);
      continue;
    }
    // The last tokens: weights beyond them are zero, whatever is read in their place.
    const auto row = [&](std::int32_t i) { return codes + std::min(t + i, tokens - 1) * stride; };
    sums.template add<0>(row(0), row(1), row(2), row(3), h, l);
    sums.template add<1>(row(4), row(5), row(6), row(7), h, l);
    sums.template add<2>(row(8), row(9), row(10), row(11), h, l);
    sums.template add<3>(row(12), row(13), row(14), row(15), h, l);
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < 2; ++j) {
      const float32x4_t sum = based_sum(sums.high[r][j], sums.low[r][j]);
      float* to = out + r * out_stride + 4 * j;
      vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), sum, limbs.step[r]));
    }
  }
}

template <int R>
void weigh_group(const float* weights, std::ptrdiff_t weight_stride, const CodeRows& values,
                 std::int32_t dim, std::int32_t tokens, float* out, std::ptrdiff_t out_stride) {
  for (std::int32_t t = 0; t < tokens; t += kBlock) {
    const std::int32_t n = std::min(kBlock, tokens - t);
    const WeightLimbs<R> limbs(weights + t, weight_stride, values.scale + t, n);
    const std::int8_t* codes = values.codes + static_cast<std::ptrdiff_t>(t) * values.stride;
    for (std::int32_t i = 0; i < dim; i += 8) {
      // Each 8 coordinates ask for their share of the block's bytes.
      ask_for(values.next, t * std::ptrdiff_t{values.stride} + i * n,
              n == kBlock ? 8 * kBlock : 8 * n);
      if (n == kBlock) {
        weigh_block<R, kBlock>(limbs, codes + i, values.stride, n, out + i, out_stride);
      } else {
        weigh_block<R, 0>(limbs, codes + i, values.stride, n, out + i, out_stride);
      }
    }
  }
}

}  // namespace

void score_codes_neon(const IntegerQueries& queries, std::int32_t rows, std::int32_t dim,
                      const CodeRows& keys, std::int32_t tokens, bool add, float* scores,
                      std::int32_t score_stride) noexcept {
  for (std::int32_t r = 0; r < rows; r += 4) {
    const IntegerQueries q{queries.numbers + r * queries.stride, queries.stride, queries.scale + r};
    float* s = scores + static_cast<std::ptrdiff_t>(r) * score_stride;
    with_rows(std::min(4, rows - r),
              [&]<int R>() { score_dim<R>(q, dim, keys, tokens, add, s, score_stride); });
  }
}

void weigh_codes_neon(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                      const CodeRows& values, std::int32_t dim, std::int32_t tokens, float* out,
                      std::int32_t out_stride) noexcept {
  for (std::int32_t r = 0; r < rows; r += 4) {
    const float* w = weights + static_cast<std::ptrdiff_t>(r) * weight_stride;
    float* to = out + static_cast<std::ptrdiff_t>(r) * out_stride;
    with_rows(std::min(4, rows - r), [&]<int R>() {
      weigh_group<R>(w, weight_stride, values, dim, tokens, to, out_stride);
    });
  }
}

}  // namespace kvspan::detail
