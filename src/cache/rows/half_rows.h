// SPDX-License-Identifier: Apache-2.0
// Sums of rows that are stored in f16: what moving a token into coefficient space costs.
#pragma once

#include <cstddef>

#include "base/half.h"

namespace kvspan {

// The most rows and vectors of one call; callers with more make several calls.
inline constexpr std::size_t kHalfRows = 8, kHalfVectors = 4;

// vectors[v * n + i] += factors[v * kHalfRows + r] * rows[r * stride + i], r < rows.count <=
// kHalfRows, v < count <= kHalfVectors, summed in f32: a row is widened once for all vectors. n is
// a multiple of 4; numbers of the rows are finite, factors below 2^64. Levels differ in rounding
// alone.
struct HalfRows {
  const Half* numbers;
  std::size_t stride, count;
};
void add_half_rows(const HalfRows& rows, const float* factors, std::size_t count, std::size_t n,
                   float* vectors) noexcept;

namespace detail {
// add.template operator()<V>(factors, vectors) for V vectors: all that meet at once, or one by one.
template <class Add>
[[gnu::always_inline]] inline void in_vectors(const float* factors, std::size_t count,
                                              std::size_t n, float* vectors, const Add& add) {
  if (count == kHalfVectors) return add.template operator()<int{kHalfVectors}>(factors, vectors);
  for (std::size_t v = 0; v < count; ++v) {
    add.template operator()<1>(factors + v * kHalfRows, vectors + v * n);
  }
}

void add_half_rows_ref(const HalfRows& rows, const float* factors, std::size_t count, std::size_t n,
                       float* vectors) noexcept;
void add_half_rows_neon(const HalfRows& rows, const float* factors, std::size_t count,
                        std::size_t n, float* vectors) noexcept;
void add_half_rows_avx2(const HalfRows& rows, const float* factors, std::size_t count,
                        std::size_t n, float* vectors) noexcept;
void add_half_rows_avx512(const HalfRows& rows, const float* factors, std::size_t count,
                          std::size_t n, float* vectors) noexcept;
}  // namespace detail

}  // namespace kvspan
