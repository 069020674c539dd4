// SPDX-License-Identifier: Apache-2.0
// SDOT by element: a register of codes, 4 tokens x 4 components, meets one quad of a query for
// scores; transposed, 4 components x 4 tokens, the weights of four tokens.
#include <arm_neon.h>

#include <cstddef>

#include "attention/bands_kernels.h"

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
  switch (rows - r) {
    case 4:
      return score_rows<4>(codes, quads, rest, stride, sums + 16 * r);
    case 3:
      return score_rows<3>(codes, quads, rest, stride, sums + 16 * r);
    case 2:
      return score_rows<2>(codes, quads, rest, stride, sums + 16 * r);
    case 1:
      return score_rows<1>(codes, quads, rest, stride, sums + 16 * r);
    default:
      return;
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

// Sixteen columns stay in registers while all rows pass.
void project(const float* factors, const float* matrix, std::int32_t rows, std::int32_t cols,
             float* to) noexcept {
  std::int32_t j = 0;
  for (; j + 32 <= cols; j += 32) {
    float32x4_t sum[8];
    for (int k = 0; k < 8; ++k) sum[k] = vld1q_f32(to + j + 4 * k);
    const float* from = matrix + j;
    for (std::int32_t i = 0; i < rows; ++i, from += cols) {
      const float32x4_t factor = vdupq_n_f32(factors[i]);
      for (int k = 0; k < 8; ++k) sum[k] = vfmaq_f32(sum[k], factor, vld1q_f32(from + 4 * k));
    }
    for (int k = 0; k < 8; ++k) vst1q_f32(to + j + 4 * k, sum[k]);
  }
  for (; j + 4 <= cols; j += 4) {
    float32x4_t sum = vld1q_f32(to + j);
    const float* from = matrix + j;
    for (std::int32_t i = 0; i < rows; ++i, from += cols) {
      sum = vfmaq_f32(sum, vdupq_n_f32(factors[i]), vld1q_f32(from));
    }
    vst1q_f32(to + j, sum);
  }
  for (; j < cols; ++j) {
    for (std::int32_t i = 0; i < rows; ++i)
      to[j] += factors[i] * matrix[static_cast<std::ptrdiff_t>(i) * cols + j];
  }
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionNeon{score, weigh, project};

}  // namespace kvspan
