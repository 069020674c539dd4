// SPDX-License-Identifier: Apache-2.0
// FCVTL takes two cycles of one pipe, so numbers are widened by integer operations: exponent and
// mantissa shifted into place, the copies of the sign between them cleared. That leaves out the
// bias: numbers arrive times 2^-112, exactly, and factors and sums take 2^56 each.
#include <arm_neon.h>

#include "cache/rows/half_rows.h"

namespace kvspan::detail {
namespace {

constexpr float kHalfOfBias = 0x1p56f;

[[gnu::always_inline]] inline float32x4_t cleared(int32x4_t shifted) {
  const int32x4_t sign_and_digits = vdupq_n_s32(static_cast<std::int32_t>(0x8fffffffu));
  return vreinterpretq_f32_s32(vandq_s32(shifted, sign_and_digits));
}

template <int V>
struct Sums {
  float32x4_t low[V], high[V];
};

// A row, whose factors are lane kLane of each vector's.
template <int V, int kLane>
[[gnu::always_inline]] inline void add_row(Sums<V>& sums, const std::int16_t* row,
                                           const float32x4_t (&factors)[V]) {
  const int16x8_t h = vld1q_s16(row);
  const float32x4_t low = cleared(vshll_n_s16(vget_low_s16(h), 13));
  const float32x4_t high = cleared(vshll_high_n_s16(h, 13));
  for (int v = 0; v < V; ++v) sums.low[v] = vfmaq_laneq_f32(sums.low[v], low, factors[v], kLane);
  for (int v = 0; v < V; ++v) sums.high[v] = vfmaq_laneq_f32(sums.high[v], high, factors[v], kLane);
}

// Eight numbers of all rows.
template <int V>
[[gnu::always_inline]] inline void add_rows(const std::int16_t* row, std::size_t stride,
                                            const float32x4_t (&first)[V],
                                            const float32x4_t (&last)[V], Sums<V>& sums) {
  for (int v = 0; v < V; ++v) sums.low[v] = sums.high[v] = vdupq_n_f32(0.0f);
  add_row<V, 0>(sums, row, first);
  add_row<V, 1>(sums, row + stride, first);
  add_row<V, 2>(sums, row + 2 * stride, first);
  add_row<V, 3>(sums, row + 3 * stride, first);
  add_row<V, 0>(sums, row + 4 * stride, last);
  add_row<V, 1>(sums, row + 5 * stride, last);
  add_row<V, 2>(sums, row + 6 * stride, last);
  add_row<V, 3>(sums, row + 7 * stride, last);
}

template <int V>
void add_all(const Half* numbers, std::size_t stride, const float* factors, std::size_t n,
             float* to) {
  const auto* rows = reinterpret_cast<const std::int16_t*>(numbers);
  const float32x4_t unit = vdupq_n_f32(kHalfOfBias);
  float32x4_t first[V], last[V];
  for (int v = 0; v < V; ++v) {
    first[v] = vmulq_f32(vld1q_f32(factors + v * std::ptrdiff_t{kHalfRows}), unit);
    last[v] = vmulq_f32(vld1q_f32(factors + v * std::ptrdiff_t{kHalfRows} + 4), unit);
  }
  Sums<V> sums;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    add_rows(rows + i, stride, first, last, sums);
    for (int v = 0; v < V; ++v) {
      float* const at = to + static_cast<std::size_t>(v) * n + i;
      vst1q_f32(at, vfmaq_f32(vld1q_f32(at), sums.low[v], unit));
      vst1q_f32(at + 4, vfmaq_f32(vld1q_f32(at + 4), sums.high[v], unit));
    }
  }
  if (i == n) return;
  std::int16_t four[kHalfRows * 8] = {};
  for (std::size_t r = 0; r < kHalfRows; ++r)
    vst1_s16(four + 8 * r, vld1_s16(rows + r * stride + i));
  add_rows(four, 8, first, last, sums);
  for (int v = 0; v < V; ++v) {
    float* const at = to + static_cast<std::size_t>(v) * n + i;
    vst1q_f32(at, vfmaq_f32(vld1q_f32(at), sums.low[v], unit));
  }
}

}  // namespace

void add_half_rows_neon(const HalfRows& rows, const float* factors, std::size_t count,
                        std::size_t n, float* vectors) noexcept {
  if (rows.count < kHalfRows) return add_half_rows_ref(rows, factors, count, n, vectors);
  in_vectors(factors, count, n, vectors, [&]<int V>(const float* by, float* to) {
    add_all<V>(rows.numbers, rows.stride, by, n, to);
  });
}

}  // namespace kvspan::detail
