// SPDX-License-Identifier: Apache-2.0
// The products of attention/kernels/kernels.h for x86, written once over a vector type V that the AVX2 and
// AVX-512 files define in an anonymous namespace (besides what softmax_simd.h asks of it):
//     load_part, store_part(p, n): n < kWidth floats (n = 8 where kWidth = 16), zeros beyond
//     load_half, load_half_part: the same from f16
//     kRows: query rows of a block in rows form; kScoreTokens, kScoreVectors: a block of score_panels;
//     kWeighRows, kWeighVectors: a block of weigh_panels. All chosen to fill the registers.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/kernels/softmax_simd.h"

namespace kvspan::detail {

template <class V>
struct Load {
  static typename V::F whole(const float* p) { return V::load(p); }
  static typename V::F whole(const std::uint16_t* p) { return V::load_half(p); }
  static typename V::F part(const float* p, int n) { return V::load_part(p, n); }
  static typename V::F part(const std::uint16_t* p, int n) { return V::load_half_part(p, n); }
};

template <class T>
[[gnu::always_inline]] inline const T* rows_of_x86(const RowsView& rows) {
  return reinterpret_cast<const T*>(rows.data);
}

[[gnu::always_inline]] inline void prefetch_x86(const std::byte* next, std::ptrdiff_t token,
                                                std::ptrdiff_t bytes) {
  if (next == nullptr) return;
  for (std::ptrdiff_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(next + token * (bytes / 4) + i, 0, 2);
  }
}

// Scores of R query rows and N tokens (4 or 1).
template <class V, int R, int N, class T>
[[gnu::always_inline]] inline void score_block_x86(const float* queries, std::int32_t dim,
                                                   const T* keys, std::ptrdiff_t stride,
                                                   float* scores, std::ptrdiff_t score_stride) {
  using F = typename V::F;
  F sums[R][N];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < N; ++t) sums[r][t] = V::set(0.0f);
  }
  std::int32_t i = 0;
  for (; i + V::kWidth <= dim; i += V::kWidth) {
    F q[R];
    for (int r = 0; r < R; ++r) q[r] = V::load(queries + r * dim + i);
    for (int t = 0; t < N; ++t) {
      const F k = Load<V>::whole(keys + t * stride + i);
      for (int r = 0; r < R; ++r) sums[r][t] = V::fma(k, q[r], sums[r][t]);
    }
  }
  if (i < dim) {
    F q[R];
    for (int r = 0; r < R; ++r) q[r] = V::load_part(queries + r * dim + i, dim - i);
    for (int t = 0; t < N; ++t) {
      const F k = Load<V>::part(keys + t * stride + i, dim - i);
      for (int r = 0; r < R; ++r) sums[r][t] = V::fma(k, q[r], sums[r][t]);
    }
  }
  for (int r = 0; r < R; ++r) {
    if constexpr (N == 4) {
      V::store_sums(scores + r * score_stride, sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    } else {
      scores[r * score_stride] = V::hadd(sums[r][0]);
    }
  }
}

template <class V, int R, class T>
void score_run_x86(const float* queries, std::int32_t dim, const RowsView& keys,
                   std::int32_t tokens, const std::byte* next, float* scores,
                   std::ptrdiff_t score_stride) {
  const T* from = rows_of_x86<T>(keys);
  const std::ptrdiff_t stride = keys.stride;
  std::int32_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
    prefetch_x86(next, t, 4 * stride * std::ptrdiff_t{sizeof(T)});
    score_block_x86<V, R, 4>(queries, dim, from + t * stride, stride, scores + t, score_stride);
  }
  for (; t < tokens; ++t) {
    score_block_x86<V, R, 1>(queries, dim, from + t * stride, stride, scores + t, score_stride);
  }
}

// Tokens after which the next group of query rows takes its turn: their rows stay in the L1 cache.
inline constexpr std::int32_t kStretchX86 = 64;
// Rows of the next group when `left` remain: 4 as 2 + 2 where a block has only 3.
template <class V>
constexpr std::int32_t group_x86(std::int32_t left) {
  return left > V::kRows ? (left == 4 ? 2 : V::kRows) : left;
}

template <class V, class T>
void score_rows_x86(const float* queries, std::int32_t rows, std::int32_t dim, const RowsView& keys,
                    std::int32_t tokens, const std::byte* next, float* scores,
                    std::ptrdiff_t score_stride) {
  const std::int32_t stretch = rows <= V::kRows ? std::max(tokens, 1) : kStretchX86;
  for (std::int32_t t = 0; t < tokens; t += stretch) {
    const std::int32_t n = std::min(stretch, tokens - t);
    const RowsView from = keys.from(t);
    for (std::int32_t r = 0; r < rows;) {
      const std::int32_t group = group_x86<V>(rows - r);
      const std::byte* ahead = next == nullptr || r > 0 ? nullptr : next + (from.data - keys.data);
      const float* q = queries + r * dim;
      float* s = scores + r * score_stride + t;
      switch (group) {
        case 1:
          score_run_x86<V, 1, T>(q, dim, from, n, ahead, s, score_stride);
          break;
        case 2:
          score_run_x86<V, 2, T>(q, dim, from, n, ahead, s, score_stride);
          break;
        case 3:
          score_run_x86<V, 3, T>(q, dim, from, n, ahead, s, score_stride);
          break;
        default:
          score_run_x86<V, V::kRows, T>(q, dim, from, n, ahead, s, score_stride);
          break;
      }
      r += group;
    }
  }
}

