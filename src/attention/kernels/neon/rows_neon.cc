// SPDX-License-Identifier: Apache-2.0
// Attention kernels for Armv8.2 NEON, rows form. Each converted vector of keys or values meets
// every query row of the block while it is in a register; at least 8 independent accumulators hide
// the latency of the two FMA pipes (4 cycles each on Neoverse N1).
#include <algorithm>
#include <type_traits>

#include "attention/kernels/neon/neon.h"

namespace kvspan::detail {
namespace {

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

// Scores of R query rows and N tokens (N = 4 or 1), times `factor`.
template <int R, int N, bool kMixed, class T>
[[gnu::always_inline]] inline void score_block(const float* queries, std::int32_t dim,
                                               const T* keys, std::ptrdiff_t stride, float factor,
                                               float* scores, std::ptrdiff_t score_stride) {
  float32x4_t sums[R][N];
  const auto step = [&](std::int32_t i, auto first) __attribute__((always_inline)) {
    Pair q[R];
    for (int r = 0; r < R; ++r) q[r] = load8(queries + r * dim + i);
    for (int t = 0; t < N; ++t) {
      Pair k;
      if constexpr (kMixed) {
        k = load8_mixed(keys + t * stride + i);
      } else {
        k = load8(keys + t * stride + i);
      }
      for (int r = 0; r < R; ++r) {
        if constexpr (decltype(first)::value) {
          sums[r][t] = vmulq_f32(k.low, q[r].low);
        } else {
          accumulate(sums[r][t], k.low, q[r].low);
        }
      }
      for (int r = 0; r < R; ++r) accumulate(sums[r][t], k.high, q[r].high);
    }
  };
  step(0, std::true_type{});
  for (std::int32_t i = 8; i < dim; i += 8) step(i, std::false_type{});
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
  const std::ptrdiff_t row_bytes = stride * std::ptrdiff_t{sizeof(T)};
  std::int32_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
    const T* row = keys + t * stride;
    ask_for(next, t * row_bytes, 4 * row_bytes);
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
constexpr std::int32_t kStretch = 64;

template <class T>
void score_rows_typed(const float* queries, std::int32_t rows, std::int32_t dim,
                      const RowsView& keys, std::int32_t tokens, const std::byte* next,
                      float* scores, std::int32_t score_stride) {
  const std::int32_t stretch = rows <= 4 ? tokens : kStretch;
  for (std::int32_t t = 0; t < tokens; t += stretch) {
    const std::int32_t n = std::min(stretch, tokens - t);
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

}  // namespace

void score_rows_neon(const float* queries, std::int32_t rows, std::int32_t dim,
                     const RowsView& keys, std::int32_t tokens, const std::byte* next,
                     float* scores, std::int32_t score_stride) noexcept {
  if (keys.element == Element::kF16) {
    score_rows_typed<float16_t>(queries, rows, dim, keys, tokens, next, scores, score_stride);
  } else {
    score_rows_typed<float>(queries, rows, dim, keys, tokens, next, scores, score_stride);
  }
}

namespace {

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
  const std::ptrdiff_t row_bytes = stride * std::ptrdiff_t{sizeof(T)};
  std::int32_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
    for (int r = 0; r < R; ++r) {
      low[r] = vld1q_f32(weights + r * weight_stride + t);
      high[r] = vmulq_n_f32(low[r], 1.0f / kMixedScale);
    }
    const T* row = values + t * stride;
    ask_for(next, t * row_bytes, 4 * row_bytes);
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
  if constexpr (kBlock > 16) {  // four sums a row: two would wait for each other
    for (; i + 16 <= dim; i += 16) {
      weigh_block<R, 16>(weights, weight_stride, values + i, stride, tokens,
                         i == 0 ? next : nullptr, out + i, dim);
    }
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
  for (std::int32_t t = 0; t < tokens; t += kStretch) {
    const std::int32_t n = std::min(kStretch, tokens - t);
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

}  // namespace

void weigh_rows_neon(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                     const RowsView& values, std::int32_t dim, std::int32_t tokens,
                     const std::byte* next, float* out) noexcept {
  if (values.element == Element::kF16) {
    weigh_rows_typed<float16_t>(weights, weight_stride, rows, values, dim, tokens, next, out);
  } else {
    weigh_rows_typed<float>(weights, weight_stride, rows, values, dim, tokens, next, out);
  }
}

}  // namespace kvspan::detail
