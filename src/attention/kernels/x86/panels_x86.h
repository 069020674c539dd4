// SPDX-License-Identifier: Apache-2.0
// Panel form of attention/kernels/kernels.h for x86, over the vector types of kernels_x86.h: one operand is
// broadcast from memory, the other read as vectors.
#pragma once

#include <cstring>

#include "attention/kernels/x86/kernels_x86.h"

namespace kvspan::detail {

template <class V>
void widen_simd(const RowsView& rows, std::int32_t dim, std::int32_t tokens, float* to) noexcept {
  for (std::int32_t t = 0; t < tokens; ++t, to += dim) {
    const RowsView row = rows.from(t);
    if (rows.element == Element::kF32) {
      std::memcpy(to, row.data, static_cast<std::size_t>(dim) * sizeof(float));
      continue;
    }
    const auto* from = rows_of_x86<std::uint16_t>(row);
    std::int32_t i = 0;
    for (; i + V::kWidth <= dim; i += V::kWidth) V::store(to + i, V::load_half(from + i));
    if (i < dim) V::store_part(to + i, V::load_half_part(from + i, dim - i), dim - i);
  }
}

// N tokens x C vectors of query rows. The vectors are consecutive in a panel, then in the next.
template <class V, int N, int C>
[[gnu::always_inline]] inline void score_panels_block_x86(const float* panel, std::int32_t dim,
                                                        const float* keys, float* scores,
                                                        std::ptrdiff_t rows) {
  constexpr int kPerPanel = kPanelRows / V::kWidth;
  typename V::F sums[N][C];
  for (int t = 0; t < N; ++t) {
    for (int c = 0; c < C; ++c) sums[t][c] = V::set(0.0f);
  }
  for (std::int32_t i = 0; i < dim; ++i) {
    typename V::F q[C];
    for (int c = 0; c < C; ++c) {
      const float* from = panel + c / kPerPanel * kPanelRows * dim;
      q[c] = V::load(from + i * kPanelRows + c % kPerPanel * V::kWidth);
    }
    for (int t = 0; t < N; ++t) {
      const auto k = V::set(keys[t * dim + i]);
      for (int c = 0; c < C; ++c) sums[t][c] = V::fma(k, q[c], sums[t][c]);
    }
  }
  for (int t = 0; t < N; ++t) {
    for (int c = 0; c < C; ++c) V::store(scores + t * rows + c * V::kWidth, sums[t][c]);
  }
}

template <class V, int C>
void score_panel_x86(const float* panel, std::int32_t rows, std::int32_t dim, const float* keys,
                     std::int32_t tokens, float* scores) {
  std::int32_t t = 0;
  const auto block = [&]<int N>(std::integral_constant<int, N>) __attribute__((always_inline)) {
    score_panels_block_x86<V, N, C>(panel, dim, keys + static_cast<std::ptrdiff_t>(t) * dim,
                                  scores + static_cast<std::ptrdiff_t>(t) * rows, rows);
    t += N;
  };
  while (t + V::kScoreTokens <= tokens) block(std::integral_constant<int, V::kScoreTokens>{});
  while (t + 2 <= tokens) block(std::integral_constant<int, 2>{});
  if (t < tokens) block(std::integral_constant<int, 1>{});
}

template <class V>
void score_panels_simd(const float* panels, std::int32_t rows, std::int32_t dim, const float* keys,
                     std::int32_t tokens, float* scores) noexcept {
  constexpr std::int32_t kWide = V::kScoreVectors * V::kWidth;
  std::int32_t r = 0;
  for (; r + kWide <= rows; r += kWide) {
    score_panel_x86<V, V::kScoreVectors>(panels + static_cast<std::ptrdiff_t>(r) * dim, rows, dim,
                                        keys, tokens, scores + r);
  }
  for (; r < rows; r += kPanelRows) {
    score_panel_x86<V, kPanelRows / V::kWidth>(panels + static_cast<std::ptrdiff_t>(r) * dim, rows,
                                               dim, keys, tokens, scores + r);
  }
}

// kWeighRows query rows x D vectors of coordinates; with kPart, one vector of `part` coordinates.
template <class V, int D, bool kPart>
[[gnu::always_inline]] inline void weigh_panels_block_x86(const float* weights, std::ptrdiff_t rows,
                                                        const float* values, std::ptrdiff_t dim,
                                                        std::int32_t tokens, const float* decay,
                                                        int part, float* out) {
  constexpr int kRows = V::kWeighRows;
  typename V::F sums[kRows][D];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < D; ++i) {
      const float* from = out + r * dim + i * V::kWidth;
      sums[r][i] = V::mul(kPart ? V::load_part(from, part) : V::load(from), V::set(decay[r]));
    }
  }
  for (std::int32_t t = 0; t < tokens; ++t) {
    typename V::F v[D];
    for (int i = 0; i < D; ++i) {
      const float* from = values + t * dim + i * V::kWidth;
      v[i] = kPart ? V::load_part(from, part) : V::load(from);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto w = V::set(weights[t * rows + r]);
      for (int i = 0; i < D; ++i) sums[r][i] = V::fma(w, v[i], sums[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < D; ++i) {
      float* to = out + r * dim + i * V::kWidth;
      kPart ? V::store_part(to, sums[r][i], part) : V::store(to, sums[r][i]);
    }
  }
}

template <class V, int D, bool kPart>
void weigh_columns_x86(const float* weights, std::int32_t rows, const float* values,
                       std::int32_t dim, std::int32_t tokens, const float* decay, int part,
                       float* out) {
  for (std::int32_t r = 0; r < rows; r += V::kWeighRows) {
    weigh_panels_block_x86<V, D, kPart>(weights + r, rows, values, dim, tokens, decay + r, part,
                                      out + static_cast<std::ptrdiff_t>(r) * dim);
  }
}

template <class V>
void weigh_panels_simd(const float* weights, std::int32_t rows, const float* values, std::int32_t dim,
                     std::int32_t tokens, const float* decay, float* out) noexcept {
  constexpr std::int32_t kWide = V::kWeighVectors * V::kWidth;
  std::int32_t i = 0;
  for (; i + kWide <= dim; i += kWide) {
    weigh_columns_x86<V, V::kWeighVectors, false>(weights, rows, values + i, dim, tokens, decay, 0,
                                                  out + i);
  }
  for (; i + V::kWidth <= dim; i += V::kWidth) {
    weigh_columns_x86<V, 1, false>(weights, rows, values + i, dim, tokens, decay, 0, out + i);
  }
  if (i < dim) {
    weigh_columns_x86<V, 1, true>(weights, rows, values + i, dim, tokens, decay, dim - i, out + i);
  }
}

}  // namespace kvspan::detail
