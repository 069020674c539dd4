// SPDX-License-Identifier: Apache-2.0
// SDOT by element: a register of codes, 4 tokens x 4 components, meets one quad of a query for
// scores; transposed, 4 components x 4 tokens, the weights of four tokens.
#include <arm_neon.h>

#include <cstddef>

#include "attention/bands_kernels.h"
#include "attention/neon.h"

namespace kvspan {
namespace {

constexpr int kRows = 5;  // rows whose 16 sums fit the registers beside codes and queries

template <int R>
void score_rows(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                std::int32_t stride, std::int32_t* sums) noexcept {
  int32x4_t sum[R][4];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < 4; ++i) sum[r][i] = vdupq_n_s32(0);
  }
  std::int32_t q = 0;
  const auto step = [&]<int kLane>(const int8x16_t* query) {
    const int8x16_t c0 = vld1q_s8(codes), c1 = vld1q_s8(codes + 16);
    const int8x16_t c2 = vld1q_s8(codes + 32), c3 = vld1q_s8(codes + 48);
    for (int r = 0; r < R; ++r) {
      sum[r][0] = vdotq_laneq_s32(sum[r][0], c0, query[r], kLane);
      sum[r][1] = vdotq_laneq_s32(sum[r][1], c1, query[r], kLane);
      sum[r][2] = vdotq_laneq_s32(sum[r][2], c2, query[r], kLane);
      sum[r][3] = vdotq_laneq_s32(sum[r][3], c3, query[r], kLane);
    }
    codes += 64;
  };
  for (; q + 4 <= quads; q += 4) {
    int8x16_t query[R];
    for (int r = 0; r < R; ++r) query[r] = vld1q_s8(queries + r * stride + 4 * q);
    step.template operator()<0>(query);
    step.template operator()<1>(query);
    step.template operator()<2>(query);
    step.template operator()<3>(query);
  }
  for (; q < quads; ++q) {
    int8x16_t query[R];
    for (int r = 0; r < R; ++r) {
      std::int32_t four;
      __builtin_memcpy(&four, queries + r * stride + 4 * q, 4);
      query[r] = vreinterpretq_s8_s32(vdupq_n_s32(four));
    }
    step.template operator()<0>(query);
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < 4; ++i) vst1q_s32(sums + 16 * r + 4 * i, sum[r][i]);
  }
}

void score(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
           std::int32_t stride, std::int32_t rows, std::int32_t* sums) noexcept {
  std::int32_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    score_rows<kRows>(codes, quads, queries + static_cast<std::ptrdiff_t>(r) * stride, stride,
                      sums + 16 * r);
  }
  const std::int8_t* rest = queries + static_cast<std::ptrdiff_t>(r) * stride;
  if (r < rows) {
    detail::with_rows(rows - r,
                      [&]<int R>() { score_rows<R>(codes, quads, rest, stride, sums + 16 * r); });
  }
}

// [4 tokens][4 components] to [4 components][4 tokens].
inline int8x16_t transposed(int8x16_t x) noexcept {
  static const std::uint8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return vqtbl1q_s8(x, vld1q_u8(kOrder));
}

// Two quads at a time for R rows.
template <int R>
void weigh_rows(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const std::int8_t* weights, std::int32_t* sums) noexcept {
  const std::ptrdiff_t tile_stride = static_cast<std::ptrdiff_t>(quads) * 64;
  const std::ptrdiff_t row_stride = static_cast<std::ptrdiff_t>(16) * tiles;
  for (std::int32_t q = 0; q < quads; ++q) {
    int32x4_t sum[R];
    for (int r = 0; r < R; ++r) sum[r] = vdupq_n_s32(0);
    for (std::int32_t i = 0; i < tiles; ++i) {
      const std::int8_t* from = codes + i * tile_stride + q * 64;
      const int8x16_t c0 = transposed(vld1q_s8(from)), c1 = transposed(vld1q_s8(from + 16));
      const int8x16_t c2 = transposed(vld1q_s8(from + 32)), c3 = transposed(vld1q_s8(from + 48));
      for (int r = 0; r < R; ++r) {
        const int8x16_t w = vld1q_s8(weights + r * row_stride + 16 * i);
        sum[r] = vdotq_laneq_s32(sum[r], c0, w, 0);
        sum[r] = vdotq_laneq_s32(sum[r], c1, w, 1);
        sum[r] = vdotq_laneq_s32(sum[r], c2, w, 2);
        sum[r] = vdotq_laneq_s32(sum[r], c3, w, 3);
      }
    }
    for (int r = 0; r < R; ++r)
      vst1q_s32(sums + (static_cast<std::ptrdiff_t>(r) * quads + q) * 4, sum[r]);
  }
}

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
           const std::int8_t* weights, std::int32_t rows, std::int32_t* sums) noexcept {
  constexpr int kBlock = 9;
  std::int32_t r = 0;
  const auto at = [&](std::int32_t row) {
    return weights + static_cast<std::ptrdiff_t>(row) * 16 * tiles;
  };
  const auto to = [&](std::int32_t row) {
    return sums + static_cast<std::ptrdiff_t>(row) * 4 * quads;
  };
  for (; r + kBlock <= rows; r += kBlock) weigh_rows<kBlock>(codes, tiles, quads, at(r), to(r));
  for (; r + 4 <= rows; r += 4) weigh_rows<4>(codes, tiles, quads, at(r), to(r));
  for (; r < rows; ++r) weigh_rows<1>(codes, tiles, quads, at(r), to(r));
}

