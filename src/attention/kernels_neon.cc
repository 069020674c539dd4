// SPDX-License-Identifier: Apache-2.0
// Attention kernels for Armv8.2 NEON. Products are blocked so that each converted vector of keys or
// values meets every query row of the block while it is in a register; at least 8 independent
// accumulators hide the latency of the two FMA pipes (4 cycles each on Neoverse N1).
#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "attention/kernels.h"
#include "attention/softmax_simd.h"

namespace kvspan::detail {
namespace {

struct Neon {
  using F = float32x4_t;
  static constexpr std::int32_t kWidth = 4;
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static F set(float x) { return vdupq_n_f32(x); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static F min(F a, F b) { return vminq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F pow2(F t) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23)); }
  static F keep(F s, std::int32_t token, const std::int32_t* begin, const std::int32_t* end) {
    const int32x4_t t = vdupq_n_s32(token);
    const uint32x4_t seen = vandq_u32(vcgeq_s32(t, vld1q_s32(begin)), vcltq_s32(t, vld1q_s32(end)));
    return vbslq_f32(seen, s, vdupq_n_f32(-std::numeric_limits<float>::infinity()));
  }
  static F zero_where_equal(F x, F y) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vceqq_f32(x, y)));
  }
  static float hmax(F x) { return vmaxvq_f32(x); }
  static float hadd(F x) { return vaddvq_f32(x); }
};

// sum += a * b, in the register that sum is in: left to itself the compiler copies accumulators to
// and fro, in the pipes that the multiplications need.
[[gnu::always_inline]] inline void accumulate(float32x4_t& sum, float32x4_t a, float32x4_t b) {
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
}
// sum += a * b[kLane].
template <int kLane>
[[gnu::always_inline]] inline void accumulate_lane(float32x4_t& sum, float32x4_t a, float32x4_t b) {
  asm("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(sum) : "w"(a), "w"(b), "i"(kLane));
}

struct Pair {
  float32x4_t low, high;
};
[[gnu::always_inline]] inline Pair load8(const float16_t* p) {
  const float16x8_t h = vld1q_f16(p);
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
[[gnu::always_inline]] inline Pair load8(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4)};
}

// FCVTL takes two cycles of one pipe, and only that pipe, so in the products with few rows it is
// the bottleneck. There half of the numbers are converted by integer operations, which the other
// pipe can do: exponent and mantissa shifted into place, the copies of the sign between them
// cleared. This leaves out the bias: the upper four numbers arrive times kMixedScale, exactly (f32
// holds f16's subnormals times 2^-112), and their factor is multiplied by its inverse. Infinity,
// the only number this gets wrong, becomes 2^16.
constexpr float kMixedScale = 0x1p-112f;
[[gnu::always_inline]] inline Pair load8_mixed(const float16_t* p) {
  const int16x8_t h = vld1q_s16(reinterpret_cast<const std::int16_t*>(p));
  const int32x4_t sign_and_digits = vdupq_n_s32(static_cast<std::int32_t>(0x8fffffffu));
  return {vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_s16(h))),
          vreinterpretq_f32_s32(vandq_s32(vshll_high_n_s16(h, 13), sign_and_digits))};
}

template <class T>
const T* rows_of(const RowsView& rows) {
  return reinterpret_cast<const T*>(rows.data);
}

