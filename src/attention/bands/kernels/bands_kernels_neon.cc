// SPDX-License-Identifier: Apache-2.0
// SDOT by element: a register of codes, 4 tokens x 4 components, meets one quad of a query for
// scores; transposed, 4 components x 4 tokens, the weights of four tokens.
#include <arm_neon.h>

#include <algorithm>
#include <cstddef>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"
#include "attention/bands/kernels/sums_arm.h"
#include "attention/kernels/neon/neon.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

// sum += codes . four of the query, in the register that sum is in (attention/kernels/neon/neon.h).
template <int kLane>
[[gnu::always_inline]] inline void add_dot(int32x4_t& sum, int8x16_t codes,
                                           int8x16_t four) noexcept {
  int32x4_t x = sum;  // not `sum` itself: an operand in memory keeps all its array there
  asm("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(x) : "w"(codes), "w"(four), "i"(kLane));
  sum = x;
}
// The same where it stands: the compiler would bring products together that add to one sum and wait
// for each other.
template <int kLane>
[[gnu::always_inline]] inline void add_dot_here(int32x4_t& sum, int8x16_t codes,
                                                int8x16_t four) noexcept {
  int32x4_t x = sum;
  asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(x) : "w"(codes), "w"(four), "i"(kLane));
  sum = x;
}

template <int kLane, int R>
[[gnu::always_inline]] inline void add_quad(const std::int8_t* codes, const int8x16_t (&query)[R],
                                            int32x4_t (&sum)[R][4]) noexcept {
  unrolled<4>([&]<int i>() __attribute__((always_inline)) {
    const int8x16_t four = vld1q_s8(codes + 16 * i);
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      add_dot_here<kLane>(sum[r][i], four, query[r]);
    });
  });
}

// sum[r][i] += codes of quads [quads][16][4] . queries; 4 tokens in each register.
template <int R>
[[gnu::always_inline]] inline void add_dots(const std::int8_t* codes, std::int32_t quads,
                                            const std::int8_t* queries, std::ptrdiff_t stride,
                                            int32x4_t (&sum)[R][4]) noexcept {
  std::int32_t q = 0;
#pragma GCC unroll 1
  for (; q + 4 <= quads; q += 4, codes += 256) {
    int8x16_t query[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) query[r] = vld1q_s8(queries + r * stride + 4 * q);
    add_quad<0, R>(codes, query, sum);
    add_quad<1, R>(codes + 64, query, sum);
    add_quad<2, R>(codes + 128, query, sum);
    add_quad<3, R>(codes + 192, query, sum);
  }
  for (; q < quads; ++q, codes += 64) {
    int8x16_t query[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      std::int32_t four;
      __builtin_memcpy(&four, queries + r * stride + 4 * q, 4);
      query[r] = vreinterpretq_s8_s32(vdupq_n_s32(four));
    }
    add_quad<0, R>(codes, query, sum);
  }
}

using detail::end_of_sum, detail::kSumBits, detail::kSumQuads;
alignas(16) constexpr std::int32_t kSumStart[4] = {kSumBits, kSumBits, kSumBits, kSumBits};
alignas(16) constexpr std::int32_t kZeroStart[4] = {};

// Loaded each time: the load pipes are idle, where a copy would take its turn in those of the
// products.
[[gnu::always_inline]] inline int32x4_t start_of_sum(const std::int32_t (&from)[4]) noexcept {
  int32x4_t x;
  asm volatile("ldr %q0, %1" : "=w"(x) : "Q"(from));
  return x;
}