template <class V>
void score_rows_simd(const float* queries, std::int32_t rows, std::int32_t dim,
                     const RowsView& keys, std::int32_t tokens, const std::byte* next,
                     float* scores, std::int32_t score_stride) noexcept {
  if (keys.element == Element::kF16) {
    score_rows_x86<V, std::uint16_t>(queries, rows, dim, keys, tokens, next, scores, score_stride);
  } else {
    score_rows_x86<V, float>(queries, rows, dim, keys, tokens, next, scores, score_stride);
  }
}

// Adds the weighted sum of D vectors of values' coordinates for R rows; with kPart, one vector of
// which only `part` coordinates count.
template <class V, int R, int D, bool kPart, class T>
[[gnu::always_inline]] inline void weigh_block_x86(const float* weights,
                                                   std::ptrdiff_t weight_stride, const T* values,
                                                   std::ptrdiff_t stride, std::int32_t tokens,
                                                   const std::byte* next, int part, float* out,
                                                   std::ptrdiff_t out_stride) {
  using F = typename V::F;
  F sums[R][D];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < D; ++i) {
      const float* from = out + r * out_stride + i * V::kWidth;
      sums[r][i] = kPart ? V::load_part(from, part) : V::load(from);
    }
  }
  for (std::int32_t t = 0; t < tokens; ++t) {
    if (t % 4 == 0) prefetch_x86(next, t, 4 * stride * std::ptrdiff_t{sizeof(T)});
    F w[R];
    for (int r = 0; r < R; ++r) w[r] = V::set(weights[r * weight_stride + t]);
    for (int i = 0; i < D; ++i) {
      const T* from = values + t * stride + i * V::kWidth;
      const F v = kPart ? Load<V>::part(from, part) : Load<V>::whole(from);
      for (int r = 0; r < R; ++r) sums[r][i] = V::fma(v, w[r], sums[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < D; ++i) {
      float* to = out + r * out_stride + i * V::kWidth;
      kPart ? V::store_part(to, sums[r][i], part) : V::store(to, sums[r][i]);
    }
  }
}

template <class V, int R, class T>
void weigh_run_x86(const float* weights, std::ptrdiff_t weight_stride, const RowsView& values,
                   std::int32_t dim, std::int32_t tokens, const std::byte* next, float* out) {
  constexpr int kVectors = 4;
  const T* from = rows_of_x86<T>(values);
  const std::ptrdiff_t stride = values.stride;
  std::int32_t i = 0;
  for (; i + kVectors * V::kWidth <= dim; i += kVectors * V::kWidth) {
    weigh_block_x86<V, R, kVectors, false>(weights, weight_stride, from + i, stride, tokens,
                                           i == 0 ? next : nullptr, 0, out + i, dim);
  }
  for (; i + V::kWidth <= dim; i += V::kWidth) {
    weigh_block_x86<V, R, 1, false>(weights, weight_stride, from + i, stride, tokens, nullptr, 0,
                                    out + i, dim);
  }
  if (i < dim) {
    weigh_block_x86<V, R, 1, true>(weights, weight_stride, from + i, stride, tokens, nullptr,
                                   dim - i, out + i, dim);
  }
}

template <class V, class T>
void weigh_rows_x86(const float* weights, std::ptrdiff_t weight_stride, std::int32_t rows,
                    const RowsView& values, std::int32_t dim, std::int32_t tokens,
                    const std::byte* next, float* out) {
  for (std::int32_t t = 0; t < tokens; t += kStretchX86) {
    const std::int32_t n = std::min(kStretchX86, tokens - t);
    const RowsView from = values.from(t);
    for (std::int32_t r = 0; r < rows;) {
      const std::int32_t group = group_x86<V>(rows - r);
      const std::byte* ahead =
          next == nullptr || r > 0 ? nullptr : next + (from.data - values.data);
      const float* w = weights + r * weight_stride + t;
      float* to = out + static_cast<std::ptrdiff_t>(r) * dim;
      switch (group) {
        case 1:
          weigh_run_x86<V, 1, T>(w, weight_stride, from, dim, n, ahead, to);
          break;
        case 2:
          weigh_run_x86<V, 2, T>(w, weight_stride, from, dim, n, ahead, to);
          break;
        case 3:
          weigh_run_x86<V, 3, T>(w, weight_stride, from, dim, n, ahead, to);
          break;
        default:
          weigh_run_x86<V, V::kRows, T>(w, weight_stride, from, dim, n, ahead, to);
          break;
      }
      r += group;
    }
  }
}

template <class V>
void weigh_rows_simd(const float* weights, std::int32_t weight_stride, std::int32_t rows,
                     const RowsView& values, std::int32_t dim, std::int32_t tokens,
                     const std::byte* next, float* out) noexcept {
  if (values.element == Element::kF16) {
    weigh_rows_x86<V, std::uint16_t>(weights, weight_stride, rows, values, dim, tokens, next, out);
  } else {
    weigh_rows_x86<V, float>(weights, weight_stride, rows, values, dim, tokens, next, out);
  }
}

}  // namespace kvspan::detail