// Asks for the bytes that rows [token, token + 4) will have in what is read next.
[[gnu::always_inline]] inline void prefetch(const std::byte* next, std::ptrdiff_t token,
                                            std::ptrdiff_t row_bytes) {
  const std::byte* from = next + token * row_bytes;
  for (std::ptrdiff_t i = 0; i < 4 * row_bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// Scores of R query rows and N tokens (N = 4 or 1), times `factor`.
template <int R, int N, bool kMixed, class T>
[[gnu::always_inline]] inline void score_block(const float* queries, std::int32_t dim,
                                               const T* keys, std::ptrdiff_t stride, float factor,
                                               float* scores, std::ptrdiff_t score_stride) {
  float32x4_t sums[R][N];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < N; ++t) sums[r][t] = vdupq_n_f32(0.0f);
  }
  for (std::int32_t i = 0; i < dim; i += 8) {
    Pair q[R];
    for (int r = 0; r < R; ++r) q[r] = load8(queries + r * dim + i);
    for (int t = 0; t < N; ++t) {
      Pair k;
      if constexpr (kMixed) {
        k = load8_mixed(keys + t * stride + i);
      } else {
        k = load8(keys + t * stride + i);
      }
      for (int r = 0; r < R; ++r) accumulate(sums[r][t], k.low, q[r].low);
      for (int r = 0; r < R; ++r) accumulate(sums[r][t], k.high, q[r].high);
    }
  }
  for (int r = 0; r < R; ++r) {
    if constexpr (N == 4) {
      const float32x4_t sum =
          vpaddq_f32(vpaddq_f32(sums[r][0], sums[r][1]), vpaddq_f32(sums[r][2], sums[r][3]));
      vst1q_f32(scores + r * score_stride, vmulq_n_f32(sum, factor));
    } else {
      scores[r * score_stride] = vaddvq_f32(sums[r][0]) * factor;
    }
  }
}

template <int R, bool kMixed, class T>
void score_run(const float* queries, std::int32_t dim, const T* keys, std::ptrdiff_t stride,
               std::int32_t tokens, float factor, const std::byte* next, float* scores,
               std::ptrdiff_t score_stride) {
  std::int32_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
    const T* row = keys + t * stride;
    if (next != nullptr) prefetch(next, t, stride * std::ptrdiff_t{sizeof(T)});
    score_block<R, 4, kMixed>(queries, dim, row, stride, factor, scores + t, score_stride);
  }
  for (; t < tokens; ++t) {
    score_block<R, 1, kMixed>(queries, dim, keys + t * stride, stride, factor, scores + t,
                              score_stride);
  }
}

// Up to four query rows over all tokens. For mixed conversion a copy of the queries takes the
// scales: 2^-16 and 2^96 rather than 1 and 2^112, so that no query below 2^31 overflows.
template <int R, class T>
void score_group(const float* queries, std::int32_t dim, const RowsView& keys, std::int32_t tokens,
                 const std::byte* next, float* scores, std::ptrdiff_t score_stride) {
  constexpr std::int32_t kMaxMixedDim = 512;
  if (std::is_same_v<T, float> || dim > kMaxMixedDim) {
    score_run<R, false>(queries, dim, rows_of<T>(keys), keys.stride, tokens, 1.0f, next, scores,
                        score_stride);
  } else if constexpr (std::is_same_v<T, float16_t>) {
    float scaled[R * kMaxMixedDim];
    for (std::int32_t i = 0; i < R * dim; i += 8) {
      const Pair q = load8(queries + i);
      vst1q_f32(scaled + i, vmulq_n_f32(q.low, 0x1p-16f));
      vst1q_f32(scaled + i + 4, vmulq_n_f32(q.high, 0x1p-16f / kMixedScale));
    }
    score_run<R, true>(scaled, dim, rows_of<T>(keys), keys.stride, tokens, 0x1p16f, next, scores,
                       score_stride);
  }
}

// Tokens after which the next group of query rows takes its turn: their keys stay in the L1 cache.
constexpr std::int32_t kRun = 64;