// Rows `first` on of range w. Its own function for each R, with few numbers to keep: there are none
// of the registers to spare.
template <int R>
[[gnu::noinline]] void score_rows(const std::int8_t* codes, const BandsCode::ScaleRange& range,
                                  const BandsQueries& queries, const std::int8_t* rounded,
                                  std::int32_t first, std::int32_t w, const float* gains,
                                  const float* mean, std::ptrdiff_t mean_stride, float* to,
                                  std::ptrdiff_t stride) noexcept {
  const bool small = range.small;
  int32x4_t sum[R][4];
  unrolled<4 * R>([&]<int k>() __attribute__((always_inline)) {
    sum[k / 4][k % 4] = start_of_sum(small ? kSumStart : kZeroStart);
  });
  const std::ptrdiff_t query_stride = queries.stride;
  add_dots<R>(codes + static_cast<std::ptrdiff_t>(range.first_quad) * 64, range.quads,
              rounded + first * query_stride, query_stride, sum);
  const float* const scales = queries.scales + static_cast<std::ptrdiff_t>(first) * kBandScales + w;
  const float* const offsets = queries.offsets + first;
  float32x4_t gain[4];
  unrolled<4>([&]<int i>() __attribute__((always_inline)) { gain[i] = vld1q_f32(gains + 4 * i); });
  const auto finish = [&]<bool kSmall>() __attribute__((always_inline)) {
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const float32x4_t offset = vdupq_n_f32(w == 0 ? offsets[r] : 0.0f);
      const float scale = scales[r * kBandScales];
      unrolled<4>([&]<int i>() __attribute__((always_inline)) {
        const float32x4_t total = vfmaq_n_f32(offset, end_of_sum(sum[r][i], kSmall), scale);
        vst1q_f32(to + 4 * i, vfmaq_f32(vld1q_f32(mean + 4 * i), gain[i], total));
      });
      mean += mean_stride;
      to += stride;
      asm("" : "+r"(mean), "+r"(to));  // else all addresses are worked out before
    });
  };
  small ? finish.template operator()<true>() : finish.template operator()<false>();
}

// Up to five rows at once: their sums and a quad's codes fill the registers. Ranges after the first
// add to the scores that there are, in place of means.
void score_tile(const std::int8_t* codes, std::span<const BandsCode::ScaleRange> ranges,
                const BandsQueries& queries, const BandsScores& all) noexcept {
  for (std::int32_t first = 0, n = 0; first < queries.rows; first += n) {
    const std::int32_t left = queries.rows - first;
    n = left == 6 ? 3 : left == 7 || left == 8 ? 4 : std::min(left, 5);
    float* const to = all.scores + static_cast<std::ptrdiff_t>(first) * all.score_stride;
    const float* mean = all.means + static_cast<std::ptrdiff_t>(first) * all.mean_stride;
    std::ptrdiff_t stride = all.mean_stride;
    const std::int8_t* rounded = queries.rounded;
    for (std::size_t w = 0; w < ranges.size(); ++w) {
      const auto some = [&]<int R>() {
        score_rows<R>(codes, ranges[w], queries, rounded, first, static_cast<std::int32_t>(w),
                      all.gains, mean, stride, to, all.score_stride);
      };
      n == 5 ? some.template operator()<5>() : detail::with_rows(n, some);
      rounded += query_bytes(ranges[w]);
      mean = to;
      stride = all.score_stride;
    }
  }
}

template <int R>
void mean_rows(const AnchoredMeans& means, const float* sums, float* to,
               std::ptrdiff_t stride) noexcept {
  const std::ptrdiff_t half = means.half(), pairs = means.pairs(), row = means.sums();
  for (std::ptrdiff_t k = 0; k < half; k += 8) {
    float32x4_t even[R][2], odd[R][2];
    for (int r = 0; r < R; ++r) {
      even[r][0] = even[r][1] = vld1q_f32(sums + r * row + 2 * pairs);
      odd[r][0] = odd[r][1] = vdupq_n_f32(0.0f);
    }
    const float* turn = means.turns() + k;
    for (std::ptrdiff_t j = 0; j < means.terms(); j += 4) {
      float32x4_t a[R], b[R];
      for (int r = 0; r < R; ++r) a[r] = vld1q_f32(sums + r * row + j);
      for (int r = 0; r < R; ++r) b[r] = vld1q_f32(sums + r * row + pairs + j);
      unrolled<4>([&]<int kLane>() __attribute__((always_inline)) {
        const float32x4_t c0 = vld1q_f32(turn), c1 = vld1q_f32(turn + 4);
        const float32x4_t s0 = vld1q_f32(turn + half), s1 = vld1q_f32(turn + half + 4);
        for (int r = 0; r < R; ++r) {
          even[r][0] = vfmaq_laneq_f32(even[r][0], c0, a[r], kLane);
          even[r][1] = vfmaq_laneq_f32(even[r][1], c1, a[r], kLane);
          odd[r][0] = vfmaq_laneq_f32(odd[r][0], s0, b[r], kLane);
          odd[r][1] = vfmaq_laneq_f32(odd[r][1], s1, b[r], kLane);
        }
        turn += 2 * half;
      });
    }
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < 2; ++i) {
        float* const middle = to + r * stride + half;
        vst1q_f32(middle + k + 4 * i, vaddq_f32(even[r][i], odd[r][i]));
        const float32x4_t before = vrev64q_f32(vsubq_f32(even[r][i], odd[r][i]));
        vst1q_f32(middle - k - 4 * i - 4, vextq_f32(before, before, 2));
      }
    }
  }
}

