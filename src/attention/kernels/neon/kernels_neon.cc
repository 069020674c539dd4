// SPDX-License-Identifier: Apache-2.0
// Attention kernels for Armv8.2 NEON: panel form, and the table. Blocks of 8 x 8 sums take 16 of the
// 32 registers; one operand is read as lanes, the other as vectors, so neither needs transposing.
#include <cstring>
#include <limits>
#include <type_traits>

#include "attention/kernels/neon/neon.h"
#include "attention/kernels/softmax_simd.h"
#include "attention/kernels/vector_arithmetic.h"

namespace kvspan::detail {
namespace {

struct Neon : VectorArithmetic {
  using F = float32x4_t;
  static constexpr std::int32_t kWidth = 4;
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static F set(float x) { return vdupq_n_f32(x); }
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static F min(F a, F b) { return vminq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F fma(F a, F b, const float (&c)[4]) {
    F sum = fresh<F>(c, a, b);
    accumulate(sum, a, b);
    return sum;
  }
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
[[gnu::always_inline]] inline void score_panels_block(const float* panel, std::int32_t dim,
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

void score_panels(const float* panels, std::int32_t rows, std::int32_t dim, const float* keys,
                std::int32_t tokens, float* scores) noexcept {
  for (std::int32_t t = 0; t < tokens; t += 8) {
    for (std::int32_t r = 0; r < rows; r += 8) {
      const float* panel = panels + r / kPanelRows * kPanelRows * dim + r % kPanelRows;
      score_panels_block(panel, dim, keys + static_cast<std::ptrdiff_t>(t) * dim,
                       scores + static_cast<std::ptrdiff_t>(t) * rows + r, rows);
    }
  }
}

// 8 query rows x 8 coordinates: weights give the lanes, values the vectors.
[[gnu::always_inline]] inline void weigh_panels_block(const float* weights, std::ptrdiff_t rows,
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

void weigh_panels(const float* weights, std::int32_t rows, const float* values, std::int32_t dim,
                std::int32_t tokens, const float* decay, float* out) noexcept {
  for (std::int32_t i = 0; i < dim; i += 8) {
    for (std::int32_t r = 0; r < rows; r += 8) {
      weigh_panels_block(weights + r, rows, values + i, dim, tokens, decay + r,
                       out + static_cast<std::ptrdiff_t>(r) * dim + i);
    }
  }
}

}  // namespace

const AttentionKernels kAttentionKernelsNeon{
    score_rows_neon,  weigh_rows_neon,        score_codes_neon,
    weigh_codes_neon, soften_row_simd<Neon>,  widen,
    score_panels,       soften_panels_simd<Neon>, weigh_panels,
    cap_simd<Neon>,   exp2_row_simd<Neon>};

}  // namespace kvspan::detail