template <class T>
void score_rows_typed(const float* queries, std::int32_t rows, std::int32_t dim,
                      const RowsView& keys, std::int32_t tokens, const std::byte* next,
                      float* scores, std::int32_t score_stride) {
  const std::int32_t run = rows <= 4 ? tokens : kRun;
  for (std::int32_t t = 0; t < tokens; t += run) {
    const std::int32_t n = std::min(run, tokens - t);
    const RowsView from = keys.from(t);
    for (std::int32_t r = 0; r < rows; r += 4) {
      const std::byte* ahead = next == nullptr || r > 0 ? nullptr : next + (from.data - keys.data);
      const float* q = queries + r * dim;
      float* s = scores + static_cast<std::ptrdiff_t>(r) * score_stride + t;
      switch (std::min(4, rows - r)) {
        case 1:
          score_group<1, T>(q, dim, from, n, ahead, s, score_stride);
          break;
        case 2:
          score_group<2, T>(q, dim, from, n, ahead, s, score_stride);
          break;
        case 3:
          score_group<3, T>(q, dim, from, n, ahead, s, score_stride);
          break;
        default:
          score_group<4, T>(q, dim, from, n, ahead, s, score_stride);
          break;
      }
    }
  }
}

void score_rows(const float* queries, std::int32_t rows, std::int32_t dim, const RowsView& keys,
                std::int32_t tokens, const std::byte* next, float* scores,
                std::int32_t score_stride) noexcept {
  if (keys.element == Element::kF16) {
    score_rows_typed<float16_t>(queries, rows, dim, keys, tokens, next, scores, score_stride);
  } else {
    score_rows_typed<float>(queries, rows, dim, keys, tokens, next, scores, score_stride);
  }
}

// Up to this many rows there are registers for weights in both scales of mixed conversion.
constexpr int kMaxMixedRows = 3;

// Adds the products of one token, D coordinates and R rows; `low` and `high` hold the weights for
// the lower and upper four of each eight coordinates.
template <int R, int D, int kLane, class T>
[[gnu::always_inline]] inline void weigh_token(float32x4_t (&sums)[R][D / 4], const T* row,
                                               const float32x4_t* low, const float32x4_t* high) {
  for (int i = 0; i < D / 8; ++i) {
    Pair v;
    if constexpr (std::is_same_v<T, float16_t> && R <= kMaxMixedRows) {
      v = load8_mixed(row + i * 8);
    } else {
      v = load8(row + i * 8);
      high = low;
    }
    for (int r = 0; r < R; ++r) {
      accumulate_lane<kLane>(sums[r][2 * i], v.low, low[r]);
      accumulate_lane<kLane>(sums[r][2 * i + 1], v.high, high[r]);
    }
  }
}

// Adds the weighted sum of D values' coordinates (a multiple of 8) for R rows.
template <int R, int D, class T>
[[gnu::always_inline]] inline void weigh_block(const float* weights, std::ptrdiff_t weight_stride,
                                               const T* values, std::ptrdiff_t stride,
                                               std::int32_t tokens, const std::byte* next,
                                               float* out, std::ptrdiff_t out_stride) {
  float32x4_t sums[R][D / 4];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < D / 4; ++i) sums[r][i] = vld1q_f32(out + r * out_stride + i * 4);
  }
  float32x4_t low[R], high[R];
  std::int32_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
    for (int r = 0; r < R; ++r) {
      low[r] = vld1q_f32(weights + r * weight_stride + t);
      high[r] = vmulq_n_f32(low[r], 1.0f / kMixedScale);
    }
    const T* row = values + t * stride;
    if (next != nullptr) prefetch(next, t, stride * std::ptrdiff_t{sizeof(T)});
    weigh_token<R, D, 0>(sums, row, low, high);
    weigh_token<R, D, 1>(sums, row + stride, low, high);
    weigh_token<R, D, 2>(sums, row + 2 * stride, low, high);
    weigh_token<R, D, 3>(sums, row + 3 * stride, low, high);
  }
  for (; t < tokens; ++t) {
    for (int r = 0; r < R; ++r) {
      low[r] = vdupq_n_f32(weights[r * weight_stride + t]);
      high[r] = vmulq_n_f32(low[r], 1.0f / kMixedScale);
    }
    weigh_token<R, D, 0>(sums, values + t * stride, low, high);
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < D / 4; ++i) vst1q_f32(out + r * out_stride + i * 4, sums[r][i]);
  }
}