void means(const AnchoredMeans& means, const float* sums, std::int32_t rows, float* to,
           std::int32_t stride) noexcept {
  for (std::int32_t r = 0; r < rows; r += 3) {
    detail::with_rows(std::min(3, rows - r), [&]<int R>() {
      mean_rows<R>(means, sums + static_cast<std::ptrdiff_t>(r) * means.sums(),
                   to + static_cast<std::ptrdiff_t>(r) * stride, stride);
    });
  }
}

template <int R>
[[gnu::always_inline]] inline void project_rows(const std::int8_t* matrix, std::int32_t quads,
                                                const float* factors, const std::int8_t* vectors,
                                                std::ptrdiff_t stride, float* to,
                                                std::ptrdiff_t to_stride) noexcept {
  const bool biased = quads <= kSumQuads;
  int32x4_t sum[R][4];
  for (auto& row : sum) {
    for (int32x4_t& four : row) four = start_of_sum(biased ? kSumStart : kZeroStart);
  }
  add_dots<R>(matrix, quads, vectors, stride, sum);
  for (int k = 0; k < 4; ++k) {
    const float32x4_t factor = vld1q_f32(factors + 4 * k);
    for (int r = 0; r < R; ++r) {
      vst1q_f32(to + r * to_stride + 4 * k, vmulq_f32(factor, end_of_sum(sum[r][k], biased)));
    }
  }
}

void project(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads,
             const float* factors, const std::int8_t* vectors, std::int32_t stride,
             std::int32_t rows, float* to, std::int32_t to_stride) noexcept {
  for (std::int32_t first = 0; first < rows; first += 4) {
    detail::with_rows(std::min(4, rows - first), [&]<int R>() {
      for (std::int32_t i = 0; i < tiles; ++i) {
        project_rows<R>(matrix + static_cast<std::ptrdiff_t>(i) * quads * 64, quads,
                        factors + 16 * i, vectors + static_cast<std::ptrdiff_t>(first) * stride,
                        stride, to + static_cast<std::ptrdiff_t>(first) * to_stride + 16 * i,
                        to_stride);
      }
    });
  }
}

// [4 tokens][4 components] to [4 components][4 tokens].
inline int8x16_t transposed(int8x16_t x) noexcept {
  static const std::uint8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return vqtbl1q_s8(x, vld1q_u8(kOrder));
}

template <int R>
void weigh_rows(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const BandsWeights& weights) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  const float* const kept = weights.kept;
  float* out[R];
  for (int r = 0; r < R; ++r) out[r] = weights.out[r];
  for (std::int32_t q = 0; q < quads; ++q, codes += 64) {
    int32x4_t sum[R];
    for (int r = 0; r < R; ++r) sum[r] = start_of_sum(kSumStart);
    const std::int8_t* from = codes;
    const std::int8_t* by = weights.rounded;
#pragma GCC unroll 4
    for (std::int32_t i = 0; i < tiles; ++i, from += tile_stride, by += 16) {
      const int8x16_t c0 = transposed(vld1q_s8(from)), c1 = transposed(vld1q_s8(from + 16));
      const int8x16_t c2 = transposed(vld1q_s8(from + 32)), c3 = transposed(vld1q_s8(from + 48));
      int8x16_t w[R];
      for (int r = 0; r < R; ++r) w[r] = vld1q_s8(by + kBandsStretchTokens * r);
      for (int r = 0; r < R; ++r) add_dot<0>(sum[r], c0, w[r]);
      for (int r = 0; r < R; ++r) add_dot<1>(sum[r], c1, w[r]);
      for (int r = 0; r < R; ++r) add_dot<2>(sum[r], c2, w[r]);
      for (int r = 0; r < R; ++r) add_dot<3>(sum[r], c3, w[r]);
    }
    for (int r = 0; r < R; ++r) {
      float* const to = out[r] + 4 * q;
      float32x4_t before = vld1q_f32(to);
      if (kept != nullptr) before = vmulq_n_f32(before, kept[r]);
      vst1q_f32(to, vfmaq_n_f32(before, end_of_sum(sum[r], true), weights.scales[r]));
    }
  }
}

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& /*narrow*/,
           const BandsWeights& weights) noexcept {
  detail::in_blocks<9, 8, 7, 6, 5, 4, 3, 2, 1>(weights.rows, [&]<int R>(std::int32_t r) {
    weigh_rows<R>(codes, tiles, quads, weights.from(r));
  });
}