float scale(float* x, const float* factors, std::int32_t count, float* largest) noexcept {
  float32x4_t sum = vdupq_n_f32(0.0f), most = sum;
  for (std::int32_t i = 0; i < count; i += 4) {
    const float32x4_t y = vmulq_f32(vld1q_f32(x + i), vld1q_f32(factors + i));
    vst1q_f32(x + i, y);
    sum = vaddq_f32(sum, y);
    most = vmaxq_f32(most, vabsq_f32(y));
  }
  *largest = vmaxvq_f32(most);
  return vaddvq_f32(sum);
}

float largest(const float* x, std::int32_t count) noexcept {
  float32x4_t most = vdupq_n_f32(0.0f);
  for (std::int32_t i = 0; i < count; i += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + i)));
  return vmaxvq_f32(most);
}

void round(const float* x, float factor, std::int32_t count, std::int8_t* to) noexcept {
  std::int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const auto four = [&](int k) {
      return vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4 * k), factor));
    };
    const int16x8_t low = vcombine_s16(vmovn_s32(four(0)), vmovn_s32(four(1)));
    const int16x8_t high = vcombine_s16(vmovn_s32(four(2)), vmovn_s32(four(3)));
    vst1q_s8(to + i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
  for (; i < count; ++i) to[i] = static_cast<std::int8_t>(vcvtns_s32_f32(x[i] * factor));
}

// Columns of R vectors stay in registers while all rows of the matrix pass.
template <int R>
void project_vectors(const float* factors, std::int32_t stride, const float* matrix,
                     std::int32_t rows, std::int32_t cols, float* to) noexcept {
  constexpr int kRegisters = R == 1 ? 8 : R == 2 ? 6 : R == 3 ? 6 : 4;
  const auto run = [&]<int N>(std::int32_t j) {
    float32x4_t sum[R][N];
    for (int r = 0; r < R; ++r) {
      for (int k = 0; k < N; ++k) sum[r][k] = vld1q_f32(to + r * cols + j + 4 * k);
    }
    const float* from = matrix + j;
    for (std::int32_t i = 0; i < rows; ++i, from += cols) {
      float32x4_t row[N];
      for (int k = 0; k < N; ++k) row[k] = vld1q_f32(from + 4 * k);
      for (int r = 0; r < R; ++r) {
        const float32x4_t factor = vdupq_n_f32(factors[r * stride + i]);
        for (int k = 0; k < N; ++k) sum[r][k] = vfmaq_f32(sum[r][k], row[k], factor);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int k = 0; k < N; ++k) vst1q_f32(to + r * cols + j + 4 * k, sum[r][k]);
    }
  };
  std::int32_t j = 0;
  for (; j + 4 * kRegisters <= cols; j += 4 * kRegisters) run.template operator()<kRegisters>(j);
  for (; j + 4 <= cols; j += 4) run.template operator()<1>(j);
  for (; j < cols; ++j) {
    for (int r = 0; r < R; ++r) {
      for (std::int32_t i = 0; i < rows; ++i) {
        to[r * cols + j] +=
            factors[r * stride + i] * matrix[static_cast<std::ptrdiff_t>(i) * cols + j];
      }
    }
  }
}

void project(const float* factors, std::int32_t stride, std::int32_t vectors, const float* matrix,
             std::int32_t rows, std::int32_t cols, float* to) noexcept {
  for (; vectors >= 4; vectors -= 4, factors += 4 * stride, to += 4 * cols) {
    project_vectors<4>(factors, stride, matrix, rows, cols, to);
  }
  if (vectors > 0) {
    detail::with_rows(
        vectors, [&]<int R>() { project_vectors<R>(factors, stride, matrix, rows, cols, to); });
  }
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionNeon{score,   weigh, scale,
                                                        largest, round, project};

}  // namespace kvspan