template <int R, class T>
void weigh_group(const float* weights, std::ptrdiff_t weight_stride, const T* values,
                 std::ptrdiff_t stride, std::int32_t dim, std::int32_t tokens,
                 const std::byte* next, float* out) {
  constexpr int kBlock = R <= 2 ? 32 : 16;  // at most 16 accumulators
  std::int32_t i = 0;
  for (; i + kBlock <= dim; i += kBlock) {
    weigh_block<R, kBlock>(weights, weight_stride, values + i, stride, tokens,
                           i == 0 ? next : nullptr, out + i, dim);
  }
  for (; i < dim; i += 8) {
    weigh_block<R, 8>(weights, weight_stride, values + i, stride, tokens, i == 0 ? next : nullptr,
                      out + i, dim);
  }
}

template <class T>
void weigh_rows_typed(const float* weights, std::ptrdiff_t weight_stride, std::int32_t rows,
                      const RowsView& values, std::int32_t dim, std::int32_t tokens,
                      const std::byte* next, float* out) {
  for (std::int32_t t = 0; t < tokens; t += kRun) {
    const std::int32_t n = std::min(kRun, tokens - t);
    const T* from = rows_of<T>(values.from(t));
    for (std::int32_t r = 0; r < rows; r += 4) {
      const std::byte* ahead =
          next == nullptr || r > 0 ? nullptr : next + (values.from(t).data - values.data);
      const float* w = weights + r * weight_stride + t;
      float* to = out + r * dim;
      switch (std::min(4, rows - r)) {
        case 1:
          weigh_group<1>(w, weight_stride, from, values.stride, dim, n, ahead, to);
          break;
        case 2:
          weigh_group<2>(w, weight_stride, from, values.stride, dim, n, ahead, to);
          break;
        case 3:
          weigh_group<3>(w, weight_stride, from, values.stride, dim, n, ahead, to);
          break;
        default:
          weigh_group<4>(w, weight_stride, from, values.stride, dim, n, ahead, to);
          break;
      }
    }
  }
}

void weigh_rows(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                const RowsView& values, std::int32_t dim, std::int32_t tokens,
                const std::byte* next, float* out) noexcept {
  if (values.element == Element::kF16) {
    weigh_rows_typed<float16_t>(weights, weight_stride, rows, values, dim, tokens, next, out);
  } else {
    weigh_rows_typed<float>(weights, weight_stride, rows, values, dim, tokens, next, out);
  }
}

void widen(const RowsView& rows, std::int32_t dim, std::int32_t tokens, float* to) noexcept {
  for (std::int32_t t = 0; t < tokens; ++t, to += dim) {
    const RowsView row = rows.from(t);
    if (rows.element == Element::kF32) {
      std::memcpy(to, row.data, static_cast<std::size_t>(dim) * sizeof(float));
      continue;
    }
    for (std::int32_t i = 0; i < dim; i += 8) {
      const Pair x = load8(rows_of<float16_t>(row) + i);
      vst1q_f32(to + i, x.low);
      vst1q_f32(to + i + 4, x.high);
    }
  }
}

// 8 tokens x 8 query rows: keys give the lanes, queries the vectors.
[[gnu::always_inline]] inline void score_tile_block(const float* panel, std::int32_t dim,
                                                    const float* keys, float* scores,
                                                    std::ptrdiff_t rows) {
  float32x4_t sums[8][2];
  for (auto& pair : sums) pair[0] = pair[1] = vdupq_n_f32(0.0f);
  for (std::int32_t i = 0; i < dim; i += 4) {
    float32x4_t k[8];
    for (int t = 0; t < 8; ++t) k[t] = vld1q_f32(keys + t * dim + i);
    const auto step = [&](auto lane) __attribute__((always_inline)) {
      const float32x4_t q0 = vld1q_f32(panel + (i + lane.value) * kPanelRows);
      const float32x4_t q1 = vld1q_f32(panel + (i + lane.value) * kPanelRows + 4);
      for (int t = 0; t < 8; ++t) {
        accumulate_lane<decltype(lane)::value>(sums[t][0], q0, k[t]);
        accumulate_lane<decltype(lane)::value>(sums[t][1], q1, k[t]);
      }
    };
    step(std::integral_constant<int, 0>{});
    step(std::integral_constant<int, 1>{});
    step(std::integral_constant<int, 2>{});
    step(std::integral_constant<int, 3>{});
  }
  for (int t = 0; t < 8; ++t) {
    vst1q_f32(scores + t * rows, sums[t][0]);
    vst1q_f32(scores + t * rows + 4, sums[t][1]);
  }
}