alignas(16) constexpr float kNearestFour[4] = {detail::kNearest, detail::kNearest, detail::kNearest,
                                               detail::kNearest};

// The low bytes of 16 numbers.
[[gnu::always_inline]] inline int8x16_t low_bytes(float32x4_t a, float32x4_t b, float32x4_t c,
                                                  float32x4_t d) noexcept {
  const int16x8_t low = vuzp1q_s16(vreinterpretq_s16_f32(a), vreinterpretq_s16_f32(b));
  const int16x8_t high = vuzp1q_s16(vreinterpretq_s16_f32(c), vreinterpretq_s16_f32(d));
  return vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high));
}

[[gnu::always_inline]] inline void round_16(const float* x, float32x4_t factor,
                                            std::int8_t* to) noexcept {
  const auto four = [&](int k) __attribute__((always_inline)) {
    const float32x4_t at = vld1q_f32(x + 4 * k);
    float32x4_t sum = detail::fresh<float32x4_t>(kNearestFour, at, factor);
    detail::accumulate(sum, at, factor);
    return sum;
  };
  vst1q_s8(to, low_bytes(four(0), four(1), four(2), four(3)));
}

[[gnu::always_inline]] inline float sum_of(const float32x4_t (&x)[4]) noexcept {
  return vaddvq_f32(vaddq_f32(vaddq_f32(x[0], x[1]), vaddq_f32(x[2], x[3])));
}
[[gnu::always_inline]] inline float largest_of(const float32x4_t (&x)[4]) noexcept {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[1]), vmaxq_f32(x[2], x[3])));
}

float round_weights(float* x, const float* factors, std::int32_t count, std::int8_t* to,
                    float* sum) noexcept {
  float32x4_t most[4], total[4];
  for (int k = 0; k < 4; ++k) most[k] = total[k] = vdupq_n_f32(0.0f);
  for (std::int32_t i = 0; i < count; i += 16) {
    for (int k = 0; k < 4; ++k) {
      float* const at = x + i + 4 * k;
      const float32x4_t four = vmulq_f32(vld1q_f32(at), vld1q_f32(factors + i + 4 * k));
      vst1q_f32(at, four);
      total[k] = vaddq_f32(total[k], four);
      most[k] = vmaxq_f32(most[k], four);
    }
  }
  *sum += sum_of(total);
  const float largest = largest_of(most);
  const float32x4_t factor = vdupq_n_f32(detail::to_bytes(largest));
  for (std::int32_t i = 0; i < count; i += 16) round_16(x + i, factor, to + i);
  return largest;
}

float round(const float* x, std::int32_t count, std::int8_t* to, float* sum) noexcept {
  float32x4_t most[4], total[4];
  for (int k = 0; k < 4; ++k) most[k] = total[k] = vdupq_n_f32(0.0f);
  std::int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int k = 0; k < 4; ++k) {
      const float32x4_t four = vld1q_f32(x + i + 4 * k);
      total[k] = vaddq_f32(total[k], four);
      most[k] = vmaxq_f32(most[k], vabsq_f32(four));
    }
  }
  for (; i < count; i += 4) {
    const float32x4_t four = vld1q_f32(x + i);
    total[0] = vaddq_f32(total[0], four);
    most[0] = vmaxq_f32(most[0], vabsq_f32(four));
  }
  *sum += sum_of(total);
  const float largest = largest_of(most);
  const float32x4_t factor = vdupq_n_f32(detail::to_bytes(largest));
  for (i = 0; i + 16 <= count; i += 16) round_16(x + i, factor, to + i);
  for (; i < count; i += 4) {
    const float32x4_t four = vfmaq_f32(vld1q_f32(kNearestFour), vld1q_f32(x + i), factor);
    const int8x16_t bytes = low_bytes(four, four, four, four);
    vst1q_lane_s32(reinterpret_cast<std::int32_t*>(to + i), vreinterpretq_s32_s8(bytes), 0);
  }
  return largest;
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionNeon{.adds_bytes = true,
                                                        .score = detail::score_tiles<score_tile>,
                                                        .fold = detail::fold_plain,
                                                        .means = means,
                                                        .weigh = weigh,
                                                        .project = project,
                                                        .round_weights = round_weights,
                                                        .round = round};

}  // namespace kvspan