void score_tile(const float* panels, std::int32_t rows, std::int32_t dim, const float* keys,
                std::int32_t tokens, float* scores) noexcept {
  for (std::int32_t t = 0; t < tokens; t += 8) {
    for (std::int32_t r = 0; r < rows; r += 8) {
      const float* panel = panels + r / kPanelRows * kPanelRows * dim + r % kPanelRows;
      score_tile_block(panel, dim, keys + static_cast<std::ptrdiff_t>(t) * dim,
                       scores + static_cast<std::ptrdiff_t>(t) * rows + r, rows);
    }
  }
}

// 8 query rows x 8 coordinates: weights give the lanes, values the vectors.
[[gnu::always_inline]] inline void weigh_tile_block(const float* weights, std::ptrdiff_t rows,
                                                    const float* values, std::ptrdiff_t dim,
                                                    std::int32_t tokens, const float* decay,
                                                    float* out) {
  float32x4_t sums[8][2];
  for (int r = 0; r < 8; ++r) {
    const float32x4_t factor = vdupq_n_f32(decay[r]);
    sums[r][0] = vmulq_f32(vld1q_f32(out + r * dim), factor);
    sums[r][1] = vmulq_f32(vld1q_f32(out + r * dim + 4), factor);
  }
  for (std::int32_t t = 0; t < tokens; ++t) {
    const float32x4_t w0 = vld1q_f32(weights + t * rows);
    const float32x4_t w1 = vld1q_f32(weights + t * rows + 4);
    const float32x4_t v0 = vld1q_f32(values + t * dim);
    const float32x4_t v1 = vld1q_f32(values + t * dim + 4);
    const auto row = [&](auto r) __attribute__((always_inline)) {
      constexpr int kRow = decltype(r)::value;
      const float32x4_t w = kRow < 4 ? w0 : w1;
      accumulate_lane<kRow % 4>(sums[kRow][0], v0, w);
      accumulate_lane<kRow % 4>(sums[kRow][1], v1, w);
    };
    row(std::integral_constant<int, 0>{});
    row(std::integral_constant<int, 1>{});
    row(std::integral_constant<int, 2>{});
    row(std::integral_constant<int, 3>{});
    row(std::integral_constant<int, 4>{});
    row(std::integral_constant<int, 5>{});
    row(std::integral_constant<int, 6>{});
    row(std::integral_constant<int, 7>{});
  }
  for (int r = 0; r < 8; ++r) {
    vst1q_f32(out + r * dim, sums[r][0]);
    vst1q_f32(out + r * dim + 4, sums[r][1]);
  }
}

void weigh_tile(const float* weights, std::int32_t rows, const float* values, std::int32_t dim,
                std::int32_t tokens, const float* decay, float* out) noexcept {
  for (std::int32_t i = 0; i < dim; i += 8) {
    for (std::int32_t r = 0; r < rows; r += 8) {
      weigh_tile_block(weights + r, rows, values + i, dim, tokens, decay + r,
                       out + static_cast<std::ptrdiff_t>(r) * dim + i);
    }
  }
}

}  // namespace

const AttentionKernels kAttentionKernelsNeon{score_rows, weigh_rows,     soften_row_simd<Neon>,
                                             widen,      score_tile,     soften_tile_simd<Neon>,
                                             weigh_tile, cap_simd<Neon>, exp2_row_simd<Neon>};

}  // namespace kvspan::detail
